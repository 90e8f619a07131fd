"""The configuration groups in `configs/`, composed by Hydra; its errors are put in the terms of the user's own keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from witbench.errors import ConfigError
from witbench.registry import ATTACKS, PROTOCOLS, SKETCHES, Registry, unknown, unknown_key

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

ROOT = "config"
"""Name of the root configuration."""

_PLUGGABLE: dict[str, Registry[Any]] = {"sketch": SKETCHES, "attack": ATTACKS, "protocol": PROTOCOLS}
_WITH_PARAMS = ("sketch", "attack", "placement")
_MADE_BY = {"tolerance.calibration": " (`witbench calibrate` makes one)"}


def config_dir() -> Path:
    """Folder of the groups: inside the package when it is installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / f"{ROOT}.yaml").is_file():
            return folder
    raise ConfigError(f"no configs beside {package}: this installation of witbench is broken, install it again")


def group_names() -> list[str]:
    """Names of the groups."""
    return sorted(each.name for each in config_dir().iterdir() if each.is_dir())


def choices(group: str) -> list[str]:
    """Choices of a group, those of installed packages included."""
    own = {each.stem for each in (config_dir() / group).glob("*.yaml")}
    more = _PLUGGABLE[group].plugins() if group in _PLUGGABLE else ()
    return sorted({*own, *more})


def compose_node(overrides: Sequence[str] = ()) -> DictConfig:
    """The composed configuration; values may still be missing.

    Raises:
        ConfigError: an override that does not parse, an unknown group choice or key.
    """
    parsed = _parse(overrides)
    picks = [each for each in parsed if each.key_or_group in group_names()]
    for each in picks:
        _check_choice(each)
    with _hydra():
        try:
            return compose(ROOT, [_line(each) for each in parsed])
        except (HydraException, OmegaConfBaseException) as error:
            chosen = compose(ROOT, [_line(each) for each in picks if not each.is_delete()])
            for each in parsed:
                if each not in picks and not (each.is_add() or each.is_force_add() or _is_param(each)):
                    _check_key(chosen, each)
            raise ConfigError(_first_line(error)) from None


def compose_plain(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The composed configuration as nested dicts and lists of scalars. Raises ConfigError, also for missing values."""
    node = compose_node(overrides)
    missing = _missing(node)
    try:
        plain = OmegaConf.to_container(node, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(_first_line(error)) from None
    if missing:
        group = missing[0].partition(".")[0]
        made = _MADE_BY.get(missing[0], "")
        raise ConfigError(
            f"{missing[0]}: must be given with {group}={node[group].name}; write {missing[0]}=VALUE{made}"
        )
    return cast("dict[str, Any]", plain)


def missing_keys(overrides: Sequence[str] = ()) -> list[str]:
    """Keys that the configuration leaves to the user, such as `data.path`. Raises ConfigError."""
    return _missing(compose_node(overrides))


def show_info(overrides: Sequence[str], what: str = "all") -> None:
    """Print what Hydra knows of the composition: search path, defaults tree, plug-ins."""
    lines = [_line(each) for each in _parse(overrides)]
    with _hydra():
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None  # initialised just above
        try:
            hydra.show_info(what, ROOT, lines)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(_first_line(error)) from None


def _missing(node: DictConfig) -> list[str]:
    try:
        return sorted(OmegaConf.missing_keys(node))
    except OmegaConfBaseException as error:
        raise ConfigError(_first_line(error)) from None


@contextmanager
def _hydra() -> Iterator[None]:
    with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="witbench"):
        yield


def _parse(overrides: Sequence[str]) -> list[Override]:
    parser = OverridesParser.create()
    parsed = []
    for line in overrides:
        try:
            each = parser.parse_override(line)
        except HydraException as error:
            raise ConfigError(f"{line}: not an override ({_first_line(error)}); write key=value") from None
        if each.package is not None:
            raise ConfigError(f"{line}: groups have a fixed place; write {each.key_or_group}=NAME")
        if each.key_or_group.partition(".")[0] == "hydra":
            raise ConfigError(f"{line}: unknown key; witbench sets Hydra up itself")
        if each.is_sweep_override():
            raise ConfigError(f"{line}: one value at a time; put a list in brackets: key=[a,b]")
        parsed.append(each)
    return parsed


def _check_choice(override: Override) -> None:
    group, name = override.key_or_group, str(override.value())
    if not override.is_delete() and name not in choices(group):
        raise unknown(group, name, choices(group))
    if group in _PLUGGABLE and name in _PLUGGABLE[group].plugins():
        ConfigStore.instance().store(name=name, group=group, node=_plugin_node(group, name))


def _plugin_node(group: str, name: str) -> dict[str, Any]:
    if group == "protocol":
        return {"defaults": ["witness", "_self_"], "name": name, **PROTOCOLS.get(name)}
    return {"name": name, "params": {}} | ({"groups": "layer_role"} if group == "sketch" else {})


def _is_param(override: Override) -> bool:
    group, _, rest = override.key_or_group.partition(".")
    return group in _WITH_PARAMS and rest.startswith("params.")


def _line(override: Override) -> str:
    """The override as Hydra is to see it: a knob that the YAML does not list need not be added with `+`."""
    line = str(override.input_line)
    change = not (override.is_add() or override.is_force_add() or override.is_delete())
    return f"++{line}" if change and _is_param(override) else line


def _check_key(node: DictConfig, override: Override) -> None:
    at: Any = node
    path = override.key_or_group.split(".")
    for depth, part in enumerate(path):
        if not isinstance(at, DictConfig):
            raise ConfigError(f"{'.'.join(path)}: {'.'.join(path[:depth])} is a single value")
        keys = [str(key) for key in at]  # `in` says no for a value that must still be given
        if part not in keys:
            raise unknown_key(".".join(path[:depth]), part, keys)
        at = None if OmegaConf.is_missing(at, part) or OmegaConf.is_interpolation(at, part) else at[part]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
