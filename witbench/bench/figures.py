"""Figures: which studies are behind each, and what draws it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from witbench.bench.publish import publish
from witbench.errors import ConfigError
from witbench.evaluation.rows import Row
from witbench.evaluation.store import collect
from witbench.figures import agreement, fig5
from witbench.figures.rates import Artifacts
from witbench.registry import unknown
from witbench.trials.plan import plan
from witbench.trials.run import Run, artifacts_of

Show = Callable[[int, int], None]
Draw = Callable[[Sequence[Row], Path], Artifacts]


@dataclass(frozen=True)
class FigureKind:
    """One figure.

    Attributes:
        studies: scale -> the studies whose trials it shows.
        drawings: study's place in that list -> what draws its rows.
    """

    studies: dict[str, tuple[str, ...]]
    drawings: tuple[tuple[int, Draw], ...]


FIGURES = {
    "fig5": FigureKind(
        {
            "cpu": ("fig5_cpu", "fig5_raw_cpu"),
            "paper": ("fig5_paper", "fig5_raw_paper"),
            "smoke": ("fig5_smoke", "fig5_raw_smoke"),
        },
        ((0, fig5.draw), (1, agreement.draw)),
    ),
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
        scale: `cpu`, `paper` or `smoke`.
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
    files = []
    for place, draw in kind.drawings:
        files.append(draw([rows[trial.key] for trial in made.parts[place].trials], folder))
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
    target = root / ("cpu" if scale == "cpu" else "gpu") / name
    return publish(
        [*files, drawn.folder / "rows.parquet"], target, f"witbench figure {name} scale={scale} publish=true"
    )
