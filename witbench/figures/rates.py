"""What the figures of detection rates share: axes, points with their bars, curves of the law, files, captions.

Rows are read, nothing is measured here. Bars are 10-90 % credible intervals; curves are the law averaged over
placements, drawn without looking at the points; the amounts that the literature found to poison a model are shaded.
"""

from __future__ import annotations

import csv
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
from matplotlib.ticker import FuncFormatter

from witbench.errors import DataError
from witbench.evaluation.law import Plan, fitting, theory
from witbench.evaluation.rows import Row
from witbench.evaluation.summary import Cell, Summary

POISON_SHARES = (1e-5, 1e-3)
"""Shares of the training tokens that poison a model: 0.001 % (Alber et al. 2025) to 0.1 % (Zhang et al. 2024)."""
POISON_DOCUMENTS = {100: 1.7e5, 250: 4.2e5}
"""Documents and their tokens in Souly et al. 2025 (600M to 13B parameters): 100 fail, 250 work."""

# Okabe and Ito's colors, dark enough for lines on white and told apart by the color-blind.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
INK = "#444444"
BAND = "#D9D9D9"
DODGE = 1.06
"""Factor by which the points of neighbouring p are set apart, so that bars do not hide each other."""
STYLE: dict[Any, Any] = {
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


def write(figure: Figure, summaries: Sequence[Summary], told: str, folder: Path, name: str) -> Artifacts:
    """Save a figure, the plotted numbers and the caption; the same rows give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    files = Artifacts(*(folder / f"{name}.{end}" for end in ("png", "pdf", "csv", "txt")))
    with rc_context(STYLE):
        figure.savefig(files.png)
        figure.savefig(files.pdf, metadata={"CreationDate": None, "ModDate": None})
    _write_csv(summaries, files.csv)
    files.caption.write_text(told + "\n", encoding="utf-8")
    return files


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of a size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def rate_axes(axes: Axes, plan: Plan, limit: float, title: str) -> None:
    """Set up one panel: tokens on a log axis, rates from 0 to 1, the poisoning band.

    Args:
        axes: the panel.
        plan: the runs whose tokens the band is a share of.
        limit: right end of the axis, tokens.
        title: of the panel.
    """
    total = plan.updates * plan.tokens
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.75, limit)
    axes.set_ylim(-0.03, 1.05)
    axes.set_title(title)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _thousands(value)))
    axes.grid(axis="y", color="#EEEEEE", linewidth=0.6, zorder=0)
    axes.axvspan(POISON_SHARES[0] * total, POISON_SHARES[1] * total, color=BAND, alpha=0.55, linewidth=0, zorder=0)
    for tokens in POISON_DOCUMENTS.values():
        if tokens <= limit:
            axes.axvline(tokens, color="#777777", linestyle=":", linewidth=0.9, zorder=1)


def law_curve(axes: Axes, cell: Cell, p: float, limit: float, color: str) -> None:
    """The law of a cell's placement at about ten amounts an octave, as far as the placement holds them."""
    allowed = fitting(cell.placement, cell.plan)
    candidates = np.unique(np.geomspace(1, limit, 160).round().astype(int)).tolist()
    amounts = [amount for amount in candidates if amount in allowed]
    law = [theory(cell.placement, amount, cell.plan, p) for amount in amounts]
    axes.plot(amounts, law, color=color, linewidth=1.1, alpha=0.8, zorder=2)


def rate_points(
    axes: Axes, points: Sequence[Summary], color: str, shift: float, *, marker: str = "o", hollow: bool = False
) -> None:
    """Rates with their bars, set apart by a factor on the axis of tokens."""
    rates = [(each.cell.amount, each.rate) for each in points if each.rate is not None]
    if not rates:
        return
    estimates = np.array([rate.estimate for _, rate in rates])
    bars = np.array([[rate.estimate - rate.low for _, rate in rates], [rate.high - rate.estimate for _, rate in rates]])
    axes.errorbar(
        [amount * shift for amount, _ in rates],
        estimates,
        yerr=bars,
        fmt=marker,
        color=color,
        markerfacecolor="white" if hollow else color,
        markersize=4.2 if hollow else 3.4,
        markeredgewidth=0.9,
        elinewidth=0.8,
        capsize=1.6,
        zorder=4 if hollow else 3,
        clip_on=False,
    )


def spread_out(count: int) -> list[float]:
    """Factors that set so many points of one amount apart."""
    return [DODGE ** (place - (count - 1) / 2) for place in range(count)]


def sample(marker: str, face: str, label: str, color: str = INK) -> Line2D:
    """A legend's entry for a kind of point."""
    return Line2D(
        [], [], color=color, linestyle="none", marker=marker, markersize=4.2, markerfacecolor=face, label=label
    )


def placement_title(placement: str) -> str:
    """A placement as a panel's title."""
    name, _, knob = placement.partition(":")
    return f"{name} over {knob} units" if name == "spread" else placement.replace(":", " ")


def placement_order(placement: str) -> tuple[int, str, float]:
    """Sorts placements as figures show them."""
    name, _, knob = placement.partition(":")
    first = ("uniform", "spread", "burst", "tail")
    number = float(knob) if knob.replace(".", "", 1).isdigit() else 0.0
    return first.index(name) if name in first else len(first), name, number


def one_shape(summaries: Sequence[Summary]) -> Cell:
    """A cell of rows that share an axis. Raises DataError for none, or for runs of different shapes."""
    shapes = {(each.cell.model, each.cell.sketch, each.cell.plan) for each in summaries}
    if len(shapes) != 1:
        raise DataError(f"rows of {len(shapes)} models, sketches or run lengths: draw each apart")
    return summaries[0].cell


def told_setting(cell: Cell, summaries: Sequence[Summary]) -> str:
    """Model, tokens, unit, sketch, tolerance and p, for a caption."""
    plan = cell.plan
    taus = {each.cell.tau for each in summaries}
    tolerance = "exact tolerance" if taus == {None} else f"tau = {', '.join(str(tau) for tau in sorted(taus, key=str))}"
    return (
        f"Model {cell.model}, {plan.updates} updates of {plan.tokens:,} target tokens ({plan.updates * plan.tokens:,} "
        f"in all), units of {plan.unit}, sketch {cell.sketch}, {tolerance}, "
        f"p = {', '.join(f'{p:g}' for p in sorted({e.cell.p for e in summaries}))}."
    )


def told_trials(rows: Iterable[Row]) -> str:
    """Numbers of trials and training runs, for a caption."""
    good = [row for row in rows if row.error is None]
    raw = sum(row.estimator == "raw" for row in good)
    clusters = len({row.cluster for row in good})
    return f"{len(good) - raw} conditional trials (all coins averaged), {raw} whole runs, {clusters} training runs"


def told_band(plan: Plan) -> str:
    """The poisoning band and its sources, for a caption."""
    total = plan.updates * plan.tokens
    low, high = (share * total for share in POISON_SHARES)
    documents = " and ".join(f"{count} documents ≈ {tokens:,.0f} tokens" for count, tokens in POISON_DOCUMENTS.items())
    marked = [count for count, tokens in POISON_DOCUMENTS.items() if tokens <= total]
    where = "dotted lines" if marked else f"beyond this run's {total:,} tokens and not drawn"
    return (
        f"Shaded: 0.001% to 0.1% of the run's tokens ({low:,.2g} to {high:,.2g}), the shares found to poison "
        "pre-training (Alber et al. 2025, Nature Medicine; Zhang et al. 2024, Persistent pre-training poisoning of "
        f"LLMs). In absolute numbers {documents} ({where}), of which 100 failed and 250 worked from 600M to 13B "
        "parameters (Souly et al. 2025); neither scale carries over to a model as small as ours."
    )


def told_origin(rows: Iterable[Row]) -> str:
    """Machine and commit, for a caption."""
    made = {(row.machine or "an unnamed machine", row.commit[:12] or "no commit", row.dirty) for row in rows}
    return "; ".join(
        f"Made on {machine}, {commit}{' with changes' if dirty else ''}" for machine, commit, dirty in sorted(made)
    )


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
