"""`train`, `bench`, `attack`, `data` and `verify` hand what they were given to the packages below."""

from __future__ import annotations

import io
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Result
from witbench.cli import attack, bench, train

Run = Callable[..., Result]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Record calls into the packages below; the config itself is composed."""
    made: list[tuple[Any, ...]] = []

    def call(target: str, *arguments: Any, **options: Any) -> Any:
        made.append((target, *arguments, options))
        return list(arguments[0]) if target == "witbench.config:compose" else 1

    for module in (attack, bench, train):
        monkeypatch.setattr(module, "call", call)
    return made


def test_train_composes_and_passes_the_folder(calls: list[tuple[Any, ...]], witbench: Run) -> None:
    assert witbench("train", "model=gpt_3m", "out=runs/x").status == 1
    assert calls[1] == ("witbench.protocol.run:train_command", ["model=gpt_3m"], Path("runs/x"), {})


def test_bench_passes_overrides_and_options(calls: list[tuple[Any, ...]], witbench: Run) -> None:
    witbench("bench", "json=true", "seed=3")
    options = {"out": None, "json": True, "publish": False}
    assert calls == [("witbench.evaluation.bench:run_bench", ("seed=3",), options)]


def test_attack_puts_its_name_first(calls: list[tuple[Any, ...]], witbench: Run) -> None:
    witbench("attack", "substitution", "placement=burst")
    assert calls[1][:2] == ("witbench.attacks.run:attack_command", ["attack=substitution", "placement=burst"])


def test_data_fetch_lists_fetches_and_refuses(witbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    corpora = types.ModuleType("witbench.training.corpora")
    corpora.CORPORA = {"kjv": None, "shakespeare": None}  # type: ignore[attr-defined]
    corpora.fetch = lambda name: f"/cache/{name}"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "witbench.training.corpora", corpora)
    assert witbench("data", "fetch").out == "kjv\nshakespeare\n"
    assert witbench("data", "fetch", "kjv").out == "/cache/kjv\n"
    assert "did you mean shakespeare?" in witbench("data", "fetch", "shakespear").err


def test_verify_refuses_what_is_no_certificate_with_status_1(tmp_path: Path, witbench: Run) -> None:
    (tmp_path / "tape").write_text("this is a text file, not a tape\n" * 10)
    result = witbench("verify", str(tmp_path), "json=true")
    assert (result.status, result.err) == (1, "")
    report = json.loads(result.out)
    assert report["accepted"] is False
    text = witbench("verify", str(tmp_path))
    assert text.status == 1
    assert text.out.startswith("REJECTED")


def test_verify_reads_a_tape_on_standard_input(witbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert witbench("verify", "-").status == 1


def test_verify_refuses_a_key_or_policy_that_is_none(tmp_path: Path, witbench: Run) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("hello\n")
    for option in ("trust", "policy"):
        result = witbench("verify", str(tmp_path), f"{option}={other}")
        assert (result.status, result.out) == (2, "")
        assert option in result.err
