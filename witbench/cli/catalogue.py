"""What there is to choose from: groups, their choices, and what can be said of each without importing it."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from witbench.errors import ConfigError
from witbench.groups import choices, config_dir, group_names
from witbench.registry import ATTACKS, PLACEMENTS, SKETCHES, Registry, unknown

_REGISTRIES: dict[str, Registry[Any]] = {"sketch": SKETCHES, "attack": ATTACKS, "placement": PLACEMENTS}


@dataclass(frozen=True)
class Item:
    """One choice of one group.

    Attributes:
        group: its config group.
        name: its name.
        doc: docstring of its class if it has one, else the comment that opens its config.
        knobs: parameter of its class -> default as source text, None for one that must be given.
        config: text of its config file, empty for a plug-in without one.
    """

    group: str
    name: str
    doc: str
    knobs: Mapping[str, str | None]
    config: str

    @property
    def summary(self) -> str:
        """The first line of what is said of it."""
        return self.doc.partition("\n")[0]


_DIRECTIVE = "# @package"
"""What Hydra reads in the first comment of a file; it says nothing of the choice."""


def groups(names: tuple[str, ...] = ()) -> list[str]:
    """The named groups, a plural allowed, or all. Raises ConfigError for an unknown one."""
    known = group_names()
    picked = []
    for name in names:
        singular = [each for each in known if name in (each, f"{each}s", f"{each}es")]
        if not singular:
            raise unknown("group", name, known)
        picked += singular
    return picked or known


def items(group: str) -> list[Item]:
    """All items of a group."""
    return [item(group, name) for name in choices(group)]


def item(group: str, name: str) -> Item:
    """One item. Raises ConfigError for an unknown name."""
    if name not in choices(group):
        raise unknown(group, name, choices(group))
    file = config_dir() / group / f"{name}.yaml"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    comment, config = _split(text)
    doc, knobs = _describe(group, name)
    return Item(group, name, doc or comment, knobs, config)


def find(name: str) -> list[Item]:
    """Every item of that name, in whatever group. Raises ConfigError when there is none."""
    found = [item(group, name) for group in group_names() if name in choices(group)]
    if not found:
        raise unknown("show", name, {each for group in group_names() for each in choices(group)})
    return found


def _split(text: str) -> tuple[str, str]:
    """The comment that opens a config file, and the rest."""
    lines = text.splitlines()
    count = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    said = [line.lstrip("# ") for line in lines[:count] if not line.startswith(_DIRECTIVE)]
    return "\n".join(said), "\n".join(lines[count:])


def _describe(group: str, name: str) -> tuple[str, dict[str, str | None]]:
    registry = _REGISTRIES.get(group)
    target = registry.target(name) if registry is not None and name in registry else None
    if target is None:
        return "", {}
    module, _, attribute = target.partition(":")
    try:
        tree = _parse(module)
    except (ImportError, OSError, SyntaxError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{group} {name}: its source {target} cannot be read ({reason})") from None
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == attribute:
            return ast.get_docstring(node) or "", _knobs(node)
    return "", {}


def _parse(module: str) -> ast.Module:
    """The module's source, found without running it."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ImportError(f"there is no module {module}")
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _knobs(node: ast.ClassDef | ast.FunctionDef) -> dict[str, str | None]:
    function = node if isinstance(node, ast.FunctionDef) else _constructor(node)
    if function is None:
        return {}
    names = [each.arg for each in function.args.args if each.arg != "self"]
    defaults = [ast.unparse(each) for each in function.args.defaults]
    knobs: dict[str, str | None] = dict.fromkeys(names)
    knobs.update(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    for each, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        knobs[each.arg] = None if default is None else ast.unparse(default)
    return knobs


def _constructor(node: ast.ClassDef) -> ast.FunctionDef | None:
    own = (each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    return next(own, None)
