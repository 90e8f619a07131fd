"""Coverage of every interval, by simulation: what it promises is what it does.

Every bound is a promise of the interval give or take 4 standard errors of the simulation itself.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np
import pytest
from scipy.stats import betabinom, norm, t

from witbench.attacks.placement import Uniform
from witbench.evaluation.law import Plan, conditional, fatal_coins, theory
from witbench.evaluation.rates import PRIORS, binomial_rate, clopper_pearson, clustered_rate, conditional_rate
from witbench.evaluation.sequences import StoppingRule, confidence_sequence

pytestmark = pytest.mark.slow

SIDES: tuple[Literal["two", "lower", "upper"], ...] = ("two", "lower", "upper")


def slack(share: float, repeats: int) -> float:
    """4 standard errors of a simulated share."""
    return float(4 * (share * (1 - share) / repeats) ** 0.5)


@pytest.mark.parametrize("n", [5, 20, 200])
@pytest.mark.parametrize("prior", ["uniform", "jeffreys"])
def test_credible_intervals_cover_as_promised_on_average_over_their_prior(n: int, prior: str) -> None:
    repeats = 100_000
    rng = np.random.default_rng(n)
    mass = PRIORS[prior]
    rates = rng.beta(mass, mass, repeats)
    hits = rng.binomial(n, rates)
    intervals = [binomial_rate(k, n, prior=prior) for k in range(n + 1)]
    # The boundary rule closes the lower tail when k = 0 and the upper one when k = n.
    edge = 2 * float(betabinom.pmf(0, n, mass, mass))
    for low, high, promised in (("low", "high", 0.8 + 0.1 * edge), ("low95", "high95", 0.95 + 0.025 * edge)):
        lows = np.asarray([getattr(each, low) for each in intervals])[hits]
        highs = np.asarray([getattr(each, high) for each in intervals])[hits]
        share = float(np.mean((lows <= rates) & (rates <= highs)))
        assert abs(share - promised) <= slack(promised, repeats)


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize("n", [3, 20, 150])
@pytest.mark.parametrize("rate", [0.005, 0.1, 0.5, 0.9])
def test_exact_intervals_cover_at_least_as_promised_at_every_rate(rate: float, n: int, confidence: float) -> None:
    repeats = 100_000
    hits = np.random.default_rng(n).binomial(n, rate, repeats)
    for side in SIDES:
        ends = np.asarray([clopper_pearson(k, n, confidence=confidence, side=side) for k in range(n + 1)])[hits]
        share = float(np.mean((ends[:, 0] <= rate) & (rate <= ends[:, 1])))
        assert share >= confidence - slack(confidence, repeats), side


@pytest.mark.parametrize("side", ["lower", "upper"])
def test_one_sided_claims_are_no_more_careful_than_they_must_be(side: Literal["lower", "upper"]) -> None:
    """At the least favourable rate, an end of the interval itself, the coverage is the nominal one."""
    repeats, n = 100_000, 60
    low, high = clopper_pearson(20, n, side=side)
    # Just beyond the end, so that k = 20 misses it: its tail then has all of alpha.
    rate = low - 1e-9 if side == "lower" else high + 1e-9
    hits = np.random.default_rng(1).binomial(n, rate, repeats)
    ends = np.asarray([clopper_pearson(k, n, side=side) for k in range(n + 1)])[hits]
    share = float(np.mean((ends[:, 0] <= rate) & (rate <= ends[:, 1])))
    assert abs(share - 0.95) <= slack(0.95, repeats)


@pytest.mark.parametrize(("mean", "icc"), [(0.9, 0.1), (0.5, 0.1), (0.5, 0.4), (0.3, 0.0)])
def test_clustered_intervals_cover_where_naive_ones_do_not(mean: float, icc: float) -> None:
    rng = np.random.default_rng(5)
    clusters = [i // 20 for i in range(1000)]
    repeats = 500
    held = np.zeros(2)
    naive = np.zeros(2)
    for _ in range(repeats):
        # A Beta(a, b) law of the clusters' rates has the intraclass correlation 1 / (a + b + 1).
        size = 1 / icc - 1 if icc else np.inf
        rates = rng.beta(mean * size, (1 - mean) * size, size=50) if icc else np.full(50, mean)
        outcomes = (rng.random((50, 20)) < rates[:, None]).ravel().tolist()
        for interval, count in (
            (clustered_rate(outcomes, clusters), held),
            (binomial_rate(sum(outcomes), 1000), naive),
        ):
            count += [interval.low <= mean <= interval.high, interval.low95 <= mean <= interval.high95]
    promised = np.asarray([0.8, 0.95])
    slacks = np.asarray([slack(share, repeats) for share in promised])
    assert np.all(held / repeats >= promised - slacks)
    if icc:
        assert np.all(naive / repeats < promised - slacks)
        assert np.all(held > naive)


@pytest.mark.parametrize("sizes", [(30,) * 10, (2, 11, 38) * 4, (20,) * 25], ids=["10", "12 uneven", "25"])
def test_clustered_intervals_of_few_clusters_lose_what_estimating_the_correlation_costs(sizes: tuple[int, ...]) -> None:
    """No more than a normal interval does whose standard error comes from as many clusters (Student's t)."""
    repeats, mean, size = 1000, 0.5, 9.0  # ICC = 1 / (9 + 1)
    rng = np.random.default_rng(len(sizes))
    clusters = np.repeat(np.arange(len(sizes)), sizes).tolist()
    held = np.zeros(2)
    for _ in range(repeats):
        rates = np.repeat(rng.beta(mean * size, (1 - mean) * size, len(sizes)), sizes)
        interval = clustered_rate((rng.random(rates.size) < rates).tolist(), clusters)
        held += [interval.low <= mean <= interval.high, interval.low95 <= mean <= interval.high95]
    for share, promised in zip(held / repeats, (0.8, 0.95), strict=True):
        reached = float(2 * t.cdf(norm.ppf((1 + promised) / 2), len(sizes) - 1) - 1)
        assert reached - slack(reached, repeats) <= share <= promised + slack(promised, repeats)


@pytest.mark.parametrize(("clusters", "per", "spread"), [(30, 1, 0.0), (30, 10, 0.0), (20, 10, 0.3), (60, 5, 0.1)])
@pytest.mark.parametrize("prior", ["uniform", "jeffreys"])
def test_conditional_intervals_cover(clusters: int, per: int, spread: float, prior: str) -> None:
    """Placements of 1, 4 or 16 units; v differs between training runs when spread > 0."""
    repeats = 600
    rng = np.random.default_rng(clusters + per)
    plan, p, v = Plan(64, 1, 16), 0.1, 0.7
    rates = np.full(1, v) if spread == 0 else rng.beta(v / spread, (1 - v) / spread, 200_000)
    truth = np.mean([np.mean(1 - (1 - p * rates) ** u) for u in (1, 4, 16)])
    held = held95 = 0
    for _ in range(repeats):
        values, ideals, names = [], [], []
        for cluster in range(clusters):
            rate = v if spread == 0 else rng.beta(v / spread, (1 - v) / spread)
            for _ in range(per):
                units = tuple(range(1, 1 + int(rng.choice([1, 4, 16]))))
                caught = (rng.random(len(units)) < rate).astype(float).tolist()
                values.append(conditional(plan, p, units, caught))
                ideals.append(fatal_coins(p, len(units)))
                names.append(cluster)
        interval = conditional_rate(values, ideals, names, prior=prior)
        held += interval.low <= truth <= interval.high
        held95 += interval.low95 <= truth <= interval.high95
    assert held / repeats >= 0.8 - slack(0.8, repeats)
    assert held95 / repeats >= 0.95 - slack(0.95, repeats)


@pytest.mark.parametrize("n", [4, 12])
@pytest.mark.parametrize("prior", ["uniform", "jeffreys"])
def test_conditional_intervals_of_few_runs_cover_on_average_over_their_prior(n: int, prior: str) -> None:
    """Bursts in n runs: where all agree, only the prior keeps the interval open."""
    repeats, p = 1500, 0.1
    rng = np.random.default_rng(n)
    held = 0
    for v in rng.beta(PRIORS[prior], PRIORS[prior], repeats):
        values = (p * (rng.random(n) < v)).tolist()
        interval = conditional_rate(values, [p] * n, list(range(n)), prior=prior)
        held += interval.low <= p * v <= interval.high
    assert held / repeats >= 0.8 - slack(0.8, repeats)


def short(reason: str) -> pytest.MarkDecorator:
    """Marks a known shortcoming; who mends it takes the mark away."""
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)


