"""Plan, run, collect: the trials of a plan that have no row yet are done, whatever stopped the run before.

Rows go to a shard of this process's own, so that any number of processes may work on one folder: what two of them do
at once is done twice, and stands once, for a trial is a pure function of what its key says.
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from witbench.attacks.base import Outcome
from witbench.errors import ConfigError
from witbench.evaluation.law import conditional
from witbench.evaluation.rows import Row, RowWriter, missing, read_rows
from witbench.evaluation.store import SHARDS, shards
from witbench.registry import PLACEMENTS, build
from witbench.trials.plan import Measured, Trial, TrialPlan, identity, versions
from witbench.trials.pool import run_all
from witbench.trials.stamp import Stamp
from witbench.trials.study import HONEST, Variant
from witbench.trials.work import Branch, RunWork, TrajectoryWork, look_up

Show = Callable[[int, int], None]


def artifacts_of(out: Path | None) -> Path:
    """Where artifacts are cached: in the output folder that was asked for, or beside those of all other runs."""
    return Path("runs/artifacts") if out is None else out / "artifacts"


@dataclass(frozen=True)
class Run:
    """A plan at work in a folder.

    Attributes:
        plan: what is to be done.
        folder: where rows and kept runs go.
        artifacts: where what trials share is cached.
        keep: whether the first whole honest run stays in the folder, as `certified/`.
    """

    plan: TrialPlan
    folder: Path
    artifacts: Path
    keep: bool = False

    def rows(self) -> list[Row]:
        """The rows of all planned trials that have one, in the planned order."""
        found = read_rows(shards(self.folder))
        return [found[trial.key] for trial in self.plan.trials if trial.key in found]

    def branches(self, part: Measured) -> list[dict[str, Any]]:
        """What was measured of one study: each branch with the attack's label and its training run."""
        found = []
        for run in range(part.study.runs):
            for branch, measured in self._trajectory(part, run).found().items():
                label = branch.variant.make(1).label if branch.variant else HONEST
                found.append({**measured, "label": label, "run": run})
        return found

    def __call__(self, show: Show) -> int:
        """Do what is missing; returns how many pieces of work that was.

        Raises:
            ConfigError: an honest run could not be measured; what was measured stands.
        """
        shard = self.folder / SHARDS / f"{time.time_ns()}-{os.getpid()}-{secrets.token_hex(2)}.jsonl"
        worked, tried = 0, set[str]()
        while left := [trial for trial in self._due() if trial.key not in tried]:
            tried |= {trial.key for trial in left}
            with RowWriter(shard) as writer:
                worked += self._work(left, writer, show)
        return worked

    def _due(self) -> list[Trial]:
        """Trials that have to be done now: all that are missing, but of a cell that may stop only the next few."""
        rows = read_rows(shards(self.folder))
        left = set(missing([trial.key for trial in self.plan.trials], rows, retry_errors=True))
        ruled: dict[str, list[Trial]] = {}
        for trial in self.plan.trials:
            if trial.rule is not None:
                ruled.setdefault(trial.cell, []).append(trial)
        for trials in ruled.values():
            left -= {trial.key for trial in _not_yet(trials, rows, self.plan.executor.processes(len(trials)))}
        return [trial for trial in self.plan.trials if trial.key in left]

    def _work(self, left: list[Trial], writer: RowWriter, show: Show) -> int:
        stamp = Stamp.take()
        raw = [trial for trial in left if trial.estimator == "raw"]
        keys = {trial.key for trial in left}
        trajectories = list(self._trajectories(keys))
        todo = [work for work in trajectories if work.missing()]
        work: list[Callable[[], Outcome | None]] = [*todo, *(self._whole(trial) for trial in raw)]
        show(0, len(work))
        for number, done in enumerate(run_all(work, self.plan.executor), start=1):
            if done.index >= len(todo):
                writer.write(_raw_row(raw[done.index - len(todo)], done.result, done.error, stamp))
            elif done.error is not None:
                raise ConfigError(f"honest run {todo[done.index].run} could not be measured: {done.error}")
            show(number, len(work))
        for part in self.plan.parts:
            for run in range(part.study.runs):
                chosen = [t for t in part.trials if (t.estimator, t.number) == ("conditional", run) and t.key in keys]
                if chosen:
                    keys -= {trial.key for trial in chosen}
                    writer.write_all(_looked_up(self._trajectory(part, run), chosen, stamp))
        return len(work)

    def _trajectories(self, keys: set[str]) -> Iterator[TrajectoryWork]:
        for part in self.plan.parts:
            runs = {trial.number for trial in part.trials if trial.estimator == "conditional" and trial.key in keys}
            for run in sorted(runs):
                yield self._trajectory(part, run)

    def _trajectory(self, part: Measured, run: int) -> TrajectoryWork:
        version = {**identity(part.base, part.roots), "versions": versions()}
        return TrajectoryWork(part.base, run, tuple(_branches(part, run)), self.artifacts, version)

    def _whole(self, trial: Trial) -> RunWork:
        first = next(t for t in self.plan.trials if t.estimator == "raw" and t.variant is None) if self.keep else None
        return RunWork(trial.key, trial.config, self.folder / "certified" if trial == first else None)


