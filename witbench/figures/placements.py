"""Detection rate against the number of touched tokens for one attack: one panel a placement, one line a p.

Dots are the conditional estimator (all coins averaged), open squares whole runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from witbench.errors import DataError
from witbench.evaluation.rows import Row
from witbench.evaluation.summary import Summary, summarise
from witbench.figures.rates import (
    BAND,
    COLORS,
    INK,
    STYLE,
    Artifacts,
    law_curve,
    new_figure,
    one_shape,
    placement_order,
    placement_title,
    rate_axes,
    rate_points,
    sample,
    spread_out,
    told_band,
    told_origin,
    told_setting,
    told_trials,
    write,
)


def draw(rows: Iterable[Row], folder: Path, *, attack: str = "substitution", protocol: str = "witness") -> Artifacts:
    """Draw the figure and write PNG, PDF, the plotted numbers as CSV, and the caption.

    Args:
        rows: any rows; those of the attack and the protocol are drawn.
        folder: where the files go; made when missing.
        attack: the attack, with its route where it has several.
        protocol: the preset.

    Raises:
        DataError: no row with a result, or rows of runs of different shapes, which share no axis.
    """
    chosen = [row for row in rows if row.attack == attack and row.protocol == protocol]
    summaries = [each for each in summarise(chosen) if each.rate is not None]
    if not summaries:
        raise DataError(f"no finished trial of attack={attack} under protocol={protocol}: run `make bench` first")
    one_shape(summaries)
    with rc_context(STYLE):
        figure = _figure(summaries)
    return write(figure, summaries, caption(chosen, summaries), folder, f"fig5-{attack}")


def caption(rows: Sequence[Row], summaries: Sequence[Summary]) -> str:
    """What the figure shows: model, tokens, p, tolerance, trials, the poisoning band, machine and commit."""
    cell = summaries[0].cell
    return (
        f"Detection rate of {cell.attack} against the number of tokens touched, by placement. "
        f"{told_setting(cell, summaries)} Dots and squares: {told_trials(rows)}. Bars: 10-90% credible intervals, "
        "uniform prior; points of one amount are set apart for legibility. Lines: the law 1 - (1-p)^w averaged over "
        "placements, 1 when the last unit is touched; not fitted. "
        f"{told_band(cell.plan)} {told_origin(rows)}."
    )


def _figure(summaries: Sequence[Summary]) -> Figure:
    placements = sorted({each.cell.placement for each in summaries}, key=placement_order)
    probabilities = sorted({each.cell.p for each in summaries})
    colors = {p: COLORS[i % len(COLORS)] for i, p in enumerate(probabilities)}
    columns = len(placements) if len(placements) <= 4 else 3
    lines = math.ceil(len(placements) / columns)
    figure = new_figure(max(4.2, 2.35 * columns + 0.5), 2.5 * lines + 0.75)
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    axes = list(grid.flat)
    limit = 1.5 * max(each.cell.amount for each in summaries)
    for panel, placement in zip(axes, placements, strict=False):
        _panel(panel, [each for each in summaries if each.cell.placement == placement], colors, limit)
    for unused in axes[len(placements) :]:
        unused.set_visible(False)
    for panel in axes[max(0, len(placements) - columns) : len(placements)]:
        panel.tick_params(labelbottom=True)
    figure.supxlabel("tokens touched", fontsize=9)
    figure.supylabel("detection rate", fontsize=9)
    figure.legend(handles=_legend(colors, summaries), loc="outside upper center", ncols=8, frameon=False)
    return figure


def _panel(axes: Axes, summaries: Sequence[Summary], colors: dict[float, str], limit: float) -> None:
    cell = summaries[0].cell
    rate_axes(axes, cell.plan, limit, placement_title(cell.placement))
    for shift, (p, color) in zip(spread_out(len(colors)), colors.items(), strict=True):
        here = [each for each in summaries if each.cell.p == p]
        if any(each.theory is not None for each in here):
            law_curve(axes, here[0].cell, p, limit, color)
        rate_points(axes, [e for e in here if e.cell.estimator == "conditional"], color, shift)
        whole = [e for e in here if e.cell.estimator == "raw"]
        rate_points(axes, whole, color, shift * spread_out(len(COLORS))[-1], marker="s", hollow=True)


def _legend(colors: dict[float, str], summaries: Sequence[Summary]) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=color, linewidth=1.4, label=f"p = {100 * p:g}%") for p, color in colors.items()
    ]
    estimators = {each.cell.estimator for each in summaries}
    if "conditional" in estimators:
        handles.append(sample("o", INK, "coins averaged"))
    if "raw" in estimators:
        handles.append(sample("s", "white", "whole runs"))
    handles.append(Line2D([], [], color=INK, linewidth=1.1, label="law"))
    handles.append(Patch(facecolor=BAND, alpha=0.55, label="poisoning band"))
    return handles
