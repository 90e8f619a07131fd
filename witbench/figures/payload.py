"""What a tolerance lets through: distances of lies beside tau, and the largest payload that nobody notices.

Reads measured branches and a calibration file. A lie is caught by its check when an earlier check fails, whatever tau,
or when some group of the sketch lies further off than tau; so one measurement answers for every tau.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from witbench.errors import DataError
from witbench.evaluation.law import Plan, fitting, theory
from witbench.figures.rates import COLORS, INK, STYLE, Artifacts, new_figure, placement_title

SCALES = tuple(10.0**exponent for exponent in range(-2, 8))
"""tau over the calibrated one."""
_PROBABILITIES = tuple(10.0 ** (exponent / 8) for exponent in range(-24, 1))
_NOTICED = 0.5
_LINES, _MARKERS = ("-", "--", "-.", ":"), ("o", "s", "^", "D")


@dataclass(frozen=True)
class Lie:
    """One branched unit.

    Attributes:
        attack: with its route.
        tokens: touched.
        ratio: largest distance over tau of a group; infinite when another check fails first.
        warmup: whether its unit is in the warm-up phase.
    """

    attack: str
    tokens: int
    ratio: float
    warmup: bool


def lies(branches: Sequence[Mapping[str, Any]], calibration: Mapping[str, Any]) -> list[Lie]:
    """Branches against the tolerances of a calibration.

    Args:
        branches: `label`, `size`, `tokens`, `boundary`, `check` and `distances` of each.
        calibration: the file's fields.
    """
    found = []
    for branch in branches:
        if branch["size"] == 0 or branch["tokens"] == 0:
            continue
        warmup = branch["boundary"] < calibration["warmup_units"]
        tau = calibration["tau"]["warmup" if warmup else "after"]
        distances = branch["distances"]
        early = branch["check"] not in (None, "replay.digest", "replay.distance")
        ratio = math.inf if early else max(distances[group] / tau[group] for group in tau)
        found.append(Lie(branch["label"], branch["size"], ratio, warmup))
    return found


def undetected(found: Sequence[Lie], scale: float, share: float) -> int:
    """Most tokens of one update whose lie passes its check in more than a share of the states; 0 when none does."""
    sizes = sorted({lie.tokens for lie in found})
    passing = [size for size in sizes if np.mean([lie.ratio <= scale for lie in found if lie.tokens == size]) > share]
    return max(passing, default=0)


def draw(
    branches: Sequence[Mapping[str, Any]], calibration: Mapping[str, Any], plan: Plan, told: str, folder: Path
) -> Artifacts:
    """Draw the figure and write PNG, PDF, the plotted numbers as CSV, and the caption.

    Args:
        branches: see `lies`.
        calibration: the file's fields.
        plan: the runs, for the law.
        told: model, machine and commit, for the caption.
        folder: where the files go; made when missing.

    Raises:
        DataError: nothing was measured.
    """
    found = lies(branches, calibration)
    if not found:
        raise DataError("payload: no branch with a lie was measured")
    folder.mkdir(parents=True, exist_ok=True)
    files = Artifacts(*(folder / f"payload.{end}" for end in ("png", "pdf", "csv", "txt")))
    with rc_context(STYLE):
        figure = _figure(found, plan)
        figure.savefig(files.png)
        figure.savefig(files.pdf, metadata={"CreationDate": None, "ModDate": None})
    _write_csv(found, files.csv)
    ones = [lie for lie in found if lie.tokens == 1 and not lie.warmup]
    missed = sorted({lie.attack for lie in ones if lie.ratio <= 1})
    caught = f"caught in all {len(ones)}" if not missed else f"missed in some of {', '.join(missed)}"
    files.caption.write_text(
        "Left: how far one token moves a unit, over the calibrated tau, one point a branched state; after warm-up it "
        f"is {caught} checks. Lies that another check catches first are at the right edge. Middle: most tokens of one "
        "update that pass their check in some state after warm-up, against tau; under `exact`, as under any tau left "
        f"of where a line rises, none do. Right: most tokens of a run that are noticed with less than {_NOTICED:g}, "
        "against p, by placement, with the checks that the left panel shows: a placement's units are what counts, so "
        "that below some p a burst or a few units hold all the tokens they have room for, and above it none. "
        f"{told}\n",
        encoding="utf-8",
    )
    return files


def _figure(found: Sequence[Lie], plan: Plan) -> Figure:
    attacks = sorted({lie.attack for lie in found})
    families = sorted({attack.partition(":")[0] for attack in attacks})
    colors = {attack: COLORS[families.index(attack.partition(":")[0])] for attack in attacks}
    figure = new_figure(10.6, 3.3)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 1, 1))
    _distances(left, found, attacks, colors)
    _against_tau(middle, [lie for lie in found if not lie.warmup], attacks, colors, plan)
    _against_p(right, [lie for lie in found if not lie.warmup], attacks, colors, plan)
    for axes in (middle, right):
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return figure


def _distances(axes: Axes, found: Sequence[Lie], attacks: Sequence[str], colors: Mapping[str, str]) -> None:
    finite = [lie.ratio for lie in found if math.isfinite(lie.ratio) and lie.ratio > 0]
    edge = 10 * max(finite, default=1.0)
    for line, attack in enumerate(attacks):
        for warmup in (False, True):
            here = [lie for lie in found if (lie.attack, lie.tokens, lie.warmup) == (attack, 1, warmup)]
            ratios = [min(max(lie.ratio, 1e-3), edge) for lie in here]
            height = np.full(len(ratios), line) + np.linspace(-0.2, 0.2, max(1, len(ratios)))[: len(ratios)]
            face = "white" if warmup else colors[attack]
            axes.plot(ratios, height, "o", color=colors[attack], markerfacecolor=face, markersize=3, alpha=0.8)
    axes.axvline(1.0, color=INK, linewidth=1.0)
    axes.set_xscale("log")
    axes.set_yticks(range(len(attacks)), [attack.replace("_", " ") for attack in attacks])
    axes.set_xlabel("distance of one token over tau (hollow: warm-up)")


def _against_tau(
    axes: Axes, found: Sequence[Lie], attacks: Sequence[str], colors: Mapping[str, str], plan: Plan
) -> None:
    for number, attack in enumerate(attacks):
        here = [lie for lie in found if lie.attack == attack]
        route = sum(colors[other] == colors[attack] for other in attacks[:number])
        axes.plot(
            [scale * 1.06 ** (number - len(attacks) / 2) for scale in SCALES],
            [undetected(here, scale, 0.0) for scale in SCALES],
            linestyle=_LINES[route % len(_LINES)],
            marker=_MARKERS[route % len(_MARKERS)],
            color=colors[attack],
            markersize=3,
            linewidth=0.9,
            label=attack.replace("_", " "),
        )
    axes.axvline(1.0, color=INK, linewidth=1.0)
    axes.set_xscale("log")
    axes.set_yscale("symlog", base=2, linthresh=1)
    axes.set_ylim(-0.2, 1.6 * plan.tokens)
    axes.set_xlabel("tau over the calibrated tau")
    axes.set_ylabel("tokens of one update that pass")
    axes.legend(frameon=False, loc="upper left", fontsize=6)


def _against_p(axes: Axes, found: Sequence[Lie], attacks: Sequence[str], colors: Mapping[str, str], plan: Plan) -> None:
    seen: dict[float, str] = {}
    for attack in attacks:
        ones = [lie.ratio > 1 for lie in found if lie.attack == attack and lie.tokens == 1]
        if ones:
            seen.setdefault(float(np.mean(ones)), attack)
    for placement, style in {"uniform": "-", "spread:8": "--", "burst": ":"}.items():
        # Attacks with the same checks have the same curve, which is drawn once.
        for v, attack in seen.items():
            most = [_most(placement, plan, p, v) for p in _PROBABILITIES]
            color = INK if len(seen) == 1 else colors[attack]
            axes.plot(_PROBABILITIES, most, style, color=color, linewidth=1.1, label=placement_title(placement))
    axes.set_xscale("log")
    axes.set_yscale("symlog", base=2, linthresh=1)
    axes.set_ylim(-0.2, 3 * plan.tokens * plan.updates)
    axes.set_xlabel("p")
    axes.set_ylabel(f"tokens of a run, noticed with less than {_NOTICED:g}")
    axes.legend(frameon=False, loc="lower left", fontsize=7)


def _most(placement: str, plan: Plan, p: float, v: float) -> int:
    """Most tokens that a placement holds with a detection below the bar; bisection, for the law grows with them."""
    allowed = fitting(placement, plan)
    low, high = 0, len(allowed)
    while low < high:
        middle = (low + high) // 2
        if theory(placement, allowed[middle], plan, p, v) < _NOTICED:
            low = middle + 1
        else:
            high = middle
    return allowed[low - 1] if low else 0


def _write_csv(found: Sequence[Lie], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["attack", "tokens", "warmup", "ratio"])
        writer.writerows([lie.attack, lie.tokens, lie.warmup, lie.ratio] for lie in found)
