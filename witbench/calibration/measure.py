"""Measuring one honest run: how far its units move under other numerics, and how far when one token is another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from witbench.calibration.honest import Honest, Unit, rounding_of
from witbench.calibration.plan import Share, phase_of
from witbench.calibration.variations import VARIATIONS, Variation, run_unit
from witbench.errors import ConfigError
from witbench.protocol.commitments import exact_digest
from witbench.protocol.replayer import change_one_token

if TYPE_CHECKING:
    from witbench.config import RunConfig
    from witbench.kernels.base import Sketch
    from witbench.training.state import State

YARDSTICK = "one token"
"""Stands for a variation in the rows of the yardstick."""


@dataclass(frozen=True)
class Distance:
    """How far one computation of a unit was from another.

    Attributes:
        phase: `warmup` or `after`.
        variation: what differed, or `one token`.
        seed, unit: which unit of which run.
        groups: group -> distance of the two sketches.
    """

    phase: str
    variation: str
    seed: int
    unit: int
    groups: Mapping[str, float]


@dataclass(frozen=True)
class Evaluated:
    """What `evaluate` gave in the process's own numerics and in others.

    Attributes:
        largest: its largest absolute value.
        moved: its largest distance from the same value under other numerics.
    """

    largest: float
    moved: float


@dataclass(frozen=True)
class Measured:
    """What one run gave.

    Attributes:
        seed: of the run.
        honest: distances between honest computations.
        token: distances that one changed token makes, one a unit.
        rounding: group -> largest rounding step of one stored value, over all end states.
        evaluated: name -> values of the final state; empty for a run that stopped before it.
    """

    seed: int
    honest: tuple[Distance, ...]
    token: tuple[Distance, ...]
    rounding: Mapping[str, float]
    evaluated: Mapping[str, Evaluated]


@dataclass(frozen=True)
class MeasureRun:
    """Measure one run.

    Attributes:
        config: the configuration.
        seed: of the run.
        variations: names of the variations; the ways of `share` index into them.
        share: what to measure.
        whole: whether the run goes on to its end and is evaluated there, or stops after the last unit measured.
    """

    config: RunConfig
    seed: int
    variations: tuple[str, ...]
    share: Share
    whole: bool = True

    def __call__(self) -> Measured:
        """Run it. Raises ConfigError when a variation changes the exact part, or distances mean nothing."""
        honest = Honest(self.config, self.seed)
        ways = [VARIATIONS[name](self.config) for name in self.variations]
        random = np.random.default_rng([self.seed, self.config.protocol.unit])
        distances: list[Distance] = []
        token: list[Distance] = []
        rounding: dict[str, float] = {}
        evaluated: dict[str, Evaluated] = {}
        for unit in honest.units(None if self.whole else max(self.share)):
            key = random.bytes(32)
            own = honest.sketch(unit.end, key)
            for group, step in rounding_of(unit.end, honest.manifest).items():
                rounding[group] = max(rounding.get(group, 0.0), step)
            for index, draw in self.share.get(unit.number, ()):
                state = ways[index](honest.procedure, unit.start, unit.batches, draw, random)
                _check_exact(ways[index].name, unit, state)
                distances.append(self._distance(honest, ways[index].name, unit, own, honest.sketch(state, key)))
            changed = change_one_token(list(unit.batches), random.bytes(32), honest.dataset.vocab)
            state = run_unit(honest.procedure, unit.start, changed)
            token.append(self._distance(honest, YARDSTICK, unit, own, honest.sketch(state, key)))
            if unit.number == honest.plan.units:
                evaluated = _evaluations(honest, ways, unit.end)
        return Measured(self.seed, tuple(distances), tuple(token), rounding, evaluated)

    def _distance(self, honest: Honest, variation: str, unit: Unit, own: Sketch, other: Sketch) -> Distance:
        groups = honest.design.distance(own, other)
        if not all(math.isfinite(value) for value in groups.values()):
            raise ConfigError(
                f"sketch={self.config.sketch.name}: tells equal from different and no more, so there is no tau for it; "
                "take tolerance=exact or another sketch"
            )
        return Distance(phase_of(unit.number, self.config), variation, self.seed, unit.number, groups)


def _check_exact(name: str, unit: Unit, state: State) -> None:
    if exact_digest(state) != exact_digest(unit.end):
        raise ConfigError(
            f"variations: {name} changes the exact part of unit {unit.number}, which no tolerance covers; leave it out"
        )


def _evaluations(honest: Honest, ways: Sequence[Variation], state: State) -> dict[str, Evaluated]:
    own = honest.procedure.evaluate(state, honest.evaluation_set)
    moved = dict.fromkeys(own, 0.0)
    for way in ways:
        other = way.evaluate(honest.procedure, state, honest.evaluation_set)
        for name, value in (other or {}).items():
            moved[name] = max(moved[name], abs(value - own[name]))
    return {name: Evaluated(abs(value), moved[name]) for name, value in own.items()}
