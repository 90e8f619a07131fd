"""How far measured rates lie from the law, in standard errors of what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable

from witbench.evaluation.summary import Summary

_RANDOM = ("uniform", "tail")
"""Placements under which the number of touched units varies from draw to draw."""


def deviations(summaries: Iterable[Summary]) -> str:
    """One line: the largest distance of a rate from the law it is claimed to follow."""
    worst, where = 0.0, ""
    count = 0
    for summary in summaries:
        if summary.rate is None or summary.theory is None or summary.cell.attack == "none":
            continue
        count += 1
        sigma = standard_errors(summary)
        if sigma >= worst:
            cell = summary.cell
            worst, where = sigma, f"{cell.estimator} {cell.placement}, p = {cell.p:g}, {cell.amount} tokens"
    return f"law: {count} rates, the farthest {worst:.1f} standard errors off ({where})"


def standard_errors(summary: Summary) -> float:
    """Distance of one rate from its law: binomial for raw runs, from the trials' own spread for conditional ones."""
    rate, law = summary.rate, summary.theory
    if rate is None or law is None:
        return 0.0
    spread = summary.spread
    varies = summary.cell.placement.partition(":")[0] in _RANDOM
    if summary.cell.estimator == "raw" or (varies and spread == 0.0):
        # The largest spread that outcomes between 0 and 1 with this mean can have: that of 0 and 1 themselves.
        spread = math.sqrt(law * (1 - law))
    error = spread / math.sqrt(rate.trials)
    difference = abs(rate.estimate - law)
    return difference / error if difference > 1e-9 and error > 0 else (math.inf if difference > 1e-9 else 0.0)
