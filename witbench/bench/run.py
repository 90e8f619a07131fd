"""The main job: real runs that carry a witness, a data attack caught at the predicted rate, and what shows it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from witbench.attacks.base import Outcome
from witbench.bench.plan import BenchPlan, Trial, make_plan, versions
from witbench.bench.pool import run_all
from witbench.bench.work import BranchWork, RunWork, look_up, read_branches
from witbench.config import NO_ATTACK
from witbench.errors import ConfigError
from witbench.evaluation.law import conditional
from witbench.evaluation.rows import Row, RowWriter, missing, read_rows
from witbench.evaluation.summary import Summary, summarise
from witbench.evaluation.table import plain_table
from witbench.figures.fig5 import Artifacts, draw
from witbench.registry import PLACEMENTS, build

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


def run_bench(scale: str, overrides: Sequence[str], out: Path | None, show: Show) -> Result:
    """Plan, run what is missing, fold and draw.

    Args:
        scale: `full` or `smoke`.
        overrides: of the configuration.
        out: folder; runs/bench/<key> when None.
        show: told how many pieces of work are done, of how many.
    """
    plan = make_plan(scale, overrides)
    folder = out or Path("runs/bench") / plan.key
    folder.mkdir(parents=True, exist_ok=True)
    with RowWriter(folder / "rows.jsonl") as writer:
        worked = _work(plan, folder, writer, show)
    rows = read_rows([folder / "rows.jsonl"])
    planned = [rows[trial.key] for trial in plan.trials]
    summaries = tuple(summarise(planned))
    figure = draw(planned, folder)
    (folder / "table.txt").write_text(plain_table(summaries))
    kept = folder / "certified"
    return Result(folder, summaries, figure, kept / "run" / "cert", kept / "broker" / "broker.vkey", worked)


def _work(plan: BenchPlan, folder: Path, writer: RowWriter, show: Show) -> int:
    """Do what is missing; returns how many pieces of work that was."""
    rows = read_rows([folder / "rows.jsonl"])
    left = set(missing([trial.key for trial in plan.trials], rows, retry_errors=True))
    raw = [trial for trial in plan.trials if trial.estimator == "raw" and trial.key in left]
    runs = sorted({trial.run for trial in plan.trials if trial.estimator == "conditional" and trial.key in left})
    branches = [_branch_work(plan, int(run.removeprefix("train-")), folder) for run in runs]
    branches = [work for work in branches if not work.path.exists()]
    work: list[Callable[[], Outcome | None]] = [*branches, *(_run_work(trial, plan, folder) for trial in raw)]
    stamp = _Stamp.take()
    show(0, len(work))
    workers = min(len(work), os.cpu_count() or 1) or 1
    for number, done in enumerate(run_all(work, workers), start=1):
        if done.index >= len(branches):
            writer.write(_raw_row(raw[done.index - len(branches)], done.result, done.error, stamp))
        elif done.error is not None:
            raise ConfigError(f"the honest run {branches[done.index].run} could not be measured: {done.error}")
        show(number, len(work))
    for run in runs:
        _look_up_all(plan, folder, run, left, writer, stamp)
    return len(work)


def _branch_work(plan: BenchPlan, run: int, folder: Path) -> BranchWork:
    path = folder / "branches" / f"train-{run}.json"
    path.parent.mkdir(exist_ok=True)
    return BranchWork(plan.base, run, tuple(plan.boundaries()), (0, *plan.scale.amounts), path)


def _run_work(trial: Trial, plan: BenchPlan, folder: Path) -> RunWork:
    first = next(t for t in plan.trials if t.estimator == "raw" and t.config.attack.name == NO_ATTACK)
    return RunWork(trial.key, trial.config, folder / "certified" if trial == first else None)


@dataclass(frozen=True)
class _Stamp:
    """Where and of what the rows are."""

    versions: dict[str, str]
    commit: str
    dirty: bool
    machine: str

    @classmethod
    def take(cls) -> _Stamp:
        commit, dirty = git_state()
        machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
        return cls(versions(), commit, dirty, machine)


def git_state() -> tuple[str, bool]:
    """Commit and whether there are changes; empty outside a working copy of this project."""
    here = Path(__file__).resolve().parent
    try:
        top = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, check=True, text=True)
        status = subprocess.run(["git", "status", "--porcelain"], cwd=here, capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "", False
    return top.stdout.strip(), bool(status.stdout.strip())


def _row(trial: Trial, stamp: _Stamp, **found: Any) -> Row:
    config = trial.config
    attacked = config.attack.name != NO_ATTACK
    placement = build(PLACEMENTS, config.placement.name, config.placement.params).label if attacked else NO_ATTACK
    return Row(
        key=trial.key,
        attack=config.attack.name,
        placement=placement,
        amount=trial.amount,
        protocol=config.protocol.name,
        sketch=config.sketch.name,
        model=config.model.name,
        p=config.protocol.p,
        L=config.protocol.unit,
        tau=config.tolerance.tau,
        updates=config.training.updates,
        tokens=config.training.sequences * config.model.context,
        seed=config.seed,
        estimator=trial.estimator,
        clusters={"run": trial.run},
        **vars(stamp),
        **found,
    )


def _raw_row(trial: Trial, outcome: Outcome | None, error: str | None, stamp: _Stamp) -> Row:
    if outcome is None:
        return _row(trial, stamp, error=error or "no outcome")
    return _row(
        trial,
        stamp,
        detected=outcome.detected,
        check=outcome.check,
        payload=dict(outcome.payload),
        cost_gradients=outcome.cost_gradients / outcome.honest_gradients,
        cost_seconds=outcome.cost_seconds,
    )


def _look_up_all(
    plan: BenchPlan, folder: Path, run: str, left: Iterable[str], writer: RowWriter, stamp: _Stamp
) -> None:
    """Write the conditional rows of one training run from its measured branches."""
    table = read_branches(folder / "branches" / f"{run}.json")
    trials = [t for t in plan.trials if t.estimator == "conditional" and t.run == run and t.key in left]
    seconds = table["seconds"] / max(1, len(trials))
    for trial in trials:
        judged = _judged(plan, trial, table["branches"])
        units = tuple(sorted(judged))
        v = tuple(float(judged[unit]["detected"]) for unit in units)
        checks = [judged[unit]["check"] for unit in units if judged[unit]["check"]]
        probability = conditional(plan.shape, trial.config.protocol.p, units, v)
        first = checks[0] if checks else None
        writer.write(
            _row(
                trial,
                stamp,
                probability=probability,
                check=first,
                units=units,
                v=v,
                cost_seconds=seconds,
                cost_gradients=1.0,
            )
        )


def _judged(plan: BenchPlan, trial: Trial, branches: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Touched unit -> the branch that speaks for it; for honest trials, all units that were branched."""
    config, shape = trial.config, plan.shape
    if config.attack.name == NO_ATTACK:
        return {b["unit"]: b for b in branches if b["size"] == 0}
    placement = build(PLACEMENTS, config.placement.name, config.placement.params)
    # Trials of one amount share their placement across p, which needs no run of its own.
    rng = np.random.default_rng([config.seed, trial.amount])
    drawn = placement.draw(trial.amount, shape.tokens, shape.updates, shape.unit, rng)
    sizes: dict[int, int] = {}
    for update, positions in drawn.items():
        unit = shape.unit_of(update)
        sizes[unit] = sizes.get(unit, 0) + len(positions)
    return {unit: look_up(branches, unit, size) for unit, size in sizes.items()}


def publish(result: Result, root: Path) -> Path:
    """Copy table, figure, rows and a manifest below `root`/cpu/bench.

    Raises:
        ConfigError: the working tree has changes, or this is no working copy.
    """
    commit, dirty = git_state()
    if not commit or dirty:
        raise ConfigError("publish=true: only from a clean working copy, so that the commit says what was run")
    target = root / "cpu" / "bench"
    target.mkdir(parents=True, exist_ok=True)
    files = (result.figure.png, result.figure.pdf, result.figure.csv, result.figure.caption)
    for path in (*files, result.folder / "table.txt", result.folder / "rows.jsonl"):
        shutil.copyfile(path, target / path.name)
    stamp = _Stamp.take()
    manifest = {"command": "witbench bench publish=true", **vars(stamp)}
    (target / "manifest.json").write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    return target
