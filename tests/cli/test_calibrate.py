"""`witbench calibrate` from the command line: a calibration, a run under it, its check; mistakes in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result

Run = Callable[..., Result]

TINY = (
    "training.updates=8",
    "training.sequences=2",
    "training.eval_batches=1",
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "model.context=32",
    "sketch.params.k=64",
)
QUICK = ("distances=40", "runs=3", "variations=threads,micro_batches,order", "workers=1")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WITBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "texts").mkdir()
    library = Path(pytest.__file__).parent.parent / "_pytest"
    for path in sorted(library.glob("*.py"))[:6]:
        (tmp_path / "texts" / path.name).write_bytes(path.read_bytes())
    return tmp_path


DATA = ("data=folder", "data.path=texts")


def test_calibrate_train_verify_check(place: Path, witbench: Run) -> None:
    made = witbench("calibrate", *TINY, *DATA, *QUICK, "out=tau.json")
    assert made.status == 0, made.err
    for line in ("warmup:", "after: 42 honest distances", "norm/parameter", "check it"):
        assert line in made.out
    assert {path.suffix for path in place.glob("tau*")} == {".json", ".png", ".pdf", ".csv"}
    given = (*TINY, *DATA, "tolerance=calibrated", "tolerance.calibration=tau.json", "protocol.p=1.0")
    trained = witbench("train", *given, "out=run")
    assert trained.status == 0, trained.out + trained.err
    verified = witbench("verify", "run/cert", "trust=runs/broker/broker.vkey")
    assert verified.status == 0, verified.out
    assert "calibrated, the first 1 unit apart" in verified.out
    checked = witbench("calibrate", "check", "tau.json", "units=32", "workers=1")
    assert checked.status == 0, checked.err
    assert "honest replays rejected: 0 of 35, at most 0.082 at 95% (one-sided)" in checked.out
    assert "a rate below 0.001: extrapolated, 2995 replays" in checked.out
    assert (place / "tau.json.check.json").exists()
    for key, value in (("sketch.params.k", "128"), ("optimizer", "sgd"), ("protocol.unit", "2")):
        refused = witbench("train", *given, f"{key}={value}", "out=other")
        assert refused.status == 2
        assert refused.err.startswith("witbench: tolerance.calibration=tau.json: made for another run")
        assert len(refused.err.strip().splitlines()) == 1


def test_a_huge_tau_is_no_certificate(place: Path, witbench: Run) -> None:
    made = witbench("calibrate", *TINY, *DATA, *QUICK, "out=tau.json", "factor=1e12")
    assert made.status == 0
    assert "verifiers refuse such runs (policy.tau)" in made.out
    given = ("tolerance=calibrated", "tolerance.calibration=tau.json", "protocol.p=1.0")
    assert witbench("train", *TINY, *DATA, *given, "out=run").status == 0
    verified = witbench("verify", "run/cert", "trust=runs/broker/broker.vkey", "json=true")
    assert verified.status == 1
    assert json.loads(verified.out)["check"] == "policy.tau"
    assert witbench("calibrate", "check", "tau.json", "units=16", "workers=1").status == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("out=tau.txt",), "name ends in .json"),
        (("distances=0",), "at least 1"),
        (("factor=-1",), "positive"),
        (("factor=nan",), "positive"),
        (("variations=thread",), "did you mean threads"),
        (("rate=1",), r"in \(0, 1\)"),
        (("model.dropout=0.1", "variations=order"), "none applies"),
        (("chek", "tau.json"), "did you mean check"),
        (("check",), "give one calibration"),
        (("check", "missing.json"), "missing.json"),
        (("check", "tau.json", "protocol.unit=2"), "the configuration of its calibration"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], message: str, place: Path, witbench: Run) -> None:
    result = witbench("calibrate", *words, *(() if words[0].startswith("ch") else (*TINY, *DATA)))
    assert result.status == 2
    assert len(result.err.strip().splitlines()) == 1
    assert re.search(message, result.err), result.err
    assert not list(place.glob("tau*"))
