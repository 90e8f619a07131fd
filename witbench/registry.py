"""Things found by name: sketch designs, attacks, placements, protocol presets.

Built-in entries are lazy `module:attr` strings, so that listing names imports nothing. Installed packages add entries
through entry points of the groups `witbench.sketches`, `witbench.attacks` and `witbench.protocols`.
"""

from __future__ import annotations

import difflib
import inspect
import warnings
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from witbench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from importlib.metadata import EntryPoint

T = TypeVar("T")

_BROKEN = (ImportError, AttributeError, SyntaxError, NameError, TypeError, ValueError, RuntimeError, OSError)
"""What importing somebody else's module may well raise."""


def unknown(what: str, name: str, known: Iterable[str]) -> ConfigError:
    """The answer to an unknown name: what there is, and which of it is nearest."""
    return ConfigError(f"{what}={name}: unknown; choose from {_listed(name, known)}")


def unknown_key(where: str, key: str, known: Iterable[str]) -> ConfigError:
    """The answer to an unknown key of the mapping `where`, a dotted name, empty for the root."""
    return ConfigError(f"{where}{'.' if where else ''}{key}: unknown key; choose from {_listed(key, known)}")


def _listed(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    return ", ".join(names) + (f"; did you mean {near[0]}?" if near else "")


class Registry(Generic[T]):
    """Entries of one kind by name.

    Args:
        kind: what an entry is called in messages, such as `sketch`.
        entries: name -> the thing itself, or a `module:attr` string that is imported when it is asked for.
        group: entry-point group through which installed packages add entries; None when they cannot.
        aliases: other name -> name.
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, str | T],
        group: str | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.group = group
        self._entries: dict[str, str | T] = dict(entries)
        self._aliases = dict(aliases or {})

    @cached_property
    def _plugins(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)} if self.group else {}

    def names(self) -> list[str]:
        """All names but aliases, sorted. Imports nothing."""
        return sorted({*self._entries, *self._plugins})

    def plugins(self) -> list[str]:
        """Names that installed packages added. A built-in name cannot be taken over."""
        return sorted(self._plugins.keys() - self._entries.keys())

    def __contains__(self, name: str) -> bool:
        return self._resolve(name) in self._entries or self._resolve(name) in self._plugins

    def check_name(self, name: str) -> None:
        """Raise ConfigError, with the list and the nearest name, unless there is such an entry. Imports nothing."""
        if name not in self:
            raise unknown(self.kind, name, self.names())

    def register(self, name: str, entry: str | T) -> None:
        """Add an entry from a running program. Raises ConfigError when the name is taken."""
        if name in self._aliases or name in self:
            raise ConfigError(f"{self.kind}={name}: this name is taken; choose another one")
        self._entries[name] = entry

    def get(self, name: str) -> T:
        """The entry of a name or alias, imported if need be.

        Raises:
            ConfigError: an unknown name, or a plug-in that cannot be imported.
        """
        name = self._resolve(name)
        if name in self._entries:
            entry = self._entries[name]
            return self._import(entry) if isinstance(entry, str) else entry
        self.check_name(name)
        point = self._plugins[name]
        try:
            return cast("T", point.load())
        except _BROKEN as error:
            raise ConfigError(
                f"{self.kind}={name}: the plug-in {point.value} cannot be imported ({type(error).__name__}: {error}); "
                "mend or uninstall it"
            ) from error

    def target(self, name: str) -> str | None:
        """The `module:attr` of a name or alias; None for one that was registered as a thing. Raises ConfigError."""
        name = self._resolve(name)
        self.check_name(name)
        entry = self._entries.get(name, self._plugins[name].value if name in self._plugins else None)
        return entry if isinstance(entry, str) else None

    def items(self) -> Iterator[tuple[str, T]]:
        """Name and entry of all that can be imported; a broken plug-in is one warning line."""
        for name in self.names():
            try:
                yield name, self.get(name)
            except ConfigError as error:
                warnings.warn(str(error), stacklevel=2)

    def _resolve(self, name: str) -> str:
        return self._aliases.get(name, name)

    def _import(self, target: str) -> T:
        module, _, attribute = target.partition(":")
        return cast("T", getattr(import_module(module), attribute))


def build(registry: Registry[Any], name: str, params: Mapping[str, object]) -> Any:
    """Make the entry of a name with its parameters as keyword arguments.

    Raises:
        ConfigError: an unknown name, a parameter it does not take, or one it needs and was not given.
    """
    make = registry.get(name)
    check_params(f"{registry.kind}.params", name, make, params)
    return make(**params)


def check_params(where: str, name: str, make: Callable[..., object], params: Mapping[str, object]) -> None:
    """Raise ConfigError unless `params` are keyword arguments that `make` takes, and all that it needs."""
    takes = {key: each for key, each in inspect.signature(make).parameters.items() if each.kind not in _COLLECTING}
    allowed = ", ".join(takes) or "none"
    for key in params:
        if key not in takes:
            near = difflib.get_close_matches(str(key), takes, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{where}.{key}={params[key]}: {name} has no such parameter; it takes {allowed}{hint}")
    for key, each in takes.items():
        if each.default is each.empty and key not in params:
            raise ConfigError(f"{where}.{key}: {name} needs it; it takes {allowed}")


_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

SKETCHES: Registry[Any] = Registry(
    "sketch",
    {
        "rht": "witbench.kernels.rht:Rht",
        "gaussian": "witbench.kernels.gaussian:Gaussian",
        "digest": "witbench.kernels.digest:DigestSketch",
    },
    group="witbench.sketches",
    aliases={"hadamard": "rht"},
)

ATTACKS: Registry[Any] = Registry(
    "attack",
    {
        "substitution": "witbench.attacks.substitution:Substitution",
        "insertion": "witbench.attacks.insertion:Insertion",
        "deletion": "witbench.attacks.deletion:Deletion",
        "reorder": "witbench.attacks.reorder:Reorder",
        "poison": "witbench.attacks.poison:Poison",
        "procedure_trojan": "witbench.attacks.procedure_trojan:ProcedureTrojan",
    },
    group="witbench.attacks",
)

PLACEMENTS: Registry[Any] = Registry(
    "placement",
    {name.lower(): f"witbench.attacks.placement:{name}" for name in ("Uniform", "Burst", "Tail", "Spread")},
)

PROTOCOLS: Registry[Mapping[str, object]] = Registry(
    "protocol",
    {
        "witness": {},
        "unchecked": {"p": 0.0},
        "unordered": {"switches": {"order": "free"}},
        "parentless_chain": {"switches": {"chain": "parentless"}},
        "loose_tolerance": {"tau_scale": 1e4},
    },
    group="witbench.protocols",
)
"""Preset -> what it changes in the group `protocol` of the reference preset."""
