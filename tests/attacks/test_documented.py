"""The example of docs/writing-an-attack.md does what the page says."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from tests.attacks.conftest import Make
from witbench.attacks.base import Outcome, Scene
from witbench.protocol.prover import Home
from witbench.protocol.sandbox import Sandbox

PAGE = Path(__file__).resolve().parents[2] / "docs" / "writing-an-attack.md"


def test_the_attack_of_the_page(make: Make, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack, program = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "mine.py").write_text(attack)
    monkeypatch.syspath_prepend(tmp_path)
    HalfBlind = importlib.import_module("mine").HalfBlind

    def run(name: str, *overrides: str) -> Outcome:
        config = make("placement=burst", "placement.params.update=3", *overrides)
        folder = tmp_path / name
        outcome: Outcome = HalfBlind(tokens=1)(Scene(config, folder / "run", Home(folder / "broker"), sandbox))
        return outcome

    caught, free = run("witness"), run("unchecked", "protocol=unchecked", "protocol.p=0.0")
    assert (caught.detected, caught.check) == (True, "replay.digest")
    assert (free.detected, free.payload["tokens"]) == (False, 4 * 48 / 2)
    compile(program, "program", "exec")
    assert "HalfBlind" in program
    sys.modules.pop("mine")
