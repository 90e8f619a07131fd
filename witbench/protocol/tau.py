"""The tolerances of a run by unit: warm-up, where honest noise is far larger, has its own. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

WARMUP_PART = 10
"""The warm-up phase is one part in so many of a run's updates, rounded up."""

WARMUP, AFTER = "warmup", "after"
"""Names of the two phases."""


def warmup_units(updates: int, unit: int) -> int:
    """Units of the warm-up phase: those that hold one of the first tenth of the updates, rounded up."""
    early = math.ceil(updates / WARMUP_PART)
    return math.ceil(early / unit)


@dataclass(frozen=True)
class Tau:
    """How far a replayed unit may lie from the sketched one.

    Attributes:
        after: group -> tolerance, in the distance of the sketch design; empty for `exact`.
        warmup: the same for the units of the warm-up phase; empty when there is no such phase.
        units: units of the warm-up phase, counted from unit 1; zero when there is none.
        evaluation: name of an evaluated value -> how far a shown one may lie from the prover's; a value without an
            entry must be the same number.
    """

    after: Mapping[str, float] = field(default_factory=dict)
    warmup: Mapping[str, float] = field(default_factory=dict)
    units: int = 0
    evaluation: Mapping[str, float] = field(default_factory=dict)

    def of(self, unit: int) -> Mapping[str, float]:
        """Group -> tolerance of a unit (1-based)."""
        return self.warmup if unit <= self.units else self.after

    def scaled(self, factor: float) -> Tau:
        """Every tolerance of a state times a factor; those of evaluations stay."""
        after, warmup = ({g: factor * value for g, value in each.items()} for each in (self.after, self.warmup))
        return Tau(after, warmup, self.units, self.evaluation)

    def phases(self) -> dict[str, Mapping[str, float]]:
        """Phase -> group -> tolerance, the warm-up first."""
        return {WARMUP: self.warmup, AFTER: self.after}

    def total(self, units: int) -> dict[str, float]:
        """Group -> sum of the tolerances of the first `units` units."""
        early = min(self.units, units)
        return {g: early * self.warmup.get(g, 0.0) + (units - early) * value for g, value in self.after.items()}

    def trouble(self) -> str | None:
        """What is wrong with it on its own, or None."""
        if (self.units > 0) != bool(self.warmup):
            return "a warm-up phase has units and tolerances, or neither"
        if self.warmup and self.warmup.keys() != self.after.keys():
            return "the two phases have tolerances of different groups"
        values = [*self.after.values(), *self.warmup.values(), *self.evaluation.values()]
        if not all(math.isfinite(value) and value >= 0.0 for value in values):
            return "a tau is negative or not finite"
        return None
