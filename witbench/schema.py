"""From nested dicts of plain values to frozen dataclasses and back; errors name the key and what is allowed."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from witbench.errors import ConfigError
from witbench.registry import unknown_key

D = TypeVar("D")

_NAMES = {int: "an integer", float: "a finite number", bool: "true or false", str: "text", type(None): "null"}


def read(cls: type[D], plain: object, where: str = "") -> D:
    """Make a dataclass, nested ones included.

    Args:
        cls: the dataclass; fields may be bool, int, float, str, None, unions of them, a tuple of a fixed or any length,
            a dict with text keys, or another dataclass.
        plain: a mapping with a value for each field that has no default.
        where: dotted name of the mapping, for messages.

    Raises:
        ConfigError: an unknown or missing key, or a value of the wrong type.
    """
    if not isinstance(plain, Mapping):
        raise ConfigError(f"{where or 'config'}={plain!r}: must be a mapping")
    hints = typing.get_type_hints(cls)
    fields = {each.name: each for each in dataclasses.fields(typing.cast("type[Any]", cls))}
    for key in plain:
        if key not in fields:
            raise unknown_key(where, str(key), fields)
    values = {}
    for name, each in fields.items():
        key = f"{where}.{name}" if where else name
        if name in plain:
            values[name] = _value(hints[name], plain[name], key)
        elif each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{key}: must be given")
    return cls(**values)


def to_plain(value: Any) -> Any:
    """The inverse of `read`: dicts, lists and JSON scalars only."""
    if dataclasses.is_dataclass(value):
        return {each.name: to_plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(each) for each in value]
    return value


def require(holds: bool, key: str, value: object, allowed: str) -> None:
    """Raise ConfigError naming the key, its value and what is allowed, unless `holds`."""
    if not holds:
        raise ConfigError(f"{key}={shown(value)}: must be {allowed}")


def shown(value: object) -> str:
    """A value as it is written on the command line."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _value(hint: Any, value: object, key: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return read(typing.cast("type[Any]", hint), value, key)
    origin = typing.get_origin(hint)
    if origin is dict:
        if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in value):
            raise ConfigError(f"{key}={shown(value)}: must be a mapping with text keys")
        of = typing.get_args(hint)[1]
        return {name: each if of is Any else _value(of, each, f"{key}.{name}") for name, each in value.items()}
    if origin is tuple:
        parts = typing.get_args(hint)
        if len(parts) == 2 and parts[1] is Ellipsis:
            if not isinstance(value, list | tuple):
                raise ConfigError(f"{key}={shown(value)}: must be a list")
            return tuple(_value(parts[0], each, f"{key}[{i}]") for i, each in enumerate(value))
        if not isinstance(value, list | tuple) or len(value) != len(parts):
            raise ConfigError(f"{key}={shown(value)}: must be a list of {len(parts)} numbers")
        return tuple(_value(part, each, f"{key}[{i}]") for i, (part, each) in enumerate(zip(parts, value, strict=True)))
    options = typing.get_args(hint) if origin in (typing.Union, types.UnionType) else (hint,)
    for option in options:
        if option is float and type(value) in (int, float) and math.isfinite(typing.cast("float", value)):
            return float(typing.cast("float", value))
        if type(value) is option and option is not float:
            return value
    raise ConfigError(f"{key}={shown(value)}: must be {' or '.join(_NAMES[option] for option in options)}")
