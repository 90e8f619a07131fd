"""Figures: which studies are behind each, and what draws it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from witbench.bench.publish import publish
from witbench.calibration.run import Settings, calibrate
from witbench.errors import ConfigError
from witbench.evaluation.rows import Row
from witbench.evaluation.store import collect
from witbench.figures import agreement, fig5, payload, poison
from witbench.figures.rates import Artifacts, told_origin
from witbench.protocol.snapshots import write_durably
from witbench.registry import unknown
from witbench.trials.plan import plan
from witbench.trials.run import Run, artifacts_of

Show = Callable[[int, int], None]


@dataclass(frozen=True)
class Material:
    """What a figure is drawn from.

    Attributes:
        run: the studies behind it, all done.
        parts: rows of each study.
        folder: where files go.
        scale: of the figure.
        show: told how far further work is.
    """

    run: Run
    parts: Sequence[Sequence[Row]]
    folder: Path
    scale: str
    show: Show


def _fig5(material: Material) -> list[Artifacts]:
    return [fig5.draw(material.parts[0], material.folder), agreement.draw(material.parts[1], material.folder)]


def _poison(material: Material) -> list[Artifacts]:
    return [poison.draw(material.parts[0], material.folder)]


def _payload(material: Material) -> list[Artifacts]:
    """Distances of lies, beside tolerances that are calibrated here for the very configuration."""
    (part,) = material.run.plan.parts
    path = material.folder / "calibration.json"
    if not path.exists():
        settings = Settings(distances=20) if material.scale == "smoke" else Settings()
        calibrate(part.base, settings, path, material.show)
    branches = material.run.branches(part)
    write_durably(material.folder / "branches.json", json.dumps(branches, indent=0).encode())
    cell, rows = part.base, material.parts[0]
    told = f"Model {cell.model.name}, {part.shape.updates} updates of {part.shape.tokens:,} target tokens, sketch "
    told += f"{cell.sketch.name}, {part.study.runs} training runs. {told_origin(rows)}."
    calibration = json.loads(path.read_bytes())
    return [payload.draw(branches, calibration, part.shape, told, material.folder)]


@dataclass(frozen=True)
class FigureKind:
    """One figure.

    Attributes:
        studies: scale -> the studies whose trials it shows.
        draw: draws it.
        more: files beside the drawings that go with them.
    """

    studies: dict[str, tuple[str, ...]]
    draw: Callable[[Material], list[Artifacts]]
    more: tuple[str, ...] = ()


FIGURES = {
    "fig5": FigureKind(
        {
            "cpu": ("fig5_cpu", "fig5_raw_cpu"),
            "paper": ("fig5_paper", "fig5_raw_cpu"),
            "smoke": ("fig5_smoke", "fig5_raw_smoke"),
        },
        _fig5,
    ),
    "payload": FigureKind(
        {"cpu": ("payload_cpu",), "smoke": ("payload_smoke",)}, _payload, ("calibration.json", "branches.json")
    ),
    "poison": FigureKind({"cpu": ("poison_cpu",), "smoke": ("poison_smoke",)}, _poison),
}


@dataclass(frozen=True)
class Drawn:
    """A figure and where it is.

    Attributes:
        folder: of rows and files.
        files: of each drawing.
        rows: behind it.
        errors: trials without a result.
        worked: pieces of work that had to be done this time.
    """

    folder: Path
    files: tuple[Artifacts, ...]
    rows: int
    errors: int
    worked: int


def make(name: str, scale: str, overrides: Sequence[str], out: Path | None, show: Show) -> Drawn:
    """Plan, run what is missing, collect and draw.

    Args:
        name: of the figure.
        scale: one of the figure's, such as `cpu`.
        overrides: of the configuration and its studies.
        out: folder; runs/figure/<name>-<key> when None.
        show: told how many pieces of work are done, of how many.

    Raises:
        ConfigError: an unknown figure or scale.
    """
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    kind = FIGURES[name]
    if scale not in kind.studies:
        raise unknown("scale", scale, kind.studies)
    made = plan(kind.studies[scale], overrides)
    folder = out or Path("runs/figure") / f"{name}-{made.key}"
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(made, folder, artifacts_of(out))
    worked = run(show)
    rows = {row.key: row for row in run.rows()}
    parts = [[rows[trial.key] for trial in part.trials if trial.key in rows] for part in made.parts]
    files = kind.draw(Material(run, parts, folder, scale, show))
    collect(folder)
    errors = sum(row.error is not None for row in rows.values())
    return Drawn(folder, tuple(files), len(rows), errors, worked)


def publish_figure(drawn: Drawn, name: str, scale: str, root: Path) -> Path:
    """Copy the files, the rows and a manifest below `root`/cpu/<name>, or gpu/ for another scale.

    Raises:
        ConfigError: trials without a result, or no clean working copy.
    """
    if drawn.errors:
        raise ConfigError(f"publish=true: {drawn.errors} trials have no result; run the command again")
    files = [path for each in drawn.files for path in (each.png, each.pdf, each.csv, each.caption)]
    files += [drawn.folder / more for more in FIGURES[name].more]
    target = root / ("cpu" if scale == "cpu" else "gpu") / name
    return publish(
        [*files, drawn.folder / "rows.parquet"], target, f"witbench figure {name} scale={scale} publish=true"
    )
