"""Confidence sequences: intervals of a rate that stay valid however often they are looked at.

A fixed-n interval promises its coverage for an n that was fixed before the first trial. Looked at after every trial,
and stopped when it pleases, it misses far more often than it says. The beta-binomial mixture (the method of mixtures;
Robbins 1970, "Statistical methods related to the law of the iterated logarithm") does not: with theta the true rate,

    M_n(theta) = B(k+a, n-k+b) / B(a, b) / (theta^k (1-theta)^(n-k))

is a martingale of mean 1, so by Ville's inequality it ever reaches 1/alpha with probability at most alpha, and the set
of all theta with M_n(theta) < 1/alpha holds the true rate at all n at once with probability at least 1 - alpha.

It holds for trials that are independent, or at least have the same rate whatever came before: trials of different
training runs and keys. Many trials of one run are not that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scipy.optimize import brentq
from scipy.special import betaln

from witbench.errors import ConfigError


def confidence_sequence(
    k: int, n: int, confidence: float = 0.95, a: float = 1.0, b: float = 1.0
) -> tuple[float, float]:
    """Interval of a rate after k of n, valid at all n at once.

    Args:
        k: detections so far.
        n: trials so far; 0 gives (0, 1).
        confidence: probability with which the intervals of all n hold the rate, together.
        a: of the mixing Beta(a, b), which says where the interval is to be narrow; it is valid for any.
        b: see `a`.
    """
    if n < 0 or not 0 <= k <= n:
        raise ConfigError(f"k={k}, n={n}: need n >= 0 and 0 <= k <= n")
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence={confidence}: must lie in (0, 1)")
    if not (0 < a < math.inf and 0 < b < math.inf):
        raise ConfigError(f"a={a}, b={b}: must be positive and finite")
    if n == 0:
        return 0.0, 1.0
    # theta lies within when k log(theta) + (n-k) log(1-theta) exceeds this.
    least = float(betaln(k + a, n - k + b) - betaln(a, b)) + math.log1p(-confidence)
    if k == 0:
        return 0.0, -math.expm1(least / n)
    if k == n:
        return math.exp(least / n), 1.0

    # In the log-odds x the function is concave and falls on both sides of its top, however near 0 or 1 theta lies.
    def excess(x: float) -> float:
        return k * _log_sigmoid(x) + (n - k) * _log_sigmoid(-x) - least

    top = math.log(k / (n - k))
    return _sigmoid(_crossing(excess, top, -1.0)), _sigmoid(_crossing(excess, top, 1.0))


@dataclass(frozen=True)
class StoppingRule:
    """When enough trials have run: a rule that may be asked after every trial without costing coverage.

    The interval to report is the `confidence_sequence` of the trials at which the rule stopped. Count trials in the
    order they were planned, not in which they finished: a run that is caught ends earlier than one that is not, so the
    first to finish are no fair sample.

    Attributes:
        width: stop when the interval is no wider than this; None: never for that reason.
        excludes: stop when the interval does not hold this rate; None: never for that reason.
        confidence: of the sequence.
    """

    width: float | None = None
    excludes: float | None = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if self.width is None and self.excludes is None:
            raise ConfigError("a stopping rule needs a width or a rate to exclude; without either it never stops")
        if self.width is not None and not 0 < self.width < 1:
            raise ConfigError(f"width={self.width}: must lie in (0, 1)")
        if self.excludes is not None and not 0 <= self.excludes <= 1:
            raise ConfigError(f"excludes={self.excludes}: must lie in [0, 1]")
        if not 0 < self.confidence < 1:
            raise ConfigError(f"confidence={self.confidence}: must lie in (0, 1)")

    def enough(self, k: int, n: int) -> bool:
        """Whether k detections in n trials are enough."""
        low, high = confidence_sequence(k, n, self.confidence)
        if self.width is not None and high - low <= self.width:
            return True
        return self.excludes is not None and not low <= self.excludes <= high

    def stop(self, outcomes: Iterable[bool]) -> int | None:
        """The number of trials, in planned order, after which the rule says enough; None when it does not yet.

        A pure function of the outcomes: a resumed run stops where the uninterrupted one would have.
        """
        k = 0
        for n, outcome in enumerate(outcomes, start=1):
            k += outcome
            if self.enough(k, n):
                return n
        return None


def _crossing(excess: Callable[[float], float], top: float, direction: float) -> float:
    """Where the function falls through zero on one side of its top."""
    step = 1.0
    while excess(top + direction * step) > 0:
        step *= 2
    return float(brentq(excess, top, top + direction * step, xtol=1e-12, rtol=1e-14))


def _log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


def _sigmoid(x: float) -> float:
    return math.exp(_log_sigmoid(x))
