"""From studies to trials: every trial with its key, and the branches and whole runs that they take."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import witbench
from witbench.config import DataConfig, RunConfig
from witbench.evaluation.law import Plan, fitting
from witbench.evaluation.rows import Estimator, trial_key
from witbench.evaluation.sequences import StoppingRule
from witbench.training.data import load_data
from witbench.trials.executor import ExecutorConfig
from witbench.trials.study import HONEST, RawPoint, Study, Variant, attacked, compose_study, under

LIBRARIES = ("torch", "numpy")
_SEEDS = 1_000_000
"""Seeds of a training run's conditional trials begin at multiples of this, those of whole runs beyond all of them."""
_RAW_SEEDS, _HONEST_SEEDS = 2**40, 2**41


def versions() -> dict[str, str]:
    """Versions that a trial's result may depend on."""
    return {"witbench": witbench.__version__, **{name: metadata.version(name) for name in LIBRARIES}}


Roots = tuple[str, str]
"""Roots of the training and the evaluation data, in hex."""


def identity(config: RunConfig, roots: Roots) -> dict[str, Any]:
    """What a result depends on of a configuration: contents of files, never their paths; no machine, no seed."""
    plain = config.to_plain()
    del plain["seed"]
    plain["data"] = list(roots)
    if config.tolerance.name == "exact":
        del plain["protocol"]["tau_scale"]  # without a tau it can only be 1
    calibration = config.tolerance.calibration
    if calibration is not None:
        plain["tolerance"]["calibration"] = hashlib.sha256(Path(calibration).read_bytes()).hexdigest()
    return plain


def _roots(data: DataConfig, vocab: int) -> Roots:
    training, evaluation = load_data(data, vocab)
    return training.root.hex(), evaluation.root.hex()


@dataclass(frozen=True)
class Trial:
    """One trial, planned.

    Attributes:
        key: its key in the rows.
        config: the whole configuration, attack and placement included; its seed is the trial's.
        estimator: `raw` or `conditional`.
        label: what rows call the attack; `none` for an honest run.
        placement: what rows call the placement; `none` for an honest run.
        amount: tokens or documents touched.
        places: places of one update that the placement picks from.
        run: the training run it belongs to, which is its cluster.
        number: of the training run.
        variant: its attack; None for an honest run.
        rule: what stops whole runs of its cell; None when all of them are done.
    """

    key: str
    config: RunConfig
    estimator: Estimator
    label: str
    placement: str
    amount: int
    places: int
    run: str
    number: int
    variant: Variant | None
    rule: StoppingRule | None = None

    @property
    def cell(self) -> str:
        """The same for the trials of one cell."""
        return self.run.rpartition("-")[0]

    @property
    def shape(self) -> Plan:
        """How its run is cut."""
        return Plan(self.config.training.updates, self.config.protocol.unit, self.places)


@dataclass(frozen=True)
class Measured:
    """One study with the honest configuration it is made on, the roots of its data, and its trials."""

    study: Study
    base: RunConfig
    roots: Roots
    trials: tuple[Trial, ...]

    @cached_property
    def shape(self) -> Plan:
        """How the runs are cut."""
        tokens = self.base.training.sequences * self.base.model.context
        return Plan(self.base.training.updates, self.base.protocol.unit, tokens)

    def boundaries(self, run: int) -> list[int]:
        """Unit boundaries that a training run is branched at: spread over the run, others in each run.

        The first and the last are among those of the study, for the first unit opens no start state and the last one
        is always checked.
        """
        study, units = self.study, self.shape.units
        count = min(study.states, units)
        cells = count * study.runs
        if cells == 1:
            return [0]
        return sorted({round((j * study.runs + run) * (units - 1) / (cells - 1)) for j in range(count)})


@dataclass(frozen=True)
class TrialPlan:
    """Everything that is going to be done.

    Attributes:
        key: of the whole; names the folder.
        parts: the studies.
        executor: what runs it; of no influence on the key.
    """

    key: str
    parts: tuple[Measured, ...]
    executor: ExecutorConfig

    @property
    def trials(self) -> list[Trial]:
        """All trials, each once: studies on the same configuration may share some."""
        return list({trial.key: trial for part in self.parts for trial in part.trials}.values())


