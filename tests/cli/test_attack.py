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


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bigram(place: Path) -> Path:
    (place / "examples").mkdir()
    (place / "examples" / "bigram.py").write_bytes((ROOT / "examples" / "bigram.py").read_bytes())
    return place


OWN = "procedure=examples.bigram:Bigram"


@pytest.mark.parametrize(
    ("attack", "check"),
    [
        (("substitution",), "replay.digest"),
        (("insertion",), "replay.digest"),
        (("insertion", "attack.params.route=hidden"), "open.digest"),
        (("deletion", "attack.params.route=drop"), "replay.digest"),
        (("reorder", "attack.params.span=2"), "declare.order"),
        (("poison", "model.context=48"), "replay.digest"),
    ],
)
def test_attacks_on_a_procedure_of_ones_own(attack: tuple[str, ...], check: str, bigram: Path, witbench: Run) -> None:
    caught = witbench(
        "attack", attack[0], *TINY, *attack[1:], OWN, "placement.params.update=2", "protocol.p=1.0", "json=true"
    )
    assert caught.status == 0, caught.err
    outcome = json.loads(caught.out)
    assert (outcome["detected"], outcome["check"]) == (True, check)
    weak = "unordered" if attack[0] == "reorder" else "unchecked"
    free = witbench(
        "attack", attack[0], *TINY, *attack[1:], OWN, "placement.params.update=2", f"protocol={weak}", "json=true"
    )
    outcome = json.loads(free.out)
    assert not outcome["detected"], outcome
    assert outcome["payload"]["tokens"] >= 1


def test_an_edit_that_a_procedure_does_not_feel_is_no_payload(bigram: Path, witbench: Run) -> None:
    told = witbench("attack", "deletion", *TINY, "attack.params.route=zero_weight", OWN, "json=true", "protocol.p=1.0")
    outcome = json.loads(told.out)
    assert (outcome["detected"], outcome["payload"]["tokens"]) == (False, 0)


def test_a_procedure_that_raises_is_one_line(bigram: Path, witbench: Run) -> None:
    text = (
        (bigram / "examples" / "bigram.py")
        .read_text()
        .replace("def update(self, state, batch):", "def update(self, state):")
    )
    (bigram / "examples" / "wrong.py").write_text(text)
    for name, said in (
        ("examples.wrong:Bigram", "procedure=examples.wrong:Bigram: TypeError"),
        ("examples.nothing:Bigram", "is its folder on PYTHONPATH?"),
        ("examples.bigram:Nothing", "has no Nothing"),
        ("bigram", "write it as module:name"),
    ):
        answer = witbench("attack", "substitution", *TINY, f"procedure={name}")
        assert answer.status == 2
        assert said in answer.err
        assert len(answer.err.strip().splitlines()) == 1


def test_an_attack_outside_the_guarantee_is_shown_as_such(place: Path, witbench: Run) -> None:
    told = witbench("attack", "procedure_trojan", *TINY, "model.context=48", "protocol.p=1.0")
    assert told.out.startswith("procedure_trojan: not detected\n")
    assert "outside the guarantee" in told.out
