"""Live runs under a calibration: other numerics pass, one token does not, and the file is bound."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from witbench.calibration.run import Settings, calibrate
from witbench.calibration.variations import thread_count
from witbench.config import RunConfig, compose
from witbench.errors import ConfigError
from witbench.protocol.encoding import f64_from
from witbench.protocol.replayer import change_one_token
from witbench.protocol.trainer import Trainer
from witbench.training.state import Batch, State

from .conftest import TINY, World, records

MORE = ("training.sequences=4", "training.updates=12")
VARIANTS = {
    "adamw": (),
    "units of 2": ("protocol.unit=2",),
    "both opened": ("protocol.opening=both",),
    "sgd": ("optimizer=sgd",),
}


@pytest.fixture(scope="module")
def calibration(
    texts: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[tuple[str, ...]], Path]:
    """The calibration of a variant, made once."""
    folder = tmp_path_factory.mktemp("calibrations")
    settings = Settings(distances=24, runs=4, variations=("threads", "micro_batches", "order"), workers=1)

    def made(overrides: tuple[str, ...]) -> Path:
        path = folder / f"{hashlib.sha256(repr(overrides).encode()).hexdigest()[:8]}.json"
        if not path.exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("WITBENCH_CACHE", str(cache))
                given = compose([*TINY, "data=folder", f"data.path={texts}", *MORE, *overrides])
                calibrate(given, settings, path, lambda done, total: None)
        return path

    return made


Made = Callable[[tuple[str, ...]], Path]


def under(world: World, path: Path, *overrides: str) -> RunConfig:
    return world.config(*MORE, *overrides, "tolerance=calibrated", f"tolerance.calibration={path}")


def scaled(path: Path, target: Path, factor: float, phases: Sequence[str] = ("warmup", "after")) -> Path:
    """The calibration with every tau of some phases multiplied."""
    fields = json.loads(path.read_text())
    for phase in phases:
        tau = fields["tau"][phase]
        tau.update({group: value * factor for group, value in tau.items()})
    target.write_text(json.dumps(fields))
    return target


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_honest_run_is_accepted(variant: str, world: World, calibration: Made) -> None:
    path = calibration(tuple(o for o in VARIANTS[variant] if "opening" not in o))
    certified = world.run(under(world, path, *VARIANTS[variant]))
    assert certified.failed is None, certified.detail
    report = world.verify(certified)
    assert report.accepted, report.reason
    assert report.facts is not None
    (genesis,) = records(certified, "genesis")
    fields = json.loads(path.read_text())
    assert genesis["calibration"] == hashlib.sha256(path.read_bytes()).digest()
    assert report.facts.calibration == genesis["calibration"].hex()
    assert genesis["warmup"] == report.facts.warmup == fields["warmup_units"] == (1 if "units of 2" in variant else 2)
    for phase, tau in fields["tau"].items():
        assert {group: f64_from(value) for group, value in genesis["tau"][phase].items()} == tau


class OtherSplit(Trainer):
    """Adds gradients up in two micro-batches where one is declared."""

    def train(self, t: int, state: State, declared: Batch) -> State:
        fields = {**declared.batch_fields, "micro_batches": (2, 2)}
        return super().train(t, state, replace(declared, batch_fields=fields))


class OtherOrder(Trainer):
    """Takes the rows of each batch backwards."""

    def train(self, t: int, state: State, declared: Batch) -> State:
        fields = {name: values.flip(0) for name, values in declared.sequence_fields.items()}
        flipped = replace(
            declared, tokens=declared.tokens.flip(0), lengths=declared.lengths.flip(0), sequence_fields=fields
        )
        return super().train(t, state, flipped)


class OtherThreads(Trainer):
    """Trains and evaluates on two threads; replays run on one."""

    def train(self, t: int, state: State, declared: Batch) -> State:
        with thread_count(2):
            return super().train(t, state, declared)

    def evaluate(self, state: State) -> dict[str, float]:
        with thread_count(2):
            return super().evaluate(state)


@pytest.mark.parametrize("trainer", [OtherSplit, OtherOrder, OtherThreads])
def test_other_numerics_pass_where_exact_rejects(trainer: type[Trainer], world: World, calibration: Made) -> None:
    path = calibration(())
    certified = world.run(under(world, path), trainer)
    assert certified.failed is None, certified.detail
    assert world.verify(certified).accepted
    distances = [max(map(f64_from, record["distances"].values())) for record in records(certified, "replay")[1:]]
    assert max(distances) > 0, "the live numerics were no others"
    assert world.run(world.config(*MORE), trainer, name="exact").failed == "replay.digest"


@pytest.mark.parametrize(("phase", "unit"), [("warmup", 1), ("after", 3)])
def test_other_numerics_beyond_the_tau_of_their_phase_fail(
    phase: str, unit: int, world: World, calibration: Made
) -> None:
    tight = scaled(calibration(()), world.folder / "tight.json", 1e-4, [phase])
    certified = world.run(under(world, tight), OtherOrder)
    assert certified.failed == "replay.distance"
    assert f"unit {unit}:" in certified.detail
    assert "tau is" in certified.detail


@pytest.mark.parametrize("at", [0, 1, 5, 11])
def test_one_replaced_token_is_caught(at: int, world: World, calibration: Made) -> None:
    """In warm-up (updates 0 and 1), after it, and in the last unit."""

    class OneToken(Trainer):
        def train(self, t: int, state: State, declared: Batch) -> State:
            if t == at:
                (declared,) = change_one_token([declared], bytes(range(32)), 256)
            return super().train(t, state, declared)

    certified = world.run(under(world, calibration(())), OneToken)
    assert certified.failed == "replay.distance", certified.detail
    assert f"unit {at + 1}" in certified.detail
    assert world.verify(certified).check == "replay.distance"


def test_tau_as_large_as_a_token_is_refused_by_the_verifier(world: World, calibration: Made) -> None:
    huge = scaled(calibration(()), world.folder / "huge.json", 1e9)
    certified = world.run(under(world, huge))
    assert certified.failed is None
    report = world.verify(certified)
    assert not report.accepted
    assert report.check == "policy.tau"


def test_an_edited_calibration_is_another_one(world: World, calibration: Made) -> None:
    path = calibration(())
    runs = [world.run(under(world, path), name="one")]
    other = world.folder / "other.json"
    other.write_text(path.read_text().replace('"factor"', ' "factor"', 1))
    runs.append(world.run(under(world, other), name="two"))
    digests = [records(certified, "genesis")[0]["calibration"] for certified in runs]
    assert digests[0] != digests[1]
    assert all(world.verify(certified).accepted for certified in runs)


class Stop(Exception):
    """Stands for a kill."""


def test_a_run_does_not_go_on_under_another_calibration(world: World, calibration: Made) -> None:
    class Stops(Trainer):
        def train(self, t: int, state: State, declared: Batch) -> State:
            if t == 3:
                raise Stop
            return super().train(t, state, declared)

    path = world.folder / "tau.json"
    path.write_bytes(calibration(()).read_bytes())
    with pytest.raises(Stop):
        world.run(under(world, path), Stops)
    kept = path.read_bytes()
    scaled(path, path, 2.0)
    with pytest.raises(ConfigError, match="changed since this run began"):
        world.run(under(world, path))
    path.write_bytes(kept)
    certified = world.run(under(world, path))
    assert certified.failed is None, certified.detail
    assert world.verify(certified).accepted


@pytest.mark.parametrize(
    ("change", "failed"), [(1e-7, None), (1e-3, "evaluation.value"), (float("nan"), "evaluation.value")]
)
def test_evaluations_have_a_tolerance(change: float, failed: str | None, world: World, calibration: Made) -> None:
    """Within it the run passes, and the tape holds the prover's own value, not the shown one."""

    class Rounds(Trainer):
        own: Any = None

        def evaluate(self, state: State) -> dict[str, float]:
            type(self).own = super().evaluate(state)
            return {name: value + change for name, value in self.own.items()}

    certified = world.run(under(world, calibration(())), Rounds)
    assert certified.failed == failed, certified.detail
    (record,) = records(certified, "evaluation")
    taped = f64_from(record["values"]["loss"])
    if failed is None:
        assert taped == Rounds.own["loss"]
        assert world.verify(certified).accepted
    else:
        assert taped != Rounds.own["loss"]
    assert torch.get_num_threads() == 1