def plan(names: Sequence[str], overrides: Sequence[str]) -> TrialPlan:
    """Plan one or several studies, all under the same overrides.

    Raises:
        ConfigError: an unknown study, or overrides that it sets itself.
    """
    made = [_measured(name, overrides) for name in names]
    parts = tuple(part for part, _ in made)
    text = "\n".join([*names, *(trial.key for part in parts for trial in part.trials)])
    return TrialPlan(hashlib.sha256(text.encode()).hexdigest()[:16], parts, made[0][1])


def _measured(name: str, overrides: Sequence[str]) -> tuple[Measured, ExecutorConfig]:
    study, base, executor = compose_study(name, overrides)
    presets = {point.protocol for point in study.raw} - {base.protocol.name}
    bases = {base.protocol.name: base, **{preset: under(name, overrides, preset) for preset in presets}}
    maker = _Maker(base, _roots(base.data, base.model.vocab))
    trials = (*_conditional(maker, study), *_raw(maker, study, bases), *_honest(maker, study))
    return Measured(study, base, maker.roots, trials), executor


class _Maker:
    """Makes trials; the part of a key that all trials of one cell share is formed once."""

    def __init__(self, base: RunConfig, roots: Roots) -> None:
        self.base, self.roots = base, roots
        self._versions = versions()

    def shape(self, variant: Variant) -> tuple[str, Plan]:
        """Label of an attack, and the runs as its placements see them."""
        made, base = variant.make(1), self.base
        places = made.places(base.training.sequences, base.model.context)
        return made.label, Plan(base.training.updates, base.protocol.unit, places)

    def cell(
        self, config: RunConfig, estimator: Estimator, variant: Variant | None, placement: str, amount: int
    ) -> _CellMaker:
        """The trials of one cell."""
        label, shape = self.shape(variant) if variant else (HONEST, self.shape(Variant("substitution"))[1])
        digest = trial_key({**identity(config, self.roots), "estimator": estimator}, 0, self._versions)
        return _CellMaker(digest, config, estimator, label, placement, amount, shape.tokens, variant)


@dataclass(frozen=True)
class _CellMaker:
    shared: str
    config: RunConfig
    estimator: Estimator
    label: str
    placement: str
    amount: int
    places: int
    variant: Variant | None

    def trial(self, seed: int, run: str, number: int) -> Trial:
        key = hashlib.blake2b(f"{self.shared}\n{run}\n{seed}".encode(), digest_size=16).hexdigest()
        return Trial(
            key,
            replace(self.config, seed=seed),
            self.estimator,
            self.label,
            self.placement,
            self.amount,
            self.places,
            run,
            number,
            self.variant,
        )


def _conditional(maker: _Maker, study: Study) -> Iterator[Trial]:
    for variant in study.variants:
        shape = maker.shape(variant)[1]
        for place, placement in enumerate(study.placements):
            only = study.placement_p if place else None
            fits = fitting(placement, shape)
            draws = study.draws if placement in study.random_placements else study.fewer
            for amount in (amount for amount in study.amounts if amount in fits):
                for p in study.probabilities if only is None else (only,):
                    config = attacked(maker.base, variant, placement, amount, p, 0)
                    cell = maker.cell(config, "conditional", variant, placement, amount)
                    for run in range(study.runs):
                        for draw in range(draws):
                            yield cell.trial(_SEEDS * run + draw, f"train-{run}", run)


def _raw(maker: _Maker, study: Study, bases: dict[str, RunConfig]) -> Iterator[Trial]:
    for point in study.raw:
        config = attacked(bases[point.protocol], point.variant, point.placement, point.amount, point.p, 0)
        cell = maker.cell(config, "raw", point.variant, point.placement, point.amount)
        for seed in range(point.trials):
            trial = cell.trial(_RAW_SEEDS + seed, _name(point, cell.label, seed), seed)
            yield replace(trial, rule=point.rule)


def _name(point: RawPoint, label: str, seed: int) -> str:
    return f"raw-{point.protocol}-{label}-{point.placement}-{point.amount}-{point.p:g}-{seed}"


def _honest(maker: _Maker, study: Study) -> Iterator[Trial]:
    base = maker.base
    p = max(study.probabilities)
    whole = maker.cell(replace(base, protocol=replace(base.protocol, p=p)), "raw", None, HONEST, 0)
    for seed in range(study.honest):
        yield whole.trial(_HONEST_SEEDS + seed, f"{HONEST}-{seed}", seed)
    branched = maker.cell(replace(base, protocol=replace(base.protocol, p=1.0)), "conditional", None, HONEST, 0)
    for run in range(study.runs):
        yield branched.trial(_SEEDS * run, f"train-{run}", run)
