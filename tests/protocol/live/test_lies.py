"""Every lie has its named check."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from witbench.attacks.base import lenient
from witbench.errors import StateError
from witbench.protocol.certify import Certified
from witbench.protocol.trainer import Trainer
from witbench.training.state import Batch, State

from .conftest import World, records

EXACT: tuple[str, ...] = ()


def nudged(state: State, amount: float = 0.01) -> State:
    key = ("parameter", "embedding.weight")
    return State(state.exact, {**state.real, key: state.real[key] + amount})


class WrongStart(Trainer):
    def start(self, seed: int) -> State:
        return nudged(super().start(seed))


class OtherSeed(Trainer):
    def start(self, seed: int) -> State:
        return super().start(seed + 1)


class OtherBatch(Trainer):
    """Trains unit 2 on another batch than it declares."""

    def train(self, t: int, state: State, declared: Batch) -> State:
        return super().train(t, state, super().declare(t + 7) if t == 1 else declared)


class Skipped(Trainer):
    def train(self, t: int, state: State, declared: Batch) -> State:
        return state if t == 1 else super().train(t, state, declared)


class Hidden(Trainer):
    """One more update than declared."""

    def train(self, t: int, state: State, declared: Batch) -> State:
        after = super().train(t, state, declared)
        return super().train(t, after, declared) if t == 1 else after


class OutOfOrder(Trainer):
    def declare(self, t: int) -> Batch:
        return super().declare(t + 7 if t == 1 else t)


class OpensOther(Trainer):
    def open(self, unit: int, start: State, batches: Sequence[Batch]) -> tuple[State, Sequence[Batch]] | None:
        return start, [self.declare(50) for _ in batches] if unit == 2 else batches


class OpensFewer(Trainer):
    def open(self, unit: int, start: State, batches: Sequence[Batch]) -> tuple[State, Sequence[Batch]] | None:
        return start, batches[1:] if unit == 2 else batches


class HidesTokens(Trainer):
    """Tokens beyond a row's length, which its leaf would not bind."""

    def open(self, unit: int, start: State, batches: Sequence[Batch]) -> tuple[State, Sequence[Batch]] | None:
        if unit != 2:
            return start, batches
        return start, [replace(batch, lengths=batch.lengths - 1) for batch in batches]


class OpensOtherStart(Trainer):
    def open(self, unit: int, start: State, batches: Sequence[Batch]) -> tuple[State, Sequence[Batch]] | None:
        return nudged(start) if unit == 2 else start, batches


class OpensBrokenStart(Trainer):
    def open(self, unit: int, start: State, batches: Sequence[Batch]) -> tuple[State, Sequence[Batch]] | None:
        if unit != 2:
            return start, batches
        return State(start.exact, {k: v for k, v in start.real.items() if k[0] == "parameter"}), batches


class Refuses(Trainer):
    def open(self, unit: int, start: State, batches: Sequence[Batch]) -> tuple[State, Sequence[Batch]] | None:
        return None if unit == 2 else (start, batches)


class Twin(Trainer):
    """Commits a malicious state in unit 2 and sketches the honest one."""

    def commit(self, unit: int, state: State) -> State:
        self.kept = nudged(state) if unit == self.where else state
        return self.kept

    where = 2

    def open(self, unit: int, start: State, batches: Sequence[Batch]) -> tuple[State, Sequence[Batch]] | None:
        return nudged(start) if unit == self.where + 1 else start, batches


class LateTwin(Twin):
    """The same in the last unit, so that only the final opening can show it."""

    where = 4

    def open_final(self, state: State) -> State:
        return nudged(state)

    def publish(self, state: State) -> State:
        return nudged(state)


class OtherFinal(Trainer):
    def open_final(self, state: State) -> State:
        return nudged(state)


class OtherWeights(Trainer):
    def publish(self, state: State) -> State:
        return nudged(state)


