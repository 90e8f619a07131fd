"""Published procedures: the text in the spec is what runs, whatever is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from witbench.errors import ConfigError, DataError
from witbench.training.source import ProcedureSpec, builtin_spec, procedure_from, spec_for

from .conftest import CONFIG

LOADER = (
    "import sys\n"
    "from witbench.training.source import ProcedureSpec, load_procedure\n"
    "import witbench.training.procedure\n"  # imported before, and yet not what runs
    "p = load_procedure(ProcedureSpec.from_bytes(sys.stdin.buffer.read()))\n"
    "print(p.init(0).exact['step'], type(p).__module__)\n"
)


def run_in_child(spec: ProcedureSpec) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LOADER], input=spec.to_bytes(), capture_output=True, check=True, cwd=Path.cwd()
    )
    return done.stdout.decode().strip()


def test_a_spec_survives_and_its_digest_binds_everything() -> None:
    spec = builtin_spec(CONFIG)
    again = ProcedureSpec.from_bytes(spec.to_bytes())
    assert again.to_bytes() == spec.to_bytes()
    others = [
        ProcedureSpec("a:b", spec.files, spec.config),
        ProcedureSpec(spec.entry, {**spec.files, "x": ""}, spec.config),
        ProcedureSpec(spec.entry, spec.files, {**spec.config, "more": 1}),
    ]
    assert len({spec.digest, *(other.digest for other in others)}) == 4
    assert others[2].source_digest == spec.source_digest
    assert others[1].source_digest != spec.source_digest


def test_the_published_text_is_what_runs() -> None:
    spec = builtin_spec(CONFIG)
    assert run_in_child(spec).startswith("0 ")
    name = "witbench.training.procedure"
    changed = spec.files[name].replace('"step": 0', '"step": 41')
    assert changed != spec.files[name]
    assert run_in_child(ProcedureSpec(spec.entry, {**spec.files, name: changed}, spec.config)).startswith("41 ")


def test_the_builtin_spec_holds_every_module_of_the_procedure() -> None:
    """Modules that the procedure imports from the training package are published, but for the interface."""
    spec = builtin_spec(CONFIG)
    interface = {"state", "data"}
    for text in spec.files.values():
        for line in text.splitlines():
            if line.startswith(("from witbench.training.", "    from witbench.training.")):
                module = line.split()[1].rpartition(".")[2]
                assert f"witbench.training.{module}" in spec.files or module in interface, line


def test_a_users_own_procedure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("class Mine:\n    def __init__(self, config):\n        self.config = config\n")
    monkeypatch.syspath_prepend(tmp_path)
    spec = spec_for("mine:Mine", {"a": 1})
    assert list(spec.files) == ["mine"]
    assert procedure_from(spec).config == {"a": 1}


@pytest.mark.parametrize("entry", ["nothing", "no.such.module:X", "json:nothing"])
def test_a_wrong_entry_is_the_users_mistake(entry: str) -> None:
    with pytest.raises(ConfigError, match="procedure="):
        spec_for(entry, {})


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xa0", b"\x81\x01"])
def test_what_is_no_spec_is_a_data_error(data: bytes) -> None:
    with pytest.raises(DataError):
        ProcedureSpec.from_bytes(data)
