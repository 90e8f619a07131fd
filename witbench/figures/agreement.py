"""Whole runs against the conditional estimator: two ways to the same rate, cell by cell, beside the law."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from witbench.errors import DataError
from witbench.evaluation.rows import Row
from witbench.evaluation.summary import Summary, summarise
from witbench.figures.rates import (
    COLORS,
    INK,
    STYLE,
    Artifacts,
    new_figure,
    one_shape,
    placement_title,
    sample,
    told_origin,
    told_setting,
    told_trials,
    write,
)

Pair = tuple[Summary, Summary]


def pairs(summaries: Iterable[Summary]) -> list[Pair]:
    """(raw, conditional) of every cell that was measured both ways."""
    known = {each.cell: each for each in summaries if each.rate is not None and each.cell.amount}
    raw = [each for cell, each in known.items() if cell.estimator == "raw"]
    both = [(each, known.get(replace(each.cell, estimator="conditional"))) for each in raw]
    return [(one, other) for one, other in both if other is not None]


def agree(pair: Pair) -> bool:
    """Whether the 95% intervals of both estimates overlap."""
    raw, conditional = (each.rate for each in pair)
    return (
        raw is not None
        and conditional is not None
        and raw.low95 <= conditional.high95
        and conditional.low95 <= raw.high95
    )


def draw(rows: Iterable[Row], folder: Path) -> Artifacts:
    """Draw the figure and write PNG, PDF, the plotted numbers as CSV, and the caption.

    Args:
        rows: any rows; those of cells that were measured both ways are drawn.
        folder: where the files go; made when missing.

    Raises:
        DataError: no such cell, or runs of different shapes.
    """
    chosen = list(rows)
    found = pairs(summarise(chosen))
    if not found:
        raise DataError("no cell was measured both by whole runs and by the conditional estimator")
    summaries = [each for pair in found for each in pair]
    cell = one_shape(summaries)
    cells = {each.cell for each in summaries}
    shown = [row for row in chosen if any(row.attack == c.attack and row.placement == c.placement for c in cells)]
    told = (
        "Whole runs with their coins (squares) against the conditional estimator (dots), at a low, a middle and a high "
        f"rate. {told_setting(cell, summaries)} {told_trials(shown)}. Bars: 10-90% credible intervals, uniform prior. "
        f"Ticks: the law. The 95% intervals of {sum(map(agree, found))} of {len(found)} pairs overlap. "
        f"{told_origin(shown)}."
    )
    with rc_context(STYLE):
        figure = _figure(found)
    return write(figure, summaries, told, folder, "fig5-agreement")


def _figure(found: Sequence[Pair]) -> Figure:
    figure = new_figure(5.4, 0.34 * len(found) + 1.1)
    axes = figure.subplots()
    for line, (raw, conditional) in enumerate(reversed(found)):
        for offset, each, marker, face in ((0.14, raw, "s", "white"), (-0.14, conditional, "o", COLORS[0])):
            if each.rate is None:
                continue
            rate = each.rate
            axes.errorbar(
                [rate.estimate],
                [line + offset],
                xerr=[[rate.estimate - rate.low], [rate.high - rate.estimate]],
                fmt=marker,
                color=COLORS[1] if marker == "s" else COLORS[0],
                markerfacecolor=face,
                markersize=4.2,
                elinewidth=0.9,
                capsize=1.8,
            )
        if raw.theory is not None:
            axes.plot([raw.theory, raw.theory], [line - 0.34, line + 0.34], color=INK, linewidth=1.1)
    names = [
        f"{raw.cell.attack.replace('_', ' ')}, {placement_title(raw.cell.placement)}, {raw.cell.amount} tokens"
        for raw, _ in reversed(found)
    ]
    axes.set_yticks(range(len(found)), names)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel(f"detection rate at p = {100 * found[0][0].cell.p:g}%")
    axes.legend(
        handles=[sample("s", "white", "whole runs", COLORS[1]), sample("o", COLORS[0], "coins averaged", COLORS[0])],
        loc="lower right",
        frameon=False,
    )
    axes.grid(axis="x", color="#EEEEEE", linewidth=0.6, zorder=0)
    return figure