def _not_yet(trials: Sequence[Trial], rows: Mapping[str, Row], at_once: int) -> Sequence[Trial]:
    """Of the whole runs of one cell that may stop: those that are not needed, or not needed yet.

    Counted in the planned order, so that runs that are caught, and so end early, do not weigh more.
    """
    done = list(itertools.takewhile(lambda trial: trial.key in rows and rows[trial.key].error is None, trials))
    rule = trials[0].rule
    stopped = rule.stop([bool(rows[trial.key].detected) for trial in done]) if rule else None
    return trials[len(done) + at_once :] if stopped is None else trials[stopped:]


def _branches(part: Measured, run: int) -> Iterator[Branch]:
    """What has to be measured on one training run: each boundary, each attack, each size, and the honest unit."""
    for boundary in part.boundaries(run):
        yield Branch(None, boundary, 0)
        for variant in part.study.variants:
            attack = variant.make(1)
            places = attack.places(part.base.training.sequences, part.base.model.context)
            lies = attack.lies({0: tuple(range(min(2, places)))}, 1)
            # An attack whose lie does not grow with its amount is measured at one.
            sizes = sorted({1, *part.study.amounts}) if lies.get(0) != 1 else [1]
            yield from (Branch(variant, boundary, size) for size in sizes if size <= places)


def _looked_up(work: TrajectoryWork, trials: list[Trial], stamp: Stamp) -> list[Row]:
    """The conditional rows of one training run from its measured branches."""
    found = work.found()
    by_variant: dict[Variant | None, list[Branch]] = {}
    for branch in found:
        by_variant.setdefault(branch.variant, []).append(branch)
    seconds = sum(each["seconds"] for each in found.values()) / len(trials)
    known: dict[tuple[Variant | None, int, int], dict[str, Any]] = {}
    rows = []
    for trial in trials:
        branches, judged = by_variant.get(trial.variant, []), {}
        for unit, size in _touched(trial, branches).items():
            at = trial.variant, unit, size
            if at not in known:
                known[at] = found[look_up(branches, unit - 1, size)]
            judged[unit] = known[at]
        # An edit without effect is no lie, and its unit not touched.
        units = tuple(unit for unit in sorted(judged) if trial.variant is None or judged[unit]["tokens"])
        v = tuple(float(judged[unit]["detected"]) for unit in units)
        checks = [judged[unit]["check"] for unit in units if judged[unit]["check"]]
        rows.append(
            _row(
                trial,
                stamp,
                probability=conditional(trial.shape, trial.config.protocol.p, units, v),
                check=checks[0] if checks else None,
                units=units,
                v=v,
                cost_seconds=seconds,
                cost_gradients=1.0,
            )
        )
    return rows


def _touched(trial: Trial, branches: list[Branch]) -> dict[int, int]:
    """Touched unit -> places touched in it; for honest trials, every unit that was branched."""
    if trial.variant is None:
        return {branch.boundary + 1: 0 for branch in branches}
    shape, config = trial.shape, trial.config
    placement = build(PLACEMENTS, config.placement.name, config.placement.params)
    # Trials of one amount share their placement across p and attacks, which needs no run of its own.
    rng = np.random.default_rng([config.seed, trial.amount])
    positions = placement.draw(trial.amount, shape.tokens, shape.updates, shape.unit, rng)
    sizes: dict[int, int] = {}
    for update, size in trial.variant.make(trial.amount).lies(positions, shape.updates).items():
        unit = shape.unit_of(update)
        sizes[unit] = sizes.get(unit, 0) + size
    return sizes


def _row(trial: Trial, stamp: Stamp, **found: Any) -> Row:
    config = trial.config
    return Row(
        key=trial.key,
        attack=trial.label,
        placement=trial.placement,
        amount=trial.amount,
        protocol=config.protocol.name,
        sketch=config.sketch.name,
        model=config.model.name,
        p=config.protocol.p,
        L=config.protocol.unit,
        tau=config.tolerance.tau,
        updates=config.training.updates,
        tokens=trial.places,
        seed=config.seed,
        estimator=trial.estimator,
        clusters={"run": trial.run},
        **vars(stamp),
        **found,
    )


def _raw_row(trial: Trial, outcome: Outcome | None, error: str | None, stamp: Stamp) -> Row:
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
