"""How much is measured where: training runs, and for each unit of a phase the ways in which it is computed again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from witbench.protocol.ledger import Plan
from witbench.protocol.tau import AFTER, WARMUP, warmup_units

if TYPE_CHECKING:
    from witbench.config import RunConfig

FEWEST_RUNS, MOST_RUNS = 8, 32
"""Training runs unless a number is given: units of one run are not independent, so there are several."""

FIRST = 1
"""The unit whose noise is the wildest. Adam's first step divides a gradient by its own size plus epsilon, so an element
whose gradient is near zero moves by up to the learning rate times its rounding error over epsilon. Which run has such
an element is a matter of its seed: one in some has a distance thirty times the usual one. So this unit is measured on
many seeds, not in many ways."""

Way = tuple[int, int]
"""One way to compute a unit again: index of a variation, and which of its draws."""


Share = dict[int, tuple[Way, ...]]
"""Unit -> the ways in which one run computes it again."""


def phase_of(unit: int, config: RunConfig) -> str:
    """The phase that a unit (1-based) belongs to."""
    return WARMUP if unit <= warmup_units(config.training.updates, config.protocol.unit) else AFTER


def units_by_phase(config: RunConfig) -> dict[str, list[int]]:
    """Phase -> its units in one run; a phase may have none."""
    units = range(1, Plan(config.training.updates, config.protocol.unit).units + 1)
    return {phase: [unit for unit in units if phase_of(unit, config) == phase] for phase in (WARMUP, AFTER)}


def ways_of(draws: Sequence[int]) -> list[Way]:
    """All ways that variations with so many draws have, the first of each before the second of any."""
    return [(index, draw) for draw in range(max(draws, default=0)) for index, most in enumerate(draws) if draw < most]


def runs_needed(config: RunConfig, wanted: int, ways: int) -> int:
    """Training runs for a number of measurements a phase, within bounds."""
    counts = [len(units) for units in units_by_phase(config).values() if units]
    return min(MOST_RUNS, max([FEWEST_RUNS, *(math.ceil(wanted / (count * ways)) for count in counts)]))


def share(units: Sequence[int], count: int, ways: Sequence[Way], run: int, runs: int) -> Share:
    """What one run measures: spread over all units and ways, no unit twice in the same way.

    Runs take turns, so that together they meet every unit and every way even where each of them has few measurements.

    Args:
        units: the units to choose from.
        count: measurements of this run; fewer when units and ways run out.
        ways: the ways of `ways_of`.
        run: number of this run, from 0.
        runs: all of them.
    """
    given: dict[int, list[Way]] = {}
    a_lap = min(count, len(units))
    for number in range(min(count, len(units) * len(ways))):
        lap, at = divmod(number, a_lap)
        unit = units[(at * runs + run) * len(units) // (a_lap * runs)]
        given.setdefault(unit, []).append(ways[(lap + at + run) % len(ways)])
    return {unit: tuple(chosen) for unit, chosen in given.items()}


def shares(config: RunConfig, wanted: int, ways: Sequence[Way], runs: int) -> list[Share]:
    """What each run measures, for `wanted` measurements a phase, all runs together."""
    count = math.ceil(wanted / runs)
    phases = units_by_phase(config).values()
    return [
        {unit: given for units in phases for unit, given in share(units, count, ways, run, runs).items()}
        for run in range(runs)
    ]


def first_shares(count: int, ways: Sequence[Way], run: int = 0) -> list[Share]:
    """One measurement of the first unit for each of `count` more runs, which go no further."""
    return [{FIRST: (ways[(run + number) % len(ways)],)} for number in range(count)]
