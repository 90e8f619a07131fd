"""Confidence sequences: the closed form, its ends, and the exact probability of ever missing the rate."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import betabinom, binom

from witbench.errors import ConfigError
from witbench.evaluation.rates import clopper_pearson
from witbench.evaluation.sequences import StoppingRule, confidence_sequence

Interval = Callable[[int, int], tuple[float, float]]


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
@pytest.mark.parametrize(("a", "b"), [(1, 1), (0.5, 0.5), (2, 7)])
@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (0, 40), (40, 40), (3, 40), (500, 1000), (1, 100_000)])
def test_the_ends_are_where_the_bayes_factor_is_one_over_alpha(
    k: int, n: int, a: float, b: float, confidence: float
) -> None:
    """By scipy's two distributions, whose binomial coefficients cancel: another path to the same number."""
    low, high = confidence_sequence(k, n, confidence, a, b)
    assert low <= k / n <= high
    for end in (low, high):
        if 0 < end < 1:
            factor = betabinom.logpmf(k, n, a, b) - binom.logpmf(k, n, end)
            assert factor == pytest.approx(-np.log(1 - confidence), abs=1e-5)
    assert (low == 0) == (k == 0)
    assert (high == 1) == (k == n)


def test_known_values_at_zero_and_all() -> None:
    # B(1, n+1) = 1/(n+1): the bound is 1 - (alpha/(n+1))^(1/n).
    assert confidence_sequence(0, 99)[1] == pytest.approx(1 - (0.05 / 100) ** (1 / 99), rel=1e-12)
    assert confidence_sequence(99, 99)[0] == pytest.approx((0.05 / 100) ** (1 / 99), rel=1e-12)
    assert confidence_sequence(0, 0) == (0.0, 1.0)


@given(st.integers(1, 300), st.data())
def test_it_mirrors_narrows_with_alpha_and_is_wider_than_a_fixed_n_interval(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    low, high = confidence_sequence(k, n)
    assert confidence_sequence(n - k, n) == pytest.approx((1 - high, 1 - low), abs=1e-9)
    inner = confidence_sequence(k, n, 0.8)
    assert low <= inner[0] <= inner[1] <= high
    fixed = clopper_pearson(k, n)
    assert low <= fixed[0] + 1e-12
    assert fixed[1] <= high + 1e-12


def test_it_closes_as_trials_come_in() -> None:
    widths = [np.diff(confidence_sequence(n // 10, n))[0] for n in (10, 100, 1000, 10_000, 100_000)]
    assert widths == sorted(widths, reverse=True)
    fixed = np.diff(clopper_pearson(10_000, 100_000))[0]
    assert fixed < widths[-1] < 2.5 * fixed, "the price of looking is a factor that grows like sqrt(log n)"


def ever_missed(interval: Interval, rate: float, looks: range) -> float:
    """Exact probability that any look's interval misses the rate: the law of k, cut down at each look."""
    law = np.ones(1)
    missed = 0.0
    for n in range(1, looks[-1] + 1):
        law = np.convolve(law, [1 - rate, rate])
        if n in looks:
            low, high = _held(interval, rate, n)
            missed += law[:low].sum() + law[high + 1 :].sum()
            law[:low] = law[high + 1 :] = 0.0
    return float(missed)


def _held(interval: Interval, rate: float, n: int) -> tuple[int, int]:
    """The smallest and largest k whose interval holds the rate; the ends grow with k, so those between hold it too."""
    top, bottom = round(rate * n), round(rate * n)
    low, high = -1, n + 1
    while top - low > 1:
        middle = (low + top) // 2
        low, top = (low, middle) if interval(middle, n)[1] >= rate else (middle, top)
    while high - bottom > 1:
        middle = (high + bottom) // 2
        high, bottom = (high, middle) if interval(middle, n)[0] <= rate else (middle, bottom)
    return top, bottom


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5, 0.95])
def test_the_chance_of_ever_missing_is_below_alpha(rate: float) -> None:
    every = range(1, 251)
    assert ever_missed(confidence_sequence, rate, every) <= 0.05
    assert ever_missed(lambda k, n: confidence_sequence(k, n, 0.8), rate, every) <= 0.2


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_a_fixed_n_interval_that_is_peeked_at_misses_often(rate: float) -> None:
    forty = range(25, 1001, 25)
    assert ever_missed(clopper_pearson, rate, range(1000, 1001)) <= 0.05
    assert ever_missed(clopper_pearson, rate, forty) > 3 * 0.05
    assert ever_missed(confidence_sequence, rate, forty) <= 0.05


def test_the_rule_stops_at_a_width_or_when_a_rate_is_out() -> None:
    narrow = StoppingRule(width=0.1)
    first = next(n for n in range(1, 1000) if narrow.enough(0, n))
    assert confidence_sequence(0, first)[1] <= 0.1 < confidence_sequence(0, first - 1)[1]
    low, high = confidence_sequence(30, 40)
    assert StoppingRule(excludes=low - 0.01).enough(30, 40)
    assert StoppingRule(excludes=high + 0.01).enough(30, 40)
    assert not StoppingRule(excludes=0.75).enough(30, 40)
    assert StoppingRule(width=0.01, excludes=low - 0.01).enough(30, 40)


def test_a_rule_asked_again_stops_at_the_same_trial() -> None:
    outcomes = (np.random.default_rng(4).random(2000) < 0.3).tolist()
    rule = StoppingRule(width=0.2, excludes=0.1)
    stopped = rule.stop(outcomes)
    assert stopped is not None
    assert rule.stop(outcomes[:stopped]) == stopped
    assert rule.stop(outcomes[: stopped - 1]) is None
    assert rule.stop([]) is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((-1, 5), "k=-1"),
        ((6, 5), "k=6"),
        ((0, -1), "n=-1"),
        ((1, 5, 1.0), "confidence=1.0"),
        ((1, 5, 0.95, 0.0, 1.0), "a=0.0"),
        ((1, 5, 0.95, 1.0, float("inf")), "b=inf"),
    ],
)
def test_impossible_arguments_are_refused(arguments: tuple[float, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        confidence_sequence(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rule", [{}, {"width": 0.0}, {"width": 1.5}, {"excludes": -0.1}, {"width": 0.1, "confidence": 1}]
)
def test_a_rule_that_cannot_work_is_refused(rule: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"never stops|must lie in"):
        StoppingRule(**rule)
