"""Figure 5: detection rate against the number of touched tokens, one panel a placement, one line a p.

Reads rows only. Dots are the conditional estimator (all coins averaged), open squares whole runs; bars are 10-90 %
credible intervals; lines are the law averaged over placements, drawn without looking at the dots. The amounts that the
literature found to poison a model are shaded where they fall on the axis.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from witbench.errors import DataError
from witbench.evaluation.law import fitting, theory
from witbench.evaluation.rows import Row
from witbench.evaluation.summary import Cell, Summary, summarise

POISON_SHARES = (1e-5, 1e-3)
"""Shares of the training tokens that poison a model: 0.001 % (Alber et al. 2025) to 0.1 % (Zhang et al. 2024)."""
POISON_DOCUMENTS = {100: 1.7e5, 250: 4.2e5}
"""Documents and their tokens in Souly et al. 2025 (600M to 13B parameters): 100 fail, 250 work."""

# Okabe and Ito's colors, dark enough for lines on white and told apart by the color-blind.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_INK = "#444444"
_BAND = "#D9D9D9"
_DODGE = 1.06
"""Factor by which the points of neighbouring p are set apart, so that bars do not hide each other."""
_STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.direction": "out",
    "ytick.direction": "out",
    "legend.fontsize": 8,
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
}


@dataclass(frozen=True)
class Artifacts:
    """The files of a figure."""

    png: Path
    pdf: Path
    csv: Path
    caption: Path


def draw(rows: Iterable[Row], folder: Path, *, attack: str = "substitution", protocol: str = "witness") -> Artifacts:
    """Draw the figure and write PNG, PDF, the plotted numbers as CSV, and the caption.

    Args:
        rows: any rows; those of the attack and the protocol are drawn.
        folder: where the files go; made when missing.
        attack: the attack of this panel row.
        protocol: the preset.

    Raises:
        DataError: no row with a result, or rows of runs of different shapes, which share no axis.
    """
    chosen = [row for row in rows if row.attack == attack and row.protocol == protocol]
    summaries = [each for each in summarise(chosen) if each.rate is not None]
    if not summaries:
        raise DataError(f"no finished trial of attack={attack} under protocol={protocol}: run `make bench` first")
    shapes = {(cell.model, cell.sketch, cell.plan) for cell in (each.cell for each in summaries)}
    if len(shapes) > 1:
        raise DataError(f"rows of {len(shapes)} different models, sketches or run lengths: draw them apart")
    folder.mkdir(parents=True, exist_ok=True)
    name = f"fig5-{attack}"
    files = Artifacts(*(folder / f"{name}.{end}" for end in ("png", "pdf", "csv", "txt")))
    with rc_context(_STYLE):
        figure = _figure(summaries)
        figure.savefig(files.png)
        # Without dates, so that the same rows give the same bytes.
        figure.savefig(files.pdf, metadata={"CreationDate": None, "ModDate": None})
    _write_csv(summaries, files.csv)
    files.caption.write_text(caption(chosen, summaries) + "\n", encoding="utf-8")
    return files


def caption(rows: Sequence[Row], summaries: Sequence[Summary]) -> str:
    """What the figure shows: model, tokens, p, tolerance, trials, the poisoning band, machine and commit."""
    cell = summaries[0].cell
    plan = cell.plan
    total = plan.updates * plan.tokens
    good = [row for row in rows if row.error is None]
    raw = sum(row.estimator == "raw" for row in good)
    clusters = len({row.cluster for row in good})
    taus = {each.cell.tau for each in summaries}
    tolerance = "exact tolerance" if taus == {None} else f"tau = {', '.join(str(tau) for tau in sorted(taus, key=str))}"
    low, high = (share * total for share in POISON_SHARES)
    documents = " and ".join(f"{count} documents ≈ {tokens:,.0f} tokens" for count, tokens in POISON_DOCUMENTS.items())
    marked = [count for count, tokens in POISON_DOCUMENTS.items() if tokens <= total]
    where = "dotted lines" if marked else f"beyond this run's {total:,} tokens and not drawn"
    made = sorted({_made(row) for row in good})
    return (
        f"Detection rate of {cell.attack} against the number of tokens touched, by placement. Model {cell.model}, "
        f"{plan.updates} updates of {plan.tokens:,} target tokens ({total:,} in all), units of {plan.unit}, sketch "
        f"{cell.sketch}, {tolerance}, p = {', '.join(f'{p:g}' for p in sorted({e.cell.p for e in summaries}))}. "
        f"Dots: conditional estimator, all coins averaged, {len(good) - raw} trials; squares: {raw} whole runs with "
        f"their coins; {clusters} training runs. Bars: 10-90% credible intervals, uniform prior; points of one amount "
        "are set apart for legibility. Lines: the law "
        "1 - (1-p)^w averaged over placements, 1 when the last unit is touched; not fitted. "
        f"Shaded: 0.001% to 0.1% of the run's tokens ({low:,.2g} to {high:,.2g}), the shares found to poison "
        "pre-training (Alber et al. 2025, Nature Medicine; Zhang et al. 2024, Persistent pre-training poisoning of "
        f"LLMs). In absolute numbers {documents} ({where}), of which 100 failed and 250 worked from 600M to 13B "
        "parameters (Souly et al. 2025); neither scale carries over to a model as small as ours. "
        f"{'; '.join(made)}."
    )


def _figure(summaries: Sequence[Summary]) -> Figure:
    placements = sorted({each.cell.placement for each in summaries}, key=_panel_order)
    probabilities = sorted({each.cell.p for each in summaries})
    colors = {p: _COLORS[i % len(_COLORS)] for i, p in enumerate(probabilities)}
    columns = len(placements) if len(placements) <= 4 else 3
    lines = math.ceil(len(placements) / columns)
    figure = Figure(figsize=(max(4.2, 2.35 * columns + 0.5), 2.5 * lines + 0.75), layout="constrained")
    FigureCanvasAgg(figure)
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
    plan = cell.plan
    total = plan.updates * plan.tokens
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.75, limit)
    axes.set_ylim(-0.03, 1.05)
    axes.set_title(_panel_title(cell.placement))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _thousands(value)))
    axes.grid(axis="y", color="#EEEEEE", linewidth=0.6, zorder=0)
    axes.axvspan(POISON_SHARES[0] * total, POISON_SHARES[1] * total, color=_BAND, alpha=0.55, linewidth=0, zorder=0)
    for tokens in POISON_DOCUMENTS.values():
        if tokens <= limit:
            axes.axvline(tokens, color="#777777", linestyle=":", linewidth=0.9, zorder=1)
    for place, (p, color) in enumerate(colors.items()):
        here = [each for each in summaries if each.cell.p == p]
        if any(each.theory is not None for each in here):
            amounts, law = _curve(here[0].cell, p, limit)
            axes.plot(amounts, law, color=color, linewidth=1.1, alpha=0.8, zorder=2)
        shift = _DODGE ** (place - (len(colors) - 1) / 2)
        for estimator in ("conditional", "raw"):
            points = [each for each in here if each.cell.estimator == estimator]
            _points(axes, points, color, shift, raw=estimator == "raw")


def _points(axes: Axes, points: Sequence[Summary], color: str, shift: float, *, raw: bool) -> None:
    rates = [(each.cell.amount, each.rate) for each in points if each.rate is not None]
    if not rates:
        return
    estimates = np.array([rate.estimate for _, rate in rates])
    bars = np.array([[rate.estimate - rate.low for _, rate in rates], [rate.high - rate.estimate for _, rate in rates]])
    axes.errorbar(
        [amount * shift * (_DODGE ** (len(_COLORS) / 2) if raw else 1.0) for amount, _ in rates],
        estimates,
        yerr=bars,
        fmt="s" if raw else "o",
        color=color,
        markerfacecolor="white" if raw else color,
        markersize=4.2 if raw else 3.4,
        markeredgewidth=0.9,
        elinewidth=0.8,
        capsize=1.6,
        zorder=4 if raw else 3,
        clip_on=False,
    )


def _panel_order(placement: str) -> tuple[int, str, float]:
    name, _, knob = placement.partition(":")
    first = ("uniform", "spread", "burst", "tail")
    number = float(knob) if knob.replace(".", "", 1).isdigit() else 0.0
    return first.index(name) if name in first else len(first), name, number


def _panel_title(placement: str) -> str:
    name, _, knob = placement.partition(":")
    return f"{name} over {knob} units" if name == "spread" else placement.replace(":", " ")


def _curve(cell: Cell, p: float, limit: float) -> tuple[list[int], list[float]]:
    """The law at about ten amounts an octave, as far as the placement holds them."""
    allowed = fitting(cell.placement, cell.plan)
    candidates = np.unique(np.geomspace(1, limit, 160).round().astype(int)).tolist()
    amounts = [amount for amount in candidates if amount in allowed]
    return amounts, [theory(cell.placement, amount, cell.plan, p) for amount in amounts]


def _legend(colors: dict[float, str], summaries: Sequence[Summary]) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=color, linewidth=1.4, label=f"p = {100 * p:g}%") for p, color in colors.items()
    ]
    estimators = {each.cell.estimator for each in summaries}
    if "conditional" in estimators:
        handles.append(_sample("o", _INK, "coins averaged"))
    if "raw" in estimators:
        handles.append(_sample("s", "white", "whole runs"))
    handles.append(Line2D([], [], color=_INK, linewidth=1.1, label="law"))
    handles.append(Patch(facecolor=_BAND, alpha=0.55, label="poisoning band"))
    return handles


def _sample(marker: str, face: str, label: str) -> Line2D:
    return Line2D(
        [], [], color=_INK, linestyle="none", marker=marker, markersize=4.2, markerfacecolor=face, label=label
    )


def _made(row: Row) -> str:
    tree = f"commit {row.commit[:12]}{' with changes' if row.dirty else ''}" if row.commit else "no commit"
    return f"Made on {row.machine or 'an unnamed machine'}, {tree}"


def _thousands(value: float) -> str:
    return f"{value:g}" if value < 1024 else f"{value / 1024:g}k"


def _write_csv(summaries: Sequence[Summary], path: Path) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=CSV_FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_csv_row(each) for each in summaries)


CSV_FIELDS = (
    "attack",
    "protocol",
    "sketch",
    "model",
    "placement",
    "p",
    "tokens",
    "estimator",
    "detections",
    "trials",
    "effective_trials",
    "training_runs",
    "rate",
    "low10",
    "high90",
    "low95",
    "high95",
    "prior",
    "theory",
    "check",
)


def _csv_row(summary: Summary) -> dict[str, object]:
    cell, rate = summary.cell, summary.rate
    if rate is None:
        raise DataError("a cell without a result has no plotted number")
    values = (
        *(cell.attack, cell.protocol, cell.sketch, cell.model, cell.placement, cell.p, cell.amount, cell.estimator),
        *(rate.detections, rate.trials, rate.effective, summary.clusters),
        *(rate.estimate, rate.low, rate.high, rate.low95, rate.high95, rate.prior),
        *(summary.theory, summary.check),
    )
    return dict(zip(CSV_FIELDS, values, strict=True))
