"""`witbench calibrate`: measure honest runs of one configuration and write what tau follows from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from witbench.calibration.honest import manifest_of
from witbench.calibration.measure import MeasureRun
from witbench.calibration.plan import first_shares, runs_needed, shares, ways_of
from witbench.calibration.pool import run_all
from witbench.calibration.result import calibration
from witbench.calibration.variations import VARIATIONS, chosen
from witbench.config import AttackConfig, PlacementConfig, RunConfig, ToleranceConfig
from witbench.errors import ConfigError
from witbench.protocol.snapshots import write_durably
from witbench.registry import SKETCHES, build

if TYPE_CHECKING:
    from witbench.calibration.measure import Measured

Show = Callable[[int, int], None]


@dataclass(frozen=True)
class Settings:
    """How to calibrate.

    Attributes:
        distances: honest distances a phase, as far as its units allow, and seeds of which the first unit is measured.
        factor: tau over the largest of them.
        runs: whole training runs; None for as many as the distances need, from 8 to 32.
        variations: names of the variations.
        workers: processes.
    """

    distances: int = 300
    factor: float = 10.0
    runs: int | None = None
    variations: tuple[str, ...] = tuple(VARIATIONS)
    workers: int = 2


@dataclass(frozen=True)
class Calibrated:
    """What a calibration left.

    Attributes:
        path: the file.
        fields: what it holds.
        measured: the distances behind it.
    """

    path: Path
    fields: dict[str, Any]
    measured: Sequence[Measured]


def bare(config: RunConfig) -> RunConfig:
    """A configuration without what no calibration depends on: tolerance, attack and placement."""
    return replace(
        config, tolerance=ToleranceConfig("exact"), attack=AttackConfig(), placement=PlacementConfig(), seed=config.seed
    )


def calibrate(config: RunConfig, settings: Settings, path: Path, show: Show) -> Calibrated:
    """Measure, and write the file whole.

    Args:
        config: the configuration; its `seed` is the first of the runs' seeds.
        settings: how much to measure.
        path: the file; its folder is made when missing.
        show: takes the runs done and all of them.

    Raises:
        ConfigError: variations that do not apply, a sketch without distances, a configuration that cannot train.
    """
    config = bare(config)
    variations, left_out = chosen(config, settings.variations)
    names = tuple(each.name for each in variations)
    ways = ways_of([each.draws() for each in variations])
    if not ways:
        raise ConfigError(f"variations={','.join(names)}: there is no other way to compute a unit here")
    runs = settings.runs or runs_needed(config, settings.distances, len(ways))
    parts = [
        *shares(config, settings.distances, ways, runs),
        *first_shares(max(0, settings.distances - runs), ways),
    ]
    work = [MeasureRun(config, config.seed + n, names, part, n < runs) for n, part in enumerate(parts)]
    measured: list[Measured] = []
    show(0, len(work))
    for done in run_all(work, settings.workers):
        measured.append(done)
        show(len(measured), len(work))
    measured.sort(key=lambda each: each.seed)
    design = build(SKETCHES, config.sketch.name, config.sketch.params)
    fields = calibration(config, manifest_of(config), design, settings.factor, measured, left_out)
    write_json(path, fields)
    return Calibrated(path, fields, measured)


def write_json(path: Path, fields: dict[str, Any]) -> None:
    """Write a JSON file whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, (json.dumps(fields, indent=1, allow_nan=False) + "\n").encode())
