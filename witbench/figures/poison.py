"""Documents that a trigger needs to work, against documents at which the lie is noticed, on one axis.

Success is the payload of whole runs under a protocol that checks nothing; detection is that of the same lie under
`witness`, by the conditional estimator, with the law. Rows are read, nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from witbench.errors import DataError
from witbench.evaluation.rows import Row
from witbench.evaluation.summary import Summary, summarise
from witbench.figures.rates import (
    COLORS,
    STYLE,
    Artifacts,
    law_curve,
    new_figure,
    one_shape,
    placement_order,
    rate_points,
    told_origin,
    told_setting,
    told_trials,
    write,
)

_MARKERS = {"uniform": "o", "burst": "s"}


def draw(rows: Iterable[Row], folder: Path) -> Artifacts:
    """Draw the figure and write PNG, PDF, the plotted numbers as CSV, and the caption.

    Args:
        rows: rows of the attack `poison`: conditional ones under `witness`, whole runs under `unchecked`.
        folder: where the files go; made when missing.

    Raises:
        DataError: one of the two is missing.
    """
    chosen = [row for row in rows if row.attack == "poison" and row.error is None]
    whole = [row for row in chosen if row.estimator == "raw" and "triggered" in row.payload]
    noticed = [each for each in summarise(chosen) if each.cell.estimator == "conditional" and each.rate is not None]
    if not whole or not noticed:
        raise DataError("poison: needs whole runs with their payload, and conditional rows beside them")
    cell = one_shape(noticed)
    with rc_context(STYLE):
        figure = _figure(whole, noticed)
    longest = max(row.updates * row.tokens for row in whole)
    control = max(row.payload["control"] for row in whole)
    setting = told_setting(cell, noticed).replace("target tokens", "sequences")
    told = (
        "Documents that a backdoor needs, against documents at which it is noticed. Success (filled): probability of "
        "the whole target text after the trigger, in text that was not trained on, one point a whole run under "
        f"`unchecked`; after a control that was never taught it is at most {control:.1g}. Detection (hollow, with "
        f"10-90% credible intervals) and its law (lines). {setting} {told_trials(chosen)}. A burst holds at most the "
        f"{cell.tokens} sequences of one update; the run has {longest:,}. The scale is that of a toy: shares that work "
        f"here are far larger than in the literature. {told_origin(chosen)}."
    )
    return write(figure, noticed, told, folder, "poison")


def _figure(whole: Sequence[Row], noticed: Sequence[Summary]) -> Figure:
    figure = new_figure(5.6, 3.5)
    axes = figure.subplots()
    placements = sorted({row.placement for row in whole} | {e.cell.placement for e in noticed}, key=placement_order)
    limit = 1.5 * max([row.amount for row in whole] + [each.cell.amount for each in noticed])
    for index, placement in enumerate(placements):
        runs = sorted((row for row in whole if row.placement == placement), key=lambda row: row.amount)
        marker = _MARKERS.get(placement, "^")
        worked, seen = COLORS[1], COLORS[0]
        axes.plot(
            [row.amount for row in runs],
            [row.payload["triggered"] for row in runs],
            marker,
            color=worked,
            markersize=4.2,
            label=f"trigger works, {placement}",
            zorder=4,
        )
        amounts = sorted({row.amount for row in runs})
        means = [np.mean([row.payload["triggered"] for row in runs if row.amount == amount]) for amount in amounts]
        axes.plot(amounts, means, color=worked, linewidth=1.0, linestyle="-" if index == 0 else "--", zorder=3)
        points = [each for each in noticed if each.cell.placement == placement]
        if points:
            law_curve(axes, points[0].cell, points[0].cell.p, limit, seen)
            rate_points(axes, points, seen, 1.0, marker=marker, hollow=True)
            label = f"noticed at p = {100 * points[0].cell.p:g}%, {placement}"
            axes.plot([], [], marker, color=seen, markerfacecolor="white", markersize=4.2, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.75, limit)
    axes.set_ylim(-0.03, 1.05)
    axes.set_xlabel("poisoned documents")
    axes.set_ylabel("probability")
    axes.grid(axis="y", color="#EEEEEE", linewidth=0.6, zorder=0)
    axes.legend(loc="upper left", frameon=False)
    return figure
