"""The picture of a calibration: per group, honest distances against what one token does, with tau between them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from witbench.calibration.measure import YARDSTICK
from witbench.protocol.snapshots import write_durably
from witbench.protocol.tau import AFTER, WARMUP

if TYPE_CHECKING:
    from witbench.calibration.measure import Distance
    from witbench.calibration.run import Calibrated

# Okabe and Ito's colors, told apart by the color-blind; one a variation, in the order of the list of variations.
_COLORS = {"threads": "#0072B2", "micro_batches": "#009E73", "order": "#56B4E9", "compile": "#CC79A7"}
_TOKEN, _INK, _BAND = "#D55E00", "#222222", "#F4F4F4"
_TITLES = {WARMUP: "warm-up", AFTER: "after warm-up"}
_STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "legend.fontsize": 8,
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
}
_DOT: dict[str, Any] = {"markersize": 2.6, "alpha": 0.55, "markeredgewidth": 0}
CSV_FIELDS = ("phase", "group", "what", "seed", "unit", "distance", "tau")


@dataclass(frozen=True)
class Artifacts:
    """The files of the picture."""

    png: Path
    pdf: Path
    csv: Path


def draw(calibrated: Calibrated) -> Artifacts:
    """Write PNG, PDF and the plotted distances as CSV beside the calibration."""
    rows = [row for run in calibrated.measured for row in (*run.honest, *run.token)]
    files = Artifacts(*(calibrated.path.with_suffix(end) for end in (".png", ".pdf", ".csv")))
    with rc_context(_STYLE):
        figure = _figure(calibrated.fields, rows)
        write_durably(files.png, _saved(figure, "png", {}))
        # Without dates, so that the same distances give the same bytes.
        write_durably(files.pdf, _saved(figure, "pdf", {"CreationDate": None, "ModDate": None}))
    write_durably(files.csv, _csv(calibrated.fields, rows))
    return files


def _saved(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()


def _csv(fields: Mapping[str, Any], rows: Sequence[Distance]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_FIELDS)
    for row in rows:
        for group, distance in row.groups.items():
            tau = fields["tau"][row.phase][group]
            writer.writerow((row.phase, group, row.variation, row.seed, row.unit, repr(distance), repr(tau)))
    return text.getvalue().encode()


def _figure(fields: Mapping[str, Any], rows: Sequence[Distance]) -> Figure:
    groups = list(fields["floor"])
    phases = [phase for phase in _TITLES if any(row.phase == phase for row in rows)]
    figure = Figure(figsize=(4.1 * len(phases) + 1.4, 0.27 * len(groups) + 1.7), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(phases), sharex=True, sharey=True, squeeze=False)[0]
    zero = _zero_place(fields, rows)
    for panel, phase in zip(panels, phases, strict=True):
        _panel(panel, phase, groups, [row for row in rows if row.phase == phase], fields, zero)
    _ticks(panels[0], zero, rows)
    figure.supxlabel("distance between the sketches of two computations of one unit", fontsize=9)
    figure.legend(handles=list(_legend(rows)), loc="outside upper center", ncols=6, frameon=False, handletextpad=0.2)
    return figure


def _zero_place(fields: Mapping[str, Any], rows: Sequence[Distance]) -> float:
    """Where distances of zero are drawn, on an axis that has no zero: a decade left of everything else."""
    taus = [tau for by_group in fields["tau"].values() for tau in by_group.values()]
    return min([*taus, *(value for row in rows for value in row.groups.values() if value > 0)]) / 10


def _ticks(axes: Axes, zero: float, rows: Sequence[Distance]) -> None:
    """Powers of a hundred, and a zero of its own; all panels share them."""
    largest = max(value for row in rows for value in row.groups.values())
    exponents = range(math.ceil(math.log10(zero * 3)), math.floor(math.log10(largest * 2)) + 1)
    powers = [exponent for exponent in exponents if exponent % 2 == 0]
    axes.set_xticks([zero, *(10.0**power for power in powers)], ["0", *(f"$10^{{{power}}}$" for power in powers)])
    axes.set_xticks([], minor=True)
    axes.set_xlim(zero / 2.5, 4 * largest)


def _panel(
    axes: Axes, phase: str, groups: Sequence[str], rows: Sequence[Distance], fields: Mapping[str, Any], zero: float
) -> None:
    axes.set_xscale("log")
    counts = fields["phases"][phase]
    axes.set_title(f"{_TITLES[phase]}: {counts['distances']} honest distances, {counts['units']} units")
    axes.set_yticks(range(len(groups)), groups)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.5, zorder=0)
    axes.axvspan(zero / 2.5, zero * 2.5, color="#E8E8E8", linewidth=0, zorder=0)
    jitter = np.random.default_rng(0)
    for place, group in enumerate(groups):
        if place % 2:
            axes.axhspan(place - 0.5, place + 0.5, color=_BAND, linewidth=0, zorder=-1)
        for variation in dict.fromkeys(row.variation for row in rows):
            values = [row.groups[group] or zero for row in rows if row.variation == variation]
            # Honest dots above the line and the token's below, so that neither hides the other.
            side = 1 if variation == YARDSTICK else -1
            heights = place + side * (0.06 + 0.26 * jitter.random(len(values)))
            axes.plot(values, heights, ".", color=_color(variation), rasterized=True, zorder=2, **_DOT)
        axes.plot([fields["tau"][phase][group]] * 2, [place - 0.42, place + 0.42], color=_INK, linewidth=1.5, zorder=3)


def _color(variation: str) -> str:
    return _TOKEN if variation == YARDSTICK else _COLORS.get(variation, "#999999")


def _legend(rows: Sequence[Distance]) -> Iterator[Line2D]:
    found = {row.variation for row in rows}
    for name in (*_COLORS, YARDSTICK):
        if name in found:
            label = "one token changed" if name == YARDSTICK else f"honest: {name.replace('_', '-')}"
            yield Line2D([], [], color=_color(name), linestyle="none", marker="o", markersize=4, label=label)
    yield Line2D([], [], color=_INK, linestyle="none", marker="|", markersize=9, markeredgewidth=1.5, label="tau")
