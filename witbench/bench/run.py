"""The main job: real runs that carry a witness, a data attack caught at the predicted rate, and what shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from witbench.bench.publish import publish
from witbench.evaluation.store import collect
from witbench.evaluation.summary import Summary, summarise
from witbench.evaluation.table import plain_table
from witbench.figures.placements import draw
from witbench.figures.rates import Artifacts
from witbench.schema import require
from witbench.trials.plan import plan
from witbench.trials.run import Run, artifacts_of

Show = Callable[[int, int], None]


@dataclass(frozen=True)
class Result:
    """What the bench made.

    Attributes:
        folder: where everything is.
        summaries: the rates.
        figure: the first panel of Figure 5.
        cert: a certificate of an honest run.
        pinned: the key to pin for it.
        worked: pieces of work that had to be run this time.
    """

    folder: Path
    summaries: tuple[Summary, ...]
    figure: Artifacts
    cert: Path
    pinned: Path
    worked: int

    @property
    def table(self) -> str:
        """The table as text."""
        return plain_table(self.summaries)


def run_bench(study: str, overrides: Sequence[str], out: Path | None, show: Show) -> Result:
    """Plan, run what is missing, fold and draw.

    Args:
        study: name of the study, such as `bench`.
        overrides: of the configuration and the study.
        out: folder; runs/bench/<key> when None.
        show: told how many pieces of work are done, of how many.
    """
    made = plan([study], overrides)
    (part,) = made.parts
    require(part.study.honest >= 1, "study.honest", 0, "at least 1: the bench verifies an honest run's certificate")
    folder = out or Path("runs/bench") / made.key
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(made, folder, artifacts_of(out), keep=True)
    worked = run(show)
    rows = run.rows()
    summaries = tuple(summarise(rows))
    figure = draw(rows, folder)
    (folder / "table.txt").write_text(plain_table(summaries))
    kept = folder / "certified"
    return Result(folder, summaries, figure, kept / "run" / "cert", kept / "broker" / "broker.vkey", worked)


def publish_bench(result: Result, root: Path) -> Path:
    """Copy table, figure, rows and a manifest below `root`/cpu/bench.

    Raises:
        ConfigError: the working tree has changes, or this is no working copy.
    """
    figure = result.figure
    files = (figure.png, figure.pdf, figure.csv, figure.caption, result.folder / "table.txt", collect(result.folder))
    return publish(files, root / "cpu" / "bench", "witbench bench publish=true")
