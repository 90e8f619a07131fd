"""What a certificate proves, in numbers: pure functions, and the running tally of the units that count."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from witbench.protocol.switches import Switches
    from witbench.protocol.tau import Tau

ALPHA = 0.01
"""One minus the confidence of the bound on failing units."""

TOUCHED = (1, 10, 100, 1000)
"""Numbers of touched units for which the detection probability is shown."""


def failing_bound(checks: int, attempts: int, alpha: float = ALPHA) -> float:
    """Largest fraction of units that would fail replay, at confidence 1 - alpha, after all checks passed.

    Args:
        checks: passed checks of units drawn by coin alone (the last unit, always challenged, is none).
        attempts: attempts at this job; the best of R is shown, so alpha is divided by R.
        alpha: one minus the confidence.
    """
    if checks == 0:
        return 1.0
    return float(1.0 - (alpha / attempts) ** (1.0 / checks))


def detection(p: float, coins: int) -> float:
    """Probability that at least one of `coins` fatal coins falls: 1 - (1 - p)^coins."""
    if p >= 1.0:
        return 1.0 if coins else 0.0
    return -math.expm1(coins * math.log1p(-p))


def expected_checks(p: float, units: int) -> float:
    """Expected number of challenged units: each by its coin, the last one always."""
    return p * (units - 1) + 1.0 if units else 0.0


def longest_stretch(checked: Iterable[int]) -> int:
    """Length of the longest run of units that were not checked; one byte a unit, zero for not checked."""
    longest = run = 0
    for value in checked:
        run = 0 if value else run + 1
        longest = max(longest, run)
    return longest


def drift(units: int, tau: Tau, amplification: float = 1.0) -> dict[str, float]:
    """Displacement per group that tolerances leave uncertified, first order: Lambda times the sum of tau.

    Args:
        units: units of the run.
        tau: the tolerances, by unit; `exact` leaves none.
        amplification: Lambda >= 1; 1 gives a lower bound where it was not measured.
    """
    return {group: total * amplification for group, total in tau.total(units).items()}


@dataclass(frozen=True)
class Numbers:
    """The numbers of one complete run; units that a rewind dropped count for nothing.

    Attributes:
        units, updates, tokens: what the run trained on, as declared.
        p: challenge probability.
        drawn, passed: challenged units, the last one included, and those whose replay passed.
        coins: passed checks drawn by coin alone.
        expected: expected number of challenged units.
        longest_unchecked: longest stretch of units without a check.
        rewinds: rewinds of the run.
        attempts: attempts that the bound accounts for.
        confidence, failing_at_most: "with 99% confidence at most x of the units would fail replay".
        detection: touched units -> probability of being caught, at worst, the last unit not among them.
        detection_last: the same when the last unit is touched.
        drift: group -> lower bound of the uncertified drift (Lambda = 1, not measured); empty for `exact`.
    """

    units: int
    updates: int
    tokens: int
    p: float
    drawn: int
    passed: int
    coins: int
    expected: float
    longest_unchecked: int
    rewinds: int
    attempts: int
    confidence: float
    failing_at_most: float
    detection: Mapping[int, float]
    detection_last: float
    drift: Mapping[str, float]

    def to_plain(self) -> dict[str, Any]:
        """JSON scalars only."""
        plain = asdict(self)
        plain["detection"] = {str(touched): value for touched, value in self.detection.items()}
        return plain


_UNCHECKED, _DRAWN, _PASSED = 0, 1, 2


@dataclass
class Tally:
    """Counts of the units that are part of the run: a byte a unit, and tokens as runs of equal values.

    Attributes:
        rewinds: rewinds so far.
    """

    rewinds: int = 0
    _checks: bytearray = field(default_factory=bytearray)
    _tokens: list[tuple[int, int]] = field(default_factory=list)

    @property
    def units(self) -> int:
        """Units that count."""
        return len(self._checks)

    @property
    def tokens(self) -> int:
        """Their tokens."""
        starts = [start for start, _ in self._tokens] + [self.units]
        return sum(tokens * (end - start) for (start, tokens), end in zip(self._tokens, starts[1:], strict=True))

    def add(self, tokens: int, challenged: bool) -> None:
        """Count the next unit."""
        if not self._tokens or self._tokens[-1][1] != tokens:
            self._tokens.append((self.units, tokens))
        self._checks.append(_DRAWN if challenged else _UNCHECKED)

    def passed(self, unit: int) -> None:
        """Count a passed replay of a unit (1-based)."""
        self._checks[unit - 1] = _PASSED

    def rewind(self, boundary: int) -> None:
        """Drop all units after a boundary."""
        self.rewinds += 1
        del self._checks[boundary:]
        self._tokens = [(start, tokens) for start, tokens in self._tokens if start < boundary]

    def numbers(self, updates: int, p: float, attempts: int, switches: Switches, tau: Tau) -> Numbers:
        """The numbers of the complete run."""
        passed = self._checks.count(_PASSED)
        coins = self._checks[:-1].count(_PASSED)
        return Numbers(
            units=self.units,
            updates=updates,
            tokens=self.tokens,
            p=p,
            drawn=passed + self._checks.count(_DRAWN),
            passed=passed,
            coins=coins,
            expected=expected_checks(p, self.units),
            longest_unchecked=longest_stretch(self._checks),
            rewinds=self.rewinds,
            attempts=attempts,
            confidence=1.0 - ALPHA,
            failing_at_most=failing_bound(coins, attempts),
            detection={u: detection(p, switches.fatal_coins(u)) for u in TOUCHED if u <= self.units},
            detection_last=1.0,
            drift=drift(self.units, tau),
        )
