"""Trials per second with nothing cached, with the training runs cached, and with what coins would show cached too."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from witbench.evaluation.summary import summarise
from witbench.evaluation.table import plain_table
from witbench.trials.plan import plan
from witbench.trials.run import Run

STUDY = "caching"
Show = Callable[[int, int], None]


@dataclass(frozen=True)
class Caching:
    """What was measured, in seconds.

    Attributes:
        trials: of the plan.
        cold: all of them with nothing cached.
        trained: the same with the states of the training runs cached.
        measured: the same with the branched units cached too.
        again: planning, reading and reporting all rows once more, when nothing is missing.
    """

    trials: int
    cold: float
    trained: float
    measured: float
    again: float

    @property
    def report(self) -> str:
        """The measurement as text."""
        lines = [f"{self.trials:,} trials of the study `{STUDY}`", ""]
        for name, seconds in (
            ("nothing cached", self.cold),
            ("training runs cached", self.trained),
            ("branched units cached too", self.measured),
        ):
            rate, ratio = self.trials / seconds, self.cold / seconds
            lines.append(f"  {name:<26} {seconds:8.2f} s  {rate:9.0f} trials/s  {ratio:6.2f} times")
        lines += ["", f"planned, read and reported once more, nothing missing: {self.again:.2f} s"]
        return "\n".join(lines)


def measure(overrides: Sequence[str], show: Show) -> Caching:
    """Run the study three times in one scratch folder, with less and less to do."""
    with tempfile.TemporaryDirectory(prefix="witbench-") as scratch:
        artifacts = Path(scratch) / "artifacts"
        made = plan([STUDY], overrides)

        def timed(name: str) -> float:
            began = time.perf_counter()
            Run(made, Path(scratch) / name, artifacts)(show)
            return time.perf_counter() - began

        cold = timed("cold")
        for path in artifacts.glob("*/branches.jsonl"):
            path.unlink()
        trained = timed("trained")
        measured = timed("measured")
        began = time.perf_counter()
        again = Run(plan([STUDY], overrides), Path(scratch) / "measured", artifacts)
        again(show)
        plain_table(summarise(again.rows()))
        seconds = time.perf_counter() - began
        shutil.rmtree(artifacts)
    return Caching(len(made.trials), cold, trained, measured, seconds)
