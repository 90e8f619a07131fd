"""Placements: which target positions of which updates an attack touches.

`uniform` is the placement of the Training Witnesses paper; the others separate what matters (the number of touched
units, and whether the last one is among them) from what does not (the amount). A placement draws from the run's shape
alone: it sees neither data nor coins, so an attack that uses nothing else is oblivious of the coins.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from witbench.errors import ConfigError
from witbench.evaluation.law import TAIL_FRACTION, Plan
from witbench.registry import PLACEMENTS

_NUMBER = re.compile(r"\d+(\.\d+)?(e-?\d+)?")

Positions = dict[int, tuple[int, ...]]
"""Touched 0-based update -> its touched target positions, sorted, each below the tokens of an update."""


class Placement(Protocol):
    """What an attack needs of a placement."""

    @property
    def label(self) -> str:
        """Name and knob as rows and figures write them, such as `spread:8`."""
        ...

    def draw(self, amount: int, tokens_per_update: int, updates: int, unit: int, rng: np.random.Generator) -> Positions:
        """Draw `amount` distinct positions.

        Args:
            amount: positions to touch, at least 1.
            tokens_per_update: target tokens of one update.
            updates: T, updates of the run.
            unit: L, updates of a unit.
            rng: source of all randomness.

        Raises:
            ConfigError: the amount does not fit; the message says what would.
        """
        ...


def from_label(label: str) -> tuple[str, dict[str, Any]]:
    """Name and parameters of a placement by its label, such as `spread:8`.

    Raises:
        ConfigError: an unknown placement, or a knob it does not take.
    """
    name, _, knob = label.partition(":")
    made = PLACEMENTS.get(name)
    if not knob:
        return name, {}
    number = float(knob) if _NUMBER.fullmatch(knob) else None
    parameters = list(inspect.signature(made).parameters)
    if number is None or not parameters:
        raise ConfigError(f"placement={label}: {name} takes {'a number' if parameters else 'nothing'} after its name")
    return name, {parameters[0]: int(number) if number == int(number) else number}


class Uniform:
    """Positions over the whole run, uniformly without replacement, the always-checked last unit included."""

    label = "uniform"

    def draw(self, amount: int, tokens_per_update: int, updates: int, unit: int, rng: np.random.Generator) -> Positions:
        """See `Placement.draw`."""
        plan = Plan(updates, unit, tokens_per_update)
        return _grouped(plan, _choose(self.label, amount, plan, range(updates), rng))


class Burst:
    """All positions in one update, drawn among those before the last unit: one touched unit, caught with p.

    Args:
        update: the 0-based update to touch, any of the run; None draws one.
    """

    def __init__(self, *, update: int | None = None) -> None:
        if update is not None and update < 0:
            raise ConfigError(f"placement.update={update}: a 0-based update, or null to draw one")
        self.update = update

    @property
    def label(self) -> str:
        """`burst`, or `burst:UPDATE` when the update is given."""
        return "burst" if self.update is None else f"burst:{self.update}"

    def draw(self, amount: int, tokens_per_update: int, updates: int, unit: int, rng: np.random.Generator) -> Positions:
        """See `Placement.draw`."""
        plan = Plan(updates, unit, tokens_per_update)
        if self.update is not None:
            plan.unit_of(self.update)
            update = self.update
        elif plan.unforced == 0:
            raise ConfigError(
                f"placement=burst: the run is a single unit ({updates} updates, unit={unit}), which is always checked; "
                "raise training.updates or lower protocol.unit"
            )
        else:
            update = int(rng.integers(plan.unforced))
        return _grouped(plan, _choose(self.label, amount, plan, range(update, update + 1), rng))


class Tail:
    """Positions in the last updates of the run, ending before the last unit, uniformly without replacement.

    Args:
        fraction: share of the run's updates, rounded, at least one update.
    """

    def __init__(self, *, fraction: float = TAIL_FRACTION) -> None:
        if not 0 < fraction <= 1:
            raise ConfigError(f"placement.fraction={fraction}: must lie in (0, 1]")
        self.fraction = fraction

    @property
    def label(self) -> str:
        """`tail`, or `tail:FRACTION` when it is not the usual 1 %."""
        return "tail" if self.fraction == TAIL_FRACTION else f"tail:{self.fraction!r}"

    def draw(self, amount: int, tokens_per_update: int, updates: int, unit: int, rng: np.random.Generator) -> Positions:
        """See `Placement.draw`."""
        plan = Plan(updates, unit, tokens_per_update)
        return _grouped(plan, _choose(self.label, amount, plan, plan.tail(self.fraction), rng))


class Spread:
    """Positions shared as evenly as possible by a given number of units, drawn among those before the last.

    Args:
        units: number of touched units.
    """

    def __init__(self, *, units: int) -> None:
        if units < 1:
            raise ConfigError(f"placement.units={units}: at least 1")
        self.units = units

    @property
    def label(self) -> str:
        """`spread:UNITS`."""
        return f"spread:{self.units}"

    def draw(self, amount: int, tokens_per_update: int, updates: int, unit: int, rng: np.random.Generator) -> Positions:
        """See `Placement.draw`."""
        plan = Plan(updates, unit, tokens_per_update)
        if self.units > plan.units - 1:
            raise ConfigError(
                f"placement={self.label}: the run has {plan.units - 1} units before its last; lower placement.units"
            )
        if amount < self.units:
            raise ConfigError(f"amount={amount} cannot touch {self.units} units: raise it or lower placement.units")
        share, more = divmod(amount, self.units)
        chosen = np.sort(rng.choice(plan.units - 1, self.units, replace=False))
        larger = set(rng.choice(self.units, more, replace=False).tolist())
        flat: list[int] = []
        for i, first in enumerate(chosen.tolist()):
            updates_of_unit = range(first * unit, (first + 1) * unit)
            flat.extend(_choose(self.label, share + (i in larger), plan, updates_of_unit, rng))
        return _grouped(plan, flat)


def _choose(label: str, amount: int, plan: Plan, updates: range, rng: np.random.Generator) -> list[int]:
    """Flat positions (update * tokens + position) drawn without replacement from a range of updates."""
    room = len(updates) * plan.tokens
    if not 1 <= amount <= room:
        raise ConfigError(
            f"amount={amount} does not fit placement={label}: between 1 and {room} "
            f"({len(updates)} update(s) of {plan.tokens} target tokens)"
        )
    drawn = rng.choice(room, amount, replace=False, shuffle=False)
    return [updates.start * plan.tokens + offset for offset in drawn.tolist()]


def _grouped(plan: Plan, flat: Iterable[int]) -> Positions:
    placed: dict[int, list[int]] = {}
    for position in sorted(flat):
        update, offset = divmod(position, plan.tokens)
        placed.setdefault(update, []).append(offset)
    return {update: tuple(offsets) for update, offsets in placed.items()}
