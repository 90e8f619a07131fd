"""How much is measured where: training runs, and for each unit of a phase the ways in which it is computed again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from witbench.protocol.ledger import Plan
from witbench.protocol.tau import AFTER, WARMUP, warmup_units

if TYPE_CHECKING:
    from witbench.config import RunConfig

FEWEST_RUNS, MOST_RUNS = 8, 32
"""Training runs unless a number is given: units of one run are not independent, so there are several."""

Way = tuple[int, int]
"""One way to compute a unit again: index of a variation, and which of its draws."""


@dataclass(frozen=True)
class Share:
    """What is measured on each training run.

    Attributes:
        units: unit -> the ways in which it is computed again.
        phases: phase -> number of measurements.
    """

    units: dict[int, tuple[Way, ...]]
    phases: dict[str, int]


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


def share(config: RunConfig, wanted: int, ways: Sequence[Way], runs: int) -> Share:
    """Spread measurements evenly over the units of each phase, no unit twice in the same way.

    Args:
        config: the configuration.
        wanted: measurements a phase, all runs together; there may be fewer when the units run out.
        ways: the ways of `ways_of`.
        runs: training runs.
    """
    units: dict[int, list[Way]] = {}
    phases = {}
    for phase, members in units_by_phase(config).items():
        count = min(math.ceil(wanted / runs), len(members) * len(ways))
        phases[phase] = count
        for number in range(count):
            lap, at = divmod(number, len(members))
            # Neighbouring units begin with different ways, so that a single lap meets all of them.
            units.setdefault(members[at], []).append(ways[(lap + at) % len(ways)])
    return Share({unit: tuple(given) for unit, given in units.items()}, phases)
