"""How far measured rates lie from the law, in standard errors of what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable

from witbench.evaluation.law import theory_spread
from witbench.evaluation.summary import Summary


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
    """Distance of one rate from its law, in standard errors that the law itself predicts.

    Binomial for whole runs; for the conditional estimator, whose coins are averaged, the spread between placements.
    """
    rate, law, cell = summary.rate, summary.theory, summary.cell
    if rate is None or law is None:
        return 0.0
    if cell.estimator == "raw":
        spread = math.sqrt(law * (1 - law))
    else:
        spread = theory_spread(cell.placement, cell.amount, cell.plan, cell.p) if cell.amount else 0.0
    error = spread / math.sqrt(rate.trials)
    difference = abs(rate.estimate - law)
    if difference <= 1e-9:
        return 0.0
    return difference / error if error > 1e-12 else math.inf
