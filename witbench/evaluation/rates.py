"""Detection rates and their intervals.

Three uses, three tools:

* a rate in a table or figure: the Beta posterior of k detections in n trials, 10-90 % (and 95 %) equal-tailed
  credible interval, extended to the observed rate at k = 0 and k = n, so that no bar has zero width (Brown, Cai and
  DasGupta 2001 for the boundary rule);
* a claim of security: Clopper-Pearson, one- or two-sided, whose coverage is at least nominal;
* the conditional estimator, whose trials are probabilities with all coins averaged: a Bayesian bootstrap (Rubin 1981)
  over the trials that has the same prior as the Beta posterior, and is that posterior when the trials are 0 and 1.

Trials of one training run or one key are not independent. Their number is replaced by an effective one,
n / (1 + (m-1) ICC), with the intraclass correlation estimated by analysis of variance (Donner 1986).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from witbench.errors import ConfigError

PRIORS = {"uniform": 1.0, "jeffreys": 0.5}
_RESAMPLES = 8000
_CHUNK = 500


@dataclass(frozen=True)
class Rate:
    """A detection rate with its credible intervals.

    Attributes:
        detections: k; for the conditional estimator the sum of the trials' probabilities.
        trials: n.
        effective: effective number of trials, n when they are independent.
        estimate: k / n.
        low: 10 % end of the credible interval.
        high: 90 % end.
        low95: 2.5 % end.
        high95: 97.5 % end.
        prior: `uniform` or `jeffreys`.
    """

    detections: float
    trials: int
    effective: float
    estimate: float
    low: float
    high: float
    low95: float
    high95: float
    prior: str


def binomial_rate(k: int, n: int, *, effective: float | None = None, prior: str = "uniform") -> Rate:
    """Beta posterior of k detections in n trials.

    Args:
        k: detections.
        n: trials, at least 1.
        effective: effective number of trials; k is scaled with it. None for independent trials.
        prior: `uniform` (Beta(1, 1)) or `jeffreys` (Beta(1/2, 1/2)).
    """
    if n < 1 or not 0 <= k <= n:
        raise ConfigError(f"k={k}, n={n}: need n >= 1 and 0 <= k <= n")
    size = float(n) if effective is None else effective
    if not 0 < size <= n:
        raise ConfigError(f"effective={effective}: must lie in (0, n={n}]")
    mass = _prior_mass(prior)
    hits = k / n * size
    ends = beta.ppf([0.025, 0.1, 0.9, 0.975], hits + mass, size - hits + mass)
    return _rate(float(k), n, size, [float(end) for end in ends], prior)


def clustered_rate(outcomes: Sequence[bool], clusters: Sequence[Hashable], *, prior: str = "uniform") -> Rate:
    """Beta posterior of clustered yes/no trials, with the effective number of trials in place of n."""
    effective = effective_trials([float(outcome) for outcome in outcomes], clusters)
    return binomial_rate(sum(map(bool, outcomes)), len(outcomes), effective=effective, prior=prior)


def conditional_rate(
    probabilities: Sequence[float],
    ideals: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    prior: str = "uniform",
    seed: int = 0,
) -> Rate:
    """Mean of per-trial detection probabilities with a credible interval for what was sampled: runs and placements.

    A Bayesian bootstrap with a prior of two imagined trials, of the prior's mass each: one in which no check ever
    fails (probability 0) and one in which every check of a touched unit fails (the mean of `ideals`). The observed
    trials share weights of effective mass, counted apart for the two things that vary: placements, by the
    probabilities themselves, and detectability, by their ratio to the ideal. When all trials agree on detectability
    its effective count is the number of training runs, so the interval stays open, and its upper end is at least that
    of the placements alone. With probabilities of 0 and 1 and
    ideals of 1 it is the Beta posterior.

    Args:
        probabilities: 1 - prod(1 - p_t v_t) of each trial.
        ideals: the same with v_t = 1 on the touched units.
        clusters: the training run of each trial.
        prior: mass 1 (`uniform`) or 1/2 (`jeffreys`) for each imagined trial.
        seed: of the bootstrap; the interval is a pure function of the arguments.
    """
    values = np.asarray(probabilities, dtype=np.float64)
    bounds = np.asarray(ideals, dtype=np.float64)
    if values.size == 0 or values.shape != bounds.shape:
        raise ConfigError(f"{values.size} probabilities and {bounds.size} ideals: need as many of both, at least one")
    if min(values.min(), bounds.min()) < 0 or max(values.max(), bounds.max()) > 1:
        raise ConfigError("a probability lies outside [0, 1]")
    ratios = np.divide(values, bounds, out=np.zeros_like(values), where=bounds > 0)
    placements = effective_trials(probabilities, clusters)
    checks = effective_trials(ratios.tolist(), clusters)
    rng = np.random.default_rng(seed)
    means = _dirichlet_means(values, placements / values.size, rng)
    mass = _prior_mass(prior)
    shares = rng.dirichlet([checks, mass, mass], size=_RESAMPLES)
    posterior = shares[:, 0] * means + shares[:, 2] * float(bounds.mean())
    quantiles = [0.025, 0.1, 0.9, 0.975]
    ends = [float(end) for end in np.quantile(posterior, quantiles)]
    if np.all(ratios == ratios[0]):
        # All trials agree on detectability, so the posterior reaches down alone; placements vary both ways.
        upper = np.quantile(means, quantiles)
        ends = [*ends[:2], *(max(end, float(other)) for end, other in zip(ends[2:], upper[2:], strict=True))]
    return _rate(float(values.sum()), values.size, min(placements, checks), ends, prior)


def effective_trials(outcomes: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """n / (1 + (m-1) ICC): as many independent trials as the clustered ones are worth.

    The ICC is the one-way analysis-of-variance estimate, cut to [0, 1]; m is the size-weighted mean cluster size. When
    all outcomes are equal nothing is known of their independence, and the number of clusters is returned.
    """
    values = np.asarray(outcomes, dtype=np.float64)
    if values.size == 0 or values.size != len(clusters):
        raise ConfigError(f"{values.size} outcomes and {len(clusters)} clusters: need as many of both, at least one")
    numbers: dict[Hashable, int] = {}
    member = np.asarray([numbers.setdefault(cluster, len(numbers)) for cluster in clusters])
    n, groups = values.size, len(numbers)
    if groups == n:
        return float(n)
    if groups == 1 or np.all(values == values[0]):
        return float(groups)
    sizes = np.bincount(member).astype(np.float64)
    means = np.bincount(member, weights=values) / sizes
    between = float(np.sum(sizes * (means - values.mean()) ** 2)) / (groups - 1)
    within = float(np.sum((values - means[member]) ** 2)) / (n - groups)
    mean_size = (n - float(np.sum(sizes**2)) / n) / (groups - 1)
    icc = min(1.0, max(0.0, (between - within) / (between + (mean_size - 1) * within)))
    weighted_size = float(np.sum(sizes**2)) / n
    return n / (1 + (weighted_size - 1) * icc)


def clopper_pearson(
    k: int, n: int, *, confidence: float = 0.95, side: Literal["two", "lower", "upper"] = "two"
) -> tuple[float, float]:
    """Exact confidence interval of k of n; one-sided ones keep the other end at 0 or 1.

    `lower` claims "the rate is at least", `upper` claims "at most".
    """
    if n < 1 or not 0 <= k <= n:
        raise ConfigError(f"k={k}, n={n}: need n >= 1 and 0 <= k <= n")
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence={confidence}: must lie in (0, 1)")
    if side not in ("two", "lower", "upper"):
        raise ConfigError(f"side={side}: allowed are two, lower and upper")
    miss = (1 - confidence) / 2 if side == "two" else 1 - confidence
    low = 0.0 if k == 0 or side == "upper" else float(beta.ppf(miss, k, n - k + 1))
    high = 1.0 if k == n or side == "lower" else float(beta.ppf(1 - miss, k + 1, n - k))
    return low, high


def _prior_mass(prior: str) -> float:
    if prior not in PRIORS:
        raise ConfigError(f"prior={prior}: allowed are {', '.join(PRIORS)}")
    return PRIORS[prior]


def _rate(k: float, n: int, effective: float, ends: Sequence[float], prior: str) -> Rate:
    """Apply the boundary rule: an interval holds the observed rate, also at 0 and 1."""
    estimate = min(1.0, k / n)
    low95, low, high, high95 = ends
    low, low95 = (min(end, estimate) for end in (low, low95))
    high, high95 = (max(end, estimate) for end in (high, high95))
    return Rate(k, n, effective, estimate, low, high, low95, high95, prior)


def _dirichlet_means(values: NDArray[np.float64], mass: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draws of the mean of the trials under Dirichlet weights of `mass` a trial."""
    # Equal values share one weight: the sum of Gamma variables of one scale is a Gamma variable.
    distinct, counts = np.unique(values, return_counts=True)
    if distinct.size == 1:
        return np.full(_RESAMPLES, distinct[0])
    means = np.empty(_RESAMPLES)
    for start in range(0, _RESAMPLES, _CHUNK):
        weights = rng.gamma(mass * counts, size=(_CHUNK, distinct.size))
        means[start : start + _CHUNK] = weights @ distinct / weights.sum(axis=1)
    return means
