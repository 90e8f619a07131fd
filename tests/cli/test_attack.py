"""`witbench attack`: the outcome of one attack, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result

Run = Callable[..., Result]
LIBRARY = Path(pytest.__file__).parent.parent / "_pytest"
TINY = (
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "model.context=16",
    "training.sequences=2",
    "training.updates=4",
    "training.eval_batches=1",
    "sketch.params.k=64",
    "data=folder",
    "data.path=texts",
    "placement=burst",
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "texts").mkdir()
    for path in sorted(LIBRARY.glob("*.py"))[:12]:
        (tmp_path / "texts" / path.name).write_bytes(path.read_bytes())
    monkeypatch.setenv("WITBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_caught_when_checked_and_not_when_unchecked(place: Path, witbench: Run) -> None:
    caught = witbench("attack", "substitution", *TINY, "protocol.p=1.0", "json=true")
    assert caught.status == 0, caught.err
    outcome = json.loads(caught.out)
    assert (outcome["detected"], outcome["check"]) == (True, "replay.digest")
    assert outcome["payload"]["tokens"] == 1
    free = witbench("attack", "substitution", *TINY, "protocol=unchecked")
    assert free.out.startswith("substitution: not detected\n")


def test_an_output_folder_is_kept_and_never_overwritten(place: Path, witbench: Run) -> None:
    assert witbench("attack", "substitution", *TINY, "out=kept").status == 0
    assert (place / "kept" / "run" / "cert" / "tape").is_file()
    again = witbench("attack", "substitution", *TINY, "out=kept")
    assert again.status == 2
    assert "exists already" in again.err


def test_unknown_attacks_are_answered_with_the_list(place: Path, witbench: Run) -> None:
    answer = witbench("attack", "substitutoin", *TINY)
    assert answer.status == 2
    assert "substitution" in answer.err