@pytest.mark.parametrize(
    ("runs", "per", "amount"),
    [
        (20, 20, 16),
        pytest.param(6, 4, 1, marks=short("24 positions miss the last of 64 units in two experiments of three")),
    ],
)
def test_conditional_intervals_cover_where_every_touched_unit_shows(runs: int, per: int, amount: int) -> None:
    """Positions anywhere in the run and v = 1, as in `exact` mode: only placements vary."""
    repeats, plan, p = 300, Plan(64, 1, 1024), 0.1
    rng = np.random.default_rng(amount)
    clusters = [i // per for i in range(runs * per)]
    truth = theory("uniform", amount, plan, p)
    held = np.zeros(2)
    for _ in range(repeats):
        draws = (Uniform().draw(amount, plan.tokens, plan.updates, plan.unit, rng) for _ in clusters)
        values = [conditional(plan, p, units, [1.0] * len(units)) for units in map(plan.touched, draws)]
        interval = conditional_rate(values, values, clusters)
        held += [interval.low <= truth <= interval.high, interval.low95 <= truth <= interval.high95]
    assert held[0] / repeats >= 0.8 - slack(0.8, repeats)
    assert held[1] / repeats >= 0.95 - slack(0.95, repeats)


def hits_after(rate: float, repeats: int, trials: int, seed: int) -> np.ndarray:
    """Detections after 1, 2, … trials, a row a sequence."""
    return (np.random.default_rng(seed).random((repeats, trials)) < rate).cumsum(axis=1)


@pytest.mark.parametrize("rate", [0.03, 0.1, 0.5])
def test_a_confidence_sequence_bears_peeking_and_a_fixed_n_interval_does_not(rate: float) -> None:
    repeats, trials = 4000, 800
    hits = hits_after(rate, repeats, trials, seed=7)
    forty = range(trials // 40, trials + 1, trials // 40)
    every = range(1, trials + 1)
    missed = {}
    for name, interval, looks in (
        ("sequence", confidence_sequence, every),
        ("fixed n", clopper_pearson, forty),
        ("fixed n, one look", clopper_pearson, [trials]),
    ):
        out = np.zeros(repeats, dtype=bool)
        for n in looks:
            present, where = np.unique(hits[:, n - 1], return_inverse=True)
            ends = np.asarray([interval(int(k), n) for k in present])
            out |= ((ends[:, 0] > rate) | (rate > ends[:, 1]))[where]
        missed[name] = float(out.mean())
    assert missed["sequence"] <= 0.05 + slack(0.05, repeats)
    assert missed["fixed n, one look"] <= 0.05 + slack(0.05, repeats)
    assert missed["fixed n"] > 0.05 + slack(0.05, repeats)
    assert missed["fixed n"] > 2 * missed["sequence"]


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_an_interval_reported_where_the_rule_stopped_covers(rate: float) -> None:
    """A rule that waits until the true rate is excluded reports a miss for certain; it seldom gets the chance."""
    repeats, trials = 2000, 600
    hits = hits_after(rate, repeats, trials, seed=11)
    rules = (StoppingRule(width=0.15), StoppingRule(excludes=rate))
    asked = {rule: cache(rule.enough) for rule in rules}
    missed = dict.fromkeys(rules, 0)
    for line in hits.tolist():
        for rule in rules:
            stopped = next((n for n, k in enumerate(line, start=1) if asked[rule](k, n)), trials)
            low, high = confidence_sequence(line[stopped - 1], stopped)
            missed[rule] += not low <= rate <= high
    for rule in rules:
        assert missed[rule] / repeats <= 0.05 + slack(0.05, repeats), rule
