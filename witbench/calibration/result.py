"""From measured distances to tau: the calibration as it is written.

tau of a group is a factor times the largest honest distance of its phase, and at least that factor times the group's
floor. The floor is the step by which the storage of its largest value rounds. Distances that small come and go: a value
near a rounding boundary is stored as one number or its neighbour, so in a group of few or steady values most honest
replays agree to the last bit, and then one does not. A tau of zero, or of the few distances that happened to be seen,
would reject that one. Below the step of the sketch's own grid, and below what recomputing a sketch may change, no
distance means anything, so the floor is not below these either.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

import witbench
from witbench.evaluation.rates import clopper_pearson
from witbench.protocol.policy import Policy, PolicyError
from witbench.protocol.prover import LIBRARIES
from witbench.protocol.tau import AFTER, WARMUP, warmup_units
from witbench.protocol.tolerances import FORMAT, identity, identity_digest

if TYPE_CHECKING:
    from witbench.calibration.measure import Distance, Measured
    from witbench.config import RunConfig
    from witbench.kernels.base import Manifest, SketchDesign

QUANTILES = (0.5, 0.9, 0.99, 1.0)
PHASES = (WARMUP, AFTER)
_EVALUATION_EPS = 2.0**-23
"""Losses are summed in float32 whatever the model's dtype, so this is the step of an evaluated value of 1."""


def calibration(
    config: RunConfig,
    manifest: Manifest,
    design: SketchDesign,
    factor: float,
    measured: Sequence[Measured],
    left_out: Mapping[str, str],
) -> dict[str, Any]:
    """The calibration file as JSON values.

    Args:
        config: what was calibrated.
        manifest: of its states.
        design: its sketch design.
        factor: tau over the largest distance.
        measured: the runs, at least one.
        left_out: variation -> why it was not applied.
    """
    made_for = identity(config, manifest)
    floor = floors(manifest, design, measured)
    honest = {phase: _of_phase([row for run in measured for row in run.honest], phase) for phase in PHASES}
    token = {phase: _of_phase([row for run in measured for row in run.token], phase) for phase in PHASES}
    largest = {phase: _largest(rows, floor) for phase, rows in honest.items()}
    tau = {phase: taus(largest, floor, factor, phase) for phase in PHASES}
    return {
        "format": FORMAT,
        "identity": made_for,
        "identity_sha256": identity_digest(made_for),
        "config": config.to_plain(),
        "factor": factor,
        "tau": tau,
        "evaluation_tau": evaluation_tau(measured, factor),
        "warmup_units": warmup_units(config.training.updates, config.protocol.unit),
        "floor": floor,
        "phases": {
            phase: {
                **_phase(honest[phase], token[phase], floor),
                "within_policy": within_policy(token[phase], tau[phase]),
            }
            for phase in PHASES
        },
        "variations_left_out": dict(left_out),
        "seeds": [run.seed for run in measured],
        "false_rejects": held_out(measured, floor, factor),
        "versions": {"witbench": witbench.__version__, **{name: metadata.version(name) for name in LIBRARIES}},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def floors(manifest: Manifest, design: SketchDesign, measured: Sequence[Measured]) -> dict[str, float]:
    """Group -> the least distance that is taken for the largest honest one."""
    grid = {entry.group: math.ldexp(1.0, -entry.scale_bits) for entry in manifest.entries}
    return {
        group: max(step, design.recompute_tolerance, *(run.rounding[group] for run in measured))
        for group, step in grid.items()
    }


def taus(
    largest: Mapping[str, Mapping[str, float]], floor: Mapping[str, float], factor: float, phase: str
) -> dict[str, float]:
    """Group -> tau of a phase. A phase that the run has no unit of gets the other one's; nothing is judged by it."""
    own = largest[phase] or next((each for each in largest.values() if each), floor)
    return {group: factor * max(own[group], least) for group, least in floor.items()}


def evaluation_tau(measured: Sequence[Measured], factor: float) -> dict[str, float]:
    """Name -> how far a shown evaluation may lie from the prover's."""
    least: dict[str, float] = {}
    for run in measured:
        for name, found in run.evaluated.items():
            least[name] = max(least.get(name, 0.0), found.moved, _EVALUATION_EPS * found.largest)
    return {name: factor * value for name, value in least.items()}


def within_policy(token: Sequence[Distance], tau: Mapping[str, float]) -> dict[str, int]:
    """Of the units in which a token was changed, those whose tau a verifier accepts beside it by default."""
    refused = 0
    for row in token:
        try:
            Policy().check_tau(tau, row.groups, row.unit, 0)
        except PolicyError:
            refused += 1
    return {"of": len(token), "met": len(token) - refused}


def held_out(measured: Sequence[Measured], floor: Mapping[str, float], factor: float) -> dict[str, Any]:
    """False rejects so far: each run's distances against the tau that the other runs alone would give.

    The check on disjoint seeds is the real one; this costs nothing and says at once when a factor is too small.
    """
    rejected = judged = 0
    for left in measured:
        rest = [run for run in measured if run is not left]
        largest = {p: _largest(_of_phase([row for run in rest for row in run.honest], p), floor) for p in PHASES}
        for row in left.honest if rest else ():
            tau = taus(largest, floor, factor, row.phase)
            rejected += any(not distance <= tau[group] for group, distance in row.groups.items())
            judged += 1
    at_most = clopper_pearson(rejected, judged, side="upper")[1] if judged else 1.0
    return {"rejected": rejected, "of": judged, "at_most": at_most, "confidence": 0.95, "how": "each run held out"}


def _of_phase(rows: Sequence[Distance], phase: str) -> list[Distance]:
    return [row for row in rows if row.phase == phase]


def _largest(rows: Sequence[Distance], floor: Mapping[str, float]) -> dict[str, float]:
    return {group: max(row.groups[group] for row in rows) for group in floor} if rows else {}


def _phase(honest: Sequence[Distance], token: Sequence[Distance], floor: Mapping[str, float]) -> dict[str, Any]:
    """What a phase's tau rests on: counts, the distances in quantiles, and the yardstick."""
    variations = sorted({row.variation for row in honest})
    return {
        "distances": len(honest),
        "units": len({(row.seed, row.unit) for row in honest}),
        "by_variation": {name: sum(row.variation == name for row in honest) for name in variations},
        "largest_by_variation": {
            name: _largest([row for row in honest if row.variation == name], floor) for name in variations
        },
        "groups": {
            group: {
                "largest": max((row.groups[group] for row in honest), default=0.0),
                "quantiles": _quantiles([row.groups[group] for row in honest]),
                "one_token": _least_and_median([row.groups[group] for row in token]),
            }
            for group in floor
        },
    }


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    # Of values, not between them: a quantile is a distance that was measured.
    return {f"{q:g}": float(np.quantile(values, q, method="higher")) for q in QUANTILES} if values else {}


def _least_and_median(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {"count": 0, "min": 0.0, "median": 0.0}
    return {"count": len(values), "min": min(values), "median": float(np.median(values))}