class Boasts(Trainer):
    def evaluate(self, state: State) -> dict[str, float]:
        return {name: value - 1.0 for name, value in super().evaluate(state).items()}


LIES: list[tuple[type[Trainer], tuple[str, ...], str]] = [
    (WrongStart, EXACT, "init.digest"),
    (OtherSeed, EXACT, "init.digest"),
    (OtherBatch, EXACT, "replay.digest"),
    (OtherBatch, ("tolerance=fixed", "tolerance.tau=1e-6"), "replay.distance"),
    (Skipped, EXACT, "replay.exact_part"),
    (Hidden, EXACT, "replay.exact_part"),
    (OutOfOrder, EXACT, "declare.order"),
    (OpensOther, EXACT, "open.root"),
    (OpensFewer, EXACT, "open.leaf"),
    (HidesTokens, EXACT, "open.leaf"),
    (OpensOtherStart, EXACT, "open.digest"),
    (OpensBrokenStart, EXACT, "open.digest"),
    (Refuses, EXACT, "challenge.refused"),
    (Twin, ("tolerance=fixed", "tolerance.tau=1e-6"), "open.sketch"),
    (LateTwin, ("tolerance=fixed", "tolerance.tau=1e-6"), "final.sketch"),
    (Twin, EXACT, "replay.digest"),
    (Twin, ("tolerance=fixed", "tolerance.tau=1e-6", "protocol.opening=both"), "open.end.sketch"),
    (OtherFinal, EXACT, "final.digest"),
    (OtherWeights, EXACT, "final.weights"),
    (Boasts, EXACT, "evaluation.value"),
]


@pytest.mark.parametrize(("lie", "overrides", "check"), LIES, ids=lambda x: getattr(x, "__name__", None))
def test_each_lie_has_its_check(lie: type[Trainer], overrides: tuple[str, ...], check: str, world: World) -> None:
    certified = world.run(world.config(*overrides), lie)
    assert certified.failed == check, certified.detail
    report = world.verify(certified, lenient(world.config(*overrides)))
    assert not report.accepted
    assert report.status == "rejected run", report.reason
    assert report.check == check
    (closed,) = [entry for entry in world.home.registry.entries() if entry["kind"] == "close"]
    assert closed["status"] == "rejected"


def test_a_distance_that_fails_is_repeated_and_the_repeats_are_taped(world: World) -> None:
    certified = world.run(world.config("tolerance=fixed", "tolerance.tau=1e-6"), OtherBatch)
    failed = records(certified, "replay")[-1]
    assert (failed["failed"], failed["attempts"]) == ("replay.distance", 3)
    assert failed["distances"]


def test_a_stalled_opening_is_a_refusal(world: World) -> None:
    class Stalls(Trainer):
        def open(self, unit: int, start: State, batches: Sequence[Batch]) -> Any:
            time.sleep(1.2 if unit == 2 else 0)
            return start, batches

    assert world.run(world.config("protocol.deadline_s=1"), Stalls).failed == "challenge.refused"


@pytest.mark.parametrize(
    "poison",
    [
        lambda x: x * float("nan"),
        lambda x: torch.full_like(x, float("inf")),
        lambda x: torch.full_like(x, 1e30),
    ],
    ids=["nan", "inf", "too large"],
)
def test_a_broken_state_stops_the_run_and_the_tape_stands(poison: Callable[[Any], Any], world: World) -> None:
    class Breaks(Trainer):
        def train(self, t: int, state: State, declared: Batch) -> State:
            after = super().train(t, state, declared)
            key = ("parameter", "norm.weight")
            return State(after.exact, {**after.real, key: poison(after.real[key])}) if t == 2 else after

    run = world.begin(world.config(), Breaks)
    with pytest.raises(StateError, match=r"norm\.weight"):
        run()
    report = world.verify(Certified(run.folder))
    assert report.status == "incomplete"
    assert report.verified_units == 2
