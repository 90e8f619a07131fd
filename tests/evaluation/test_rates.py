"""Intervals: known values, the rules at 0 and 1, effective trials; their coverage is simulated in test_coverage.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from witbench.errors import ConfigError
from witbench.evaluation.rates import (
    binomial_rate,
    clopper_pearson,
    clustered_rate,
    conditional_rate,
    effective_trials,
)


@pytest.mark.parametrize(("n", "low"), [(20, 0.896), (50, 0.956), (100, 0.977)])
def test_all_detected_known_values(n: int, low: float) -> None:
    rate = binomial_rate(n, n)
    assert rate.low == pytest.approx(low, abs=5e-4)
    assert rate.high == 1.0


def test_beta_ends_are_the_posterior_quantiles() -> None:
    # The median-free check: a Beta(a, 1) quantile is q^(1/a), a Beta(1, b) quantile 1 - (1-q)^(1/b).
    rate = binomial_rate(0, 9)
    assert rate.high == pytest.approx(1 - 0.1 ** (1 / 10))
    assert rate.high95 == pytest.approx(1 - 0.025 ** (1 / 10))
    assert rate.low == 0.0


def test_jeffreys_is_tighter_at_zero() -> None:
    assert binomial_rate(0, 1000, prior="jeffreys").high95 == pytest.approx(2.51e-3, abs=5e-6)
    assert binomial_rate(0, 1000).high95 == pytest.approx(3.68e-3, abs=5e-6)
    with pytest.raises(ConfigError, match="uniform, jeffreys"):
        binomial_rate(0, 10, prior="flat")


@given(st.integers(1, 400), st.data(), st.sampled_from(["uniform", "jeffreys"]))
def test_no_interval_has_zero_width_and_all_hold_the_rate(n: int, data: st.DataObject, prior: str) -> None:
    k = data.draw(st.integers(0, n))
    rate = binomial_rate(k, n, prior=prior)
    assert rate.low95 <= rate.low <= rate.estimate <= rate.high <= rate.high95
    assert rate.high - rate.low > 1e-4
    assert rate.low95 >= 0 and rate.high95 <= 1


def test_clopper_pearson_against_scipy() -> None:
    for k, n in ((0, 10), (3, 10), (10, 10), (77, 200)):
        expected = binomtest(k, n).proportion_ci(0.95, method="exact")
        assert clopper_pearson(k, n) == pytest.approx((expected.low, expected.high))
        greater = binomtest(k, n, alternative="greater").proportion_ci(0.95, method="exact")
        assert clopper_pearson(k, n, side="lower") == pytest.approx((greater.low, 1.0))
        less = binomtest(k, n, alternative="less").proportion_ci(0.95, method="exact")
        assert clopper_pearson(k, n, side="upper") == pytest.approx((0.0, less.high))


def test_as_many_honest_replays_as_a_claim_needs() -> None:
    assert clopper_pearson(0, 2995, side="upper")[1] < 1e-3 < clopper_pearson(0, 2994, side="upper")[1]


@pytest.mark.parametrize(("k", "n"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_counts_are_refused(k: int, n: int) -> None:
    with pytest.raises(ConfigError, match="need n >= 1"):
        binomial_rate(k, n)
    with pytest.raises(ConfigError, match="need n >= 1"):
        clopper_pearson(k, n)


def test_effective_trials_at_the_extremes() -> None:
    rng = np.random.default_rng(1)
    clusters = [i // 20 for i in range(1000)]
    independent = effective_trials(rng.random(1000).tolist(), clusters)
    assert 600 < independent <= 1000
    assert effective_trials(rng.random(50).tolist(), list(range(50))) == 50
    same = np.repeat(rng.random(50), 20).tolist()
    assert effective_trials(same, clusters) == pytest.approx(50)
    assert effective_trials([1.0] * 1000, clusters) == 50
    assert effective_trials([0.0, 1.0, 1.0], ["a", "a", "a"]) == 1


def test_effective_trials_recover_a_known_correlation() -> None:
    rng = np.random.default_rng(2)
    rates = rng.beta(0.5 * 9, 0.5 * 9, size=4000)  # ICC = 1 / (a + b + 1) = 0.1
    outcomes = (rng.random((4000, 10)) < rates[:, None]).astype(float)
    effective = effective_trials(outcomes.ravel().tolist(), [i // 10 for i in range(40_000)])
    assert effective / 40_000 == pytest.approx(1 / (1 + 9 * 0.1), rel=0.05)


def test_clusters_widen_the_interval() -> None:
    outcomes = [i < 10 for i in range(20) for _ in range(10)]
    clusters = [i for i in range(20) for _ in range(10)]
    wide = clustered_rate(outcomes, clusters)
    assert wide.effective == pytest.approx(20)
    assert (wide.detections, wide.trials) == (100, 200)
    narrow = binomial_rate(100, 200)
    assert wide.high - wide.low > 2.5 * (narrow.high - narrow.low)


@pytest.mark.parametrize("k", [0, 3, 12, 20])
@pytest.mark.parametrize("prior", ["uniform", "jeffreys"])
def test_conditional_rate_of_yes_and_no_is_the_beta_posterior(k: int, prior: str) -> None:
    values = [1.0] * k + [0.0] * (20 - k)
    got = conditional_rate(values, [1.0] * 20, list(range(20)), prior=prior)
    expected = binomial_rate(k, 20, prior=prior)
    for end in ("low", "high", "low95", "high95"):
        assert getattr(got, end) == pytest.approx(getattr(expected, end), abs=0.012)
    assert got.estimate == expected.estimate


def test_conditional_rate_of_a_burst_is_p_times_the_posterior_of_v() -> None:
    got = conditional_rate([0.1] * 20, [0.1] * 20, list(range(20)))
    assert got.low == pytest.approx(0.1 * binomial_rate(20, 20).low, abs=1e-3)
    assert got.high == pytest.approx(0.1)
    assert got.low < got.estimate == pytest.approx(0.1)


def test_more_placements_of_one_training_run_do_not_close_the_interval() -> None:
    rng = np.random.default_rng(3)
    ideals = rng.uniform(0.2, 0.8, 400).tolist()
    got = conditional_rate(ideals, ideals, [i // 20 for i in range(400)])
    assert got.effective == 20
    assert got.low == pytest.approx(float(np.mean(ideals)) * binomial_rate(20, 20).low, rel=0.03)


def test_conditional_rate_of_an_undetectable_attack_stays_open() -> None:
    got = conditional_rate([0.0] * 20, [0.1] * 20, list(range(20)))
    assert got.estimate == got.low == 0.0
    assert got.high == pytest.approx(0.1 * binomial_rate(0, 20).high, abs=1e-3)


def test_conditional_rate_is_a_function_of_its_arguments() -> None:
    arguments = ([0.1, 0.5, 0.2], [0.2, 0.5, 0.2], ["a", "a", "b"])
    assert conditional_rate(*arguments) == conditional_rate(*arguments)
    assert conditional_rate(*arguments, seed=1) != conditional_rate(*arguments)


@pytest.mark.parametrize(("values", "ideals"), [([], []), ([0.1], [0.1, 0.2]), ([1.2], [1.0]), ([0.1], [-0.1])])
def test_conditional_rate_refuses(values: list[float], ideals: list[float]) -> None:
    with pytest.raises(ConfigError):
        conditional_rate(values, ideals, list(range(len(values))))
