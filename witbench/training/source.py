"""A procedure as it is published: its source text and its configuration. What is replayed is this text."""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import cbor2

from witbench.errors import ConfigError, DataError

if TYPE_CHECKING:
    from witbench.training.procedure import Procedure

BUILTIN_ENTRY = "witbench.training.procedure:GPTProcedure"
_BUILTIN_MODULES = ("procedure", "model", "optimizer", "order")


@dataclass(frozen=True)
class ProcedureSpec:
    """A black-box training procedure.

    Attributes:
        entry: `module:attribute`; called with the configuration it gives the procedure.
        files: module name -> source text, of every module that is the procedure's own.
        config: what the attribute is called with; JSON values only.
    """

    entry: str
    files: Mapping[str, str]
    config: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        """Canonical CBOR: entry, files, and the configuration as canonical JSON."""
        config = json.dumps(self.config, sort_keys=True, separators=(",", ":"))
        return cbor2.dumps({"entry": self.entry, "files": dict(self.files), "config": config}, canonical=True)

    @classmethod
    def from_bytes(cls, data: bytes) -> ProcedureSpec:
        """Parse a serialised spec. Raises DataError when it is not one."""
        try:
            fields = cbor2.loads(data)
            entry, files, config = fields["entry"], fields["files"], json.loads(fields["config"])
        except (cbor2.CBORDecodeError, TypeError, KeyError, ValueError, RecursionError) as error:
            raise DataError(f"not a serialised procedure: {error}") from None
        texts = isinstance(files, dict) and all(isinstance(x, str) for item in files.items() for x in item)
        if not (isinstance(entry, str) and texts and isinstance(config, dict)):
            raise DataError("not a serialised procedure: entry, files and config are not what they should be")
        return cls(entry, files, config)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the serialised spec, which genesis binds."""
        return hashlib.sha256(self.to_bytes()).digest()

    @property
    def source_digest(self) -> bytes:
        """SHA-256 of entry and source alone: the procedure whatever its configuration; allow-lists hold this."""
        text = cbor2.dumps({"entry": self.entry, "files": dict(self.files)}, canonical=True)
        return hashlib.sha256(text).digest()


def builtin_spec(config: Mapping[str, Any]) -> ProcedureSpec:
    """The built-in GPT procedure, with its own source text.

    Args:
        config: model, optimizer and training settings, as GPTProcedure takes them.
    """
    folder = Path(__file__).parent
    files = {f"witbench.training.{name}": (folder / f"{name}.py").read_text("utf-8") for name in _BUILTIN_MODULES}
    return ProcedureSpec(BUILTIN_ENTRY, files, config)


def spec_for(entry: str, config: Mapping[str, Any]) -> ProcedureSpec:
    """A user's procedure `module:attribute`, with the source of that module.

    Raises:
        ConfigError: when there is no such module or attribute.
    """
    if entry == BUILTIN_ENTRY:
        return builtin_spec(config)
    module = _import(entry)
    origin = importlib.util.find_spec(module.__name__)
    if origin is None or origin.origin is None or not origin.origin.endswith(".py"):
        raise ConfigError(f"procedure={entry}: the module has no Python source to publish")
    return ProcedureSpec(entry, {module.__name__: Path(origin.origin).read_text("utf-8")}, config)


def procedure_from(spec: ProcedureSpec) -> Procedure:
    """The procedure on the trainer's own side: an ordinary import."""
    return _construct(_import(spec.entry), spec)


def load_procedure(spec: ProcedureSpec) -> Procedure:
    """The procedure from the spec's own text, whatever is installed. For a process that ends with the job.

    Modules of the spec that were imported before are forgotten first, so that their published text is what runs.
    """
    for name in spec.files:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Published(spec.files))
    sys.meta_path.append(_Parents(spec.files))
    return _construct(_import(spec.entry), spec)


def _construct(module: ModuleType, spec: ProcedureSpec) -> Procedure:
    attribute = spec.entry.partition(":")[2]
    procedure: Procedure = getattr(module, attribute)(dict(spec.config))
    return procedure


def _import(entry: str) -> ModuleType:
    name, _, attribute = entry.partition(":")
    if not name or not attribute:
        raise ConfigError(f"procedure={entry}: write it as module:name")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"procedure={entry}: {error}; is its folder on PYTHONPATH?") from None
    if not hasattr(module, attribute):
        raise ConfigError(f"procedure={entry}: module {name} has no {attribute}")
    return module


class _Published(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules in a spec's source text."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._files:
            return None
        return importlib.util.spec_from_loader(name, self)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._files[module.__name__], f"<published {module.__name__}>", "exec"), module.__dict__)


class _Parents(importlib.abc.MetaPathFinder):
    """Stands in, after everything else, for packages that published modules lie in and that are not installed."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not any(each.startswith(f"{name}.") for each in self._files):
            return None
        return importlib.machinery.ModuleSpec(name, None, is_package=True)
