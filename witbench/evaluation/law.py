"""The law of detection: with what probability coins that nobody can foresee catch a cheat.

A run of T updates is cut into units of L updates. Each unit is challenged by an independent coin of probability p,
except the last, which is always checked. A cheat is caught when a challenged unit shows it, so what counts is the
units it touches, not its size. For positions drawn at random the law is averaged over the draws; drawing without
replacement has a closed form, because the coins and the positions may be drawn in either order: the cheat escapes
exactly when every position falls outside the checked units, which is hypergeometric given the coins.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from witbench.errors import ConfigError

Draw = Callable[[int, int, int, int, np.random.Generator], Mapping[int, Sequence[int]]]
"""`draw(amount, tokens_per_update, updates, unit, rng)`: touched update -> touched positions."""

TAIL_FRACTION = 0.01


@dataclass(frozen=True)
class Plan:
    """How a run is cut: updates are 0-based, units 1-based, as on the tape.

    Attributes:
        updates: T, updates of the run.
        unit: L, updates of a unit; the last unit may be shorter.
        tokens: target tokens of one update.
    """

    updates: int
    unit: int
    tokens: int

    def __post_init__(self) -> None:
        for name in ("updates", "unit", "tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: must be at least 1")

    @property
    def units(self) -> int:
        """Number of units of the run."""
        return -(-self.updates // self.unit)

    @property
    def unforced(self) -> int:
        """Number of updates before the last unit, that is, of updates a coin may spare."""
        return (self.units - 1) * self.unit

    def unit_of(self, update: int) -> int:
        """1-based unit of a 0-based update."""
        if not 0 <= update < self.updates:
            raise ConfigError(f"update {update} is not one of the run's {self.updates} (0 to {self.updates - 1})")
        return update // self.unit + 1

    def touched(self, updates: Iterable[int]) -> tuple[int, ...]:
        """Sorted units that hold any of the updates."""
        return tuple(sorted({self.unit_of(update) for update in updates}))

    def coin(self, unit: int, p: float) -> float:
        """Probability that a unit is checked: p, or 1 for the last one."""
        return 1.0 if unit == self.units else p

    def capacities(self, updates: range) -> dict[int, int]:
        """Positions that each unit holds within a range of updates."""
        room: dict[int, int] = {}
        for update in updates:
            number = self.unit_of(update)
            room[number] = room.get(number, 0) + self.tokens
        return room

    def tail(self, fraction: float = TAIL_FRACTION) -> range:
        """The last `fraction` of the updates, at least one, ending before the last unit.

        Raises:
            ConfigError: the run has a single unit, or too few updates before its last one.
        """
        if not 0 < fraction <= 1:
            raise ConfigError(f"tail fraction={fraction}: must lie in (0, 1]")
        width = max(1, round(fraction * self.updates))
        if width > self.unforced:
            raise ConfigError(
                f"a tail of {width} updates does not fit before the last unit ({self.unforced} updates): "
                "raise training.updates or lower protocol.unit"
            )
        return range(self.unforced - width, self.unforced)


def fatal_coins(p: float, fatal: int, last: bool = False) -> float:
    """1 - (1-p)^w: detection of a cheat that any of w coins reveals; 1 when the last unit is touched."""
    _check_probability("p", p)
    if fatal < 0:
        raise ConfigError(f"fatal={fatal}: the number of fatal coins cannot be negative")
    if last:
        return 1.0
    if p == 1.0:
        return float(fatal > 0)
    return -math.expm1(fatal * math.log1p(-p))


def conditional(plan: Plan, p: float, units: Sequence[int], detectability: Sequence[float]) -> float:
    """1 - prod(1 - p_t v_t) over the units given: all coins averaged exactly.

    Args:
        plan: the cut of the run, which says which unit is the last (p_t = 1).
        p: probability of a coin.
        units: distinct 1-based units; those left out have v = 0.
        detectability: v_t, the probability that a check of the unit fails, in the order of `units`.
    """
    _check_probability("p", p)
    if len(units) != len(detectability):
        raise ConfigError(f"{len(units)} units but {len(detectability)} detectabilities: give one v for each unit")
    if len(set(units)) != len(units):
        raise ConfigError("a unit is listed twice: a unit has one coin")
    escape = 1.0
    for unit, v in zip(units, detectability, strict=True):
        _check_probability("v", v)
        if not 1 <= unit <= plan.units:
            raise ConfigError(f"unit {unit} is not one of the run's {plan.units} (1 to {plan.units})")
        escape *= 1.0 - plan.coin(unit, p) * v
    return 1.0 - escape


def without_replacement(room: Mapping[int, int], checked: Mapping[int, float], amount: int) -> float:
    """Detection of `amount` positions drawn uniformly without replacement, averaged over the draws, exactly.

    Args:
        room: unit -> positions it offers to the draw.
        checked: unit -> probability that it is checked and shows the cheat.
        amount: positions drawn; at most the sum of the room.
    """
    total = sum(room.values())
    if not 0 <= amount <= total:
        raise ConfigError(f"amount={amount}: between 0 and the {total} positions of the placement")
    # Law of the number of positions inside checked units: binomial for units alike, a convolution over the kinds.
    inside: dict[int, float] = {0: 1.0}
    for (size, q), units in Counter((size, checked[unit]) for unit, size in room.items()).items():
        grown: dict[int, float] = {}
        for count, share in enumerate(_binomial(units, q)):
            if share > 0.0:
                for covered, weight in inside.items():
                    key = covered + count * size
                    grown[key] = grown.get(key, 0.0) + weight * share
        inside = grown
    return 1.0 - sum(weight * _all_outside(total, covered, amount) for covered, weight in inside.items())


def theory(placement: str, amount: int, plan: Plan, p: float, v: float = 1.0) -> float:
    """The law of a placement, averaged over its draws, in closed form.

    Args:
        placement: its label: `uniform`, `burst`, `burst:UPDATE`, `tail`, `tail:FRACTION` or `spread:UNITS`.
        amount: positions touched.
        plan: the cut of the run.
        p: probability of a coin.
        v: probability that the check of a touched unit fails, the same for all.

    Raises:
        ConfigError: an unknown placement (use `monte_carlo` with its `draw`), or an amount that does not fit.
    """
    _check_probability("p", p)
    _check_probability("v", v)
    if amount == 0:
        return 0.0
    allowed = fitting(placement, plan)
    if amount not in allowed:
        raise ConfigError(f"amount={amount} does not fit placement={placement}: {allowed[0]} to {allowed[-1]}")
    name, knob = _parse(placement)
    if name == "burst":
        return v * (p if knob is None else plan.coin(plan.unit_of(int(knob)), p))
    if name == "spread":
        return fatal_coins(p * v, int(knob or 0))
    room = plan.capacities(_window(name, knob, plan))
    return without_replacement(room, {unit: plan.coin(unit, p) * v for unit in room}, amount)


def theory_spread(placement: str, amount: int, plan: Plan, p: float) -> float:
    """Standard deviation, over draws of a placement, of the detection probability with all coins averaged.

    The escape (1-p)^u squared is an escape too, that of coins of probability 1 - (1-p)^2, so both moments are laws.

    Raises:
        ConfigError: see `theory`.
    """
    escape = 1.0 - theory(placement, amount, plan, p)
    squared = 1.0 - theory(placement, amount, plan, 1.0 - (1.0 - p) ** 2)
    return math.sqrt(max(0.0, squared - escape**2))


def fitting(placement: str, plan: Plan) -> range:
    """Amounts that a placement can hold.

    Raises:
        ConfigError: a placement without a closed form, or one the run is too short for.
    """
    name, knob = _parse(placement)
    if name == "spread":
        units = int(knob or 0)
        if units > plan.units - 1:
            raise ConfigError(f"placement={placement}: the run has {plan.units - 1} units before its last")
        return range(units, units * plan.unit * plan.tokens + 1)
    if name == "burst":
        if knob is None and plan.unforced == 0:
            raise ConfigError("placement=burst: the run is a single unit, which is always checked")
        return range(1, plan.tokens + 1)
    return range(1, len(_window(name, knob, plan)) * plan.tokens + 1)


def monte_carlo(draw: Draw, amount: int, plan: Plan, p: float, draws: int = 2000, seed: int = 0) -> tuple[float, float]:
    """Mean of the law over draws of any placement, and its standard error; the same for the same seed."""
    if draws < 2:
        raise ConfigError(f"draws={draws}: at least 2")
    rng = np.random.default_rng(seed)
    rates: NDArray[np.float64] = np.empty(draws)
    for i in range(draws):
        units = plan.touched(draw(amount, plan.tokens, plan.updates, plan.unit, rng))
        rates[i] = conditional(plan, p, units, [1.0] * len(units))
    return float(rates.mean()), float(rates.std(ddof=1) / math.sqrt(draws))


def _parse(placement: str) -> tuple[str, float | None]:
    """Name and knob of a label, of the placements with a closed form."""
    name, _, text = placement.partition(":")
    try:
        knob = float(text) if text else None
    except ValueError:
        knob = math.nan
    whole = knob is not None and math.isfinite(knob) and knob == int(knob)
    known = {
        "uniform": knob is None,
        "tail": knob is None or math.isfinite(knob),
        "burst": knob is None or whole,
        "spread": whole and knob is not None and knob >= 1,
    }
    if not known.get(name, False):
        raise ConfigError(
            f"placement={placement}: no closed form; known are uniform, burst, burst:UPDATE, tail, tail:FRACTION and "
            "spread:UNITS. Average over its draws with monte_carlo."
        )
    return name, knob


def _window(name: str, knob: float | None, plan: Plan) -> range:
    """Updates that uniform or tail draw from."""
    if name == "uniform":
        return range(plan.updates)
    return plan.tail(TAIL_FRACTION if knob is None else knob)


def _binomial(n: int, q: float) -> list[float]:
    """Probabilities of 0 to n successes, by logarithms: scipy's overflow at the smallest q."""
    if q in (0.0, 1.0):
        return [float(k == n * q) for k in range(n + 1)]
    yes, no = math.log(q), math.log1p(-q)
    whole = math.lgamma(n + 1)
    logs = [whole - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * yes + (n - k) * no for k in range(n + 1)]
    return [math.exp(log) for log in logs]


def _all_outside(total: int, covered: int, amount: int) -> float:
    """C(total-covered, amount) / C(total, amount): no drawn position is covered."""
    outside = total - covered
    if amount > outside:
        return 0.0
    if amount == 0 or covered == 0:
        return 1.0
    log = math.lgamma(outside + 1) - math.lgamma(outside - amount + 1)
    return math.exp(log + math.lgamma(total - amount + 1) - math.lgamma(total + 1))


def _check_probability(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name}={value}: must lie in [0, 1]")
