"""Figure 5 of *Training Witnesses*: detection rate against tokens for substitution, insertion and deletion.

Above, one panel an attack: positions anywhere in the run, one color a p, one marker a route. Below, one panel a
placement at one p: one color an attack. A second figure holds whole runs against the conditional estimator.
"""

from __future__ import annotations

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

ATTACKS = ("substitution", "insertion", "deletion")
_MARKERS = ("o", "s", "^", "D")
_ABOVE = "uniform"


def draw(rows: Iterable[Row], folder: Path) -> Artifacts:
    """Draw the figure and write PNG, PDF, the plotted numbers as CSV, and the caption.

    Args:
        rows: any rows; conditional ones of the three attacks under `witness` are drawn.
        folder: where the files go; made when missing.

    Raises:
        DataError: no such row, or rows of runs of different shapes, which share no axis.
    """
    chosen = [row for row in rows if _family(row.attack) in ATTACKS and row.protocol == "witness"]
    chosen = [row for row in chosen if row.estimator == "conditional"]
    summaries = [each for each in summarise(chosen) if each.rate is not None]
    if not summaries:
        raise DataError("no finished conditional trial of substitution, insertion or deletion under witness")
    one_shape(summaries)
    with rc_context(STYLE):
        figure = _figure(summaries)
    return write(figure, summaries, _caption(chosen, summaries), folder, "fig5")


def _family(attack: str) -> str:
    return attack.partition(":")[0]


def _caption(rows: Sequence[Row], summaries: Sequence[Summary]) -> str:
    cell = summaries[0].cell
    below = sorted({each.cell.p for each in summaries if each.cell.placement != _ABOVE})
    at = f" at p = {', '.join(f'{p:g}' for p in below)}" if below else ""
    return (
        "Figure 5. Detection rate against the number of tokens that are substituted, inserted or deleted. Above: "
        f"positions drawn over the whole run, by p and route. Below: by placement{at}, all routes of an attack in one "
        f"color. {told_setting(cell, summaries)} {told_trials(rows)}. Bars: 10-90% credible intervals, uniform prior; "
        "points of one amount are set apart for legibility. Lines: the law 1 - (1-p)^w averaged over placements, 1 "
        f"when the last unit is touched; not fitted. {told_band(cell.plan)} {told_origin(rows)}."
    )


def _figure(summaries: Sequence[Summary]) -> Figure:
    placements = sorted({each.cell.placement for each in summaries} - {_ABOVE}, key=placement_order)
    families = [family for family in ATTACKS if any(_family(each.cell.attack) == family for each in summaries)]
    probabilities = sorted({each.cell.p for each in summaries if each.cell.placement == _ABOVE})
    colors = {p: COLORS[i % len(COLORS)] for i, p in enumerate(probabilities)}
    hues = {family: COLORS[(i + 3) % len(COLORS)] for i, family in enumerate(families)}
    columns = max(len(families), len(placements))
    lines = 2 if placements else 1
    figure = new_figure(2.55 * columns + 0.4, 2.6 * lines + 0.8)
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    limit = 1.6 * max(each.cell.amount for each in summaries)
    for panel, family in zip(grid[0], families, strict=False):
        _attack_panel(panel, [e for e in summaries if _family(e.cell.attack) == family], colors, limit, family)
    for panel, placement in zip(grid[-1] if placements else (), placements, strict=False):
        _placement_panel(panel, [e for e in summaries if e.cell.placement == placement], hues, limit)
    for line, used in zip(grid, (families, placements), strict=False):
        for unused in line[len(used) :]:
            unused.set_visible(False)
    figure.supxlabel("tokens", fontsize=9)
    figure.supylabel("detection rate", fontsize=9)
    figure.legend(
        handles=_legend(colors, hues if placements else {}), loc="outside upper center", ncols=9, frameon=False
    )
    return figure


def _attack_panel(
    axes: Axes, summaries: Sequence[Summary], colors: dict[float, str], limit: float, family: str
) -> None:
    shown = [each for each in summaries if each.cell.placement == _ABOVE]
    rate_axes(axes, summaries[0].cell.plan, limit, family)
    routes = sorted({each.cell.attack for each in shown})
    markers = dict(zip(routes, _MARKERS, strict=False))
    for p, color in colors.items():
        here = [each for each in shown if each.cell.p == p]
        if here:
            law_curve(axes, here[0].cell, p, limit, color)
        for shift, route in zip(spread_out(len(routes)), routes, strict=True):
            points = [each for each in here if each.cell.attack == route]
            rate_points(axes, points, color, shift, marker=markers.get(route, "o"))
    if len(routes) > 1:
        names = [route.partition(":")[2].replace("_", " ") for route in routes]
        handles = [sample(markers.get(route, "o"), INK, name) for route, name in zip(routes, names, strict=True)]
        axes.legend(handles=handles, loc="upper left", frameon=False, fontsize=6.5, handletextpad=0.2)


def _placement_panel(axes: Axes, summaries: Sequence[Summary], hues: dict[str, str], limit: float) -> None:
    cell = summaries[0].cell
    rate_axes(axes, cell.plan, limit, f"{placement_title(cell.placement)}, p = {100 * cell.p:g}%")
    law_curve(axes, cell, cell.p, limit, INK)
    routes = sorted({each.cell.attack for each in summaries})
    for shift, route in zip(spread_out(len(routes)), routes, strict=True):
        points = [each for each in summaries if each.cell.attack == route]
        rate_points(axes, points, hues[_family(route)], shift)


def _legend(colors: dict[float, str], hues: dict[str, str]) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=color, linewidth=1.4, label=f"p = {100 * p:g}%") for p, color in colors.items()
    ]
    handles += [
        Line2D([], [], color=color, marker="o", linestyle="none", markersize=4.2, label=family)
        for family, color in hues.items()
    ]
    handles.append(Line2D([], [], color=INK, linewidth=1.1, label="law"))
    handles.append(Patch(facecolor=BAND, alpha=0.55, label="poisoning band"))
    return handles
