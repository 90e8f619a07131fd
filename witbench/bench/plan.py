"""What the bench runs: which cells, how many trials, and the work behind them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from witbench.config import AttackConfig, PlacementConfig, RunConfig, compose
from witbench.errors import ConfigError
from witbench.evaluation.law import Plan, fitting
from witbench.evaluation.rows import Estimator, trial_key

LIBRARIES = ("torch", "numpy")
HONEST = "none"


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Attributes:
        seeds: training runs behind the conditional estimator; each is a cluster.
        boundaries: units from which each of them is branched.
        draws: placements drawn a training run, where the placement is random; `fewer` where the rate does not vary.
        fewer: see `draws`.
        amounts: tokens of an edit.
        probabilities: p.
        placements: name and parameters.
        raw: (preset, placement, amount, p, trials) of the end-to-end runs.
        honest: end-to-end honest runs.
        overrides: what the composed configuration starts from.
    """

    seeds: int
    boundaries: int
    draws: int
    fewer: int
    amounts: tuple[int, ...]
    probabilities: tuple[float, ...]
    placements: tuple[tuple[str, dict[str, Any]], ...]
    raw: tuple[tuple[str, str, int, float, int], ...]
    honest: int
    overrides: tuple[str, ...] = ()


SCALES = {
    "full": Scale(
        seeds=6,
        boundaries=6,
        draws=24,
        fewer=4,
        amounts=(1, 4, 16, 64, 256, 1024),
        probabilities=(0.01, 0.05, 0.1),
        placements=(("uniform", {}), ("burst", {}), ("spread", {"units": 8})),
        raw=(
            ("witness", "burst", 16, 0.1, 8),
            ("witness", "spread", 16, 0.1, 8),
            ("witness", "uniform", 256, 0.1, 8),
            ("unchecked", "burst", 1024, 0.0, 3),
        ),
        honest=4,
    ),
    "smoke": Scale(
        seeds=2,
        boundaries=2,
        draws=12,
        fewer=2,
        amounts=(1, 16),
        probabilities=(0.1,),
        placements=(("uniform", {}), ("burst", {})),
        raw=(("witness", "burst", 16, 0.1, 1), ("unchecked", "burst", 16, 0.0, 1)),
        honest=1,
        overrides=(
            "training.updates=8",
            "training.sequences=2",
            "model.layers=1",
            "model.width=16",
            "model.heads=2",
            "model.context=32",
            "sketch.params.k=64",
        ),
    ),
}


@dataclass(frozen=True)
class Trial:
    """One trial, planned.

    Attributes:
        key: its key in the rows.
        config: the whole configuration, attack and placement included; its seed is the trial's.
        estimator: `raw` or `conditional`.
        amount: tokens touched.
        run: the training run it belongs to, which is its cluster.
    """

    key: str
    config: RunConfig
    estimator: Estimator
    amount: int
    run: str


@dataclass(frozen=True)
class BenchPlan:
    """Everything the bench is going to do.

    Attributes:
        key: of the whole: a hash of scale and configuration; names the folder.
        scale: how much.
        base: the honest configuration.
        trials: all trials.
    """

    key: str
    scale: Scale
    base: RunConfig
    trials: tuple[Trial, ...]

    @property
    def shape(self) -> Plan:
        """How the runs are cut."""
        tokens = self.base.training.sequences * self.base.model.context
        return Plan(self.base.training.updates, self.base.protocol.unit, tokens)

    def boundaries(self) -> list[int]:
        """Unit boundaries that trajectories are branched from, spread over the run, the first among them."""
        count = min(self.scale.boundaries, self.shape.units)
        return sorted({round(i * (self.shape.units - 1) / max(1, count - 1)) for i in range(count)})


def versions() -> dict[str, str]:
    """Versions that a trial's result may depend on."""
    return {name: metadata.version(name) for name in LIBRARIES}


def make_plan(scale: str, overrides: Sequence[str]) -> BenchPlan:
    """Plan the bench.

    Raises:
        ConfigError: an unknown scale, or overrides that the bench sets itself.
    """
    if scale not in SCALES:
        raise ConfigError(f"scale={scale}: choose from {', '.join(SCALES)}")
    for text in overrides:
        if text.startswith(("attack", "placement", "protocol.p=", "protocol=", "tolerance", "seed=")):
            raise ConfigError(f"{text}: the bench sets attack, placement, protocol, p, tolerance and seed itself")
    chosen = SCALES[scale]
    base = compose([*chosen.overrides, *overrides, "protocol=witness", "tolerance=exact"])
    trials = (*_conditional(chosen, base), *_raw(chosen, base), *_honest(chosen, base))
    text = f"{scale}\n{[trial.key for trial in trials]}"
    return BenchPlan(hashlib.sha256(text.encode()).hexdigest()[:16], chosen, base, trials)


def with_attack(
    base: RunConfig, preset: str, p: float, amount: int, placement: str, params: dict[str, Any], seed: int
) -> RunConfig:
    """The configuration of one attacked run."""
    return replace(
        base,
        protocol=replace(base.protocol, name=preset, p=p),
        attack=AttackConfig("substitution", {"tokens": amount}),
        placement=PlacementConfig(placement, params),
        seed=seed,
    )


def _trial(config: RunConfig, estimator: Estimator, amount: int, run: str) -> Trial:
    key = trial_key({**config.to_plain(), "estimator": estimator, "run": run}, config.seed, versions())
    return Trial(key, config, estimator, amount, run)


def _conditional(scale: Scale, base: RunConfig) -> list[Trial]:
    tokens = base.training.sequences * base.model.context
    shape = Plan(base.training.updates, base.protocol.unit, tokens)
    trials = []
    for name, params in scale.placements:
        label = f"spread:{params['units']}" if name == "spread" else name
        for amount in (amount for amount in scale.amounts if amount in fitting(label, shape)):
            for p in scale.probabilities:
                for run in range(scale.seeds):
                    for draw in range(scale.draws if name == "uniform" else scale.fewer):
                        config = with_attack(base, "witness", p, amount, name, params, 1000 * run + draw)
                        trials.append(_trial(config, "conditional", amount, f"train-{run}"))
    return trials


def _raw(scale: Scale, base: RunConfig) -> list[Trial]:
    params_of = dict(scale.placements)
    trials = []
    for preset, placement, amount, p, count in scale.raw:
        for seed in range(count):
            config = with_attack(base, preset, p, amount, placement, params_of[placement], 10_000 + seed)
            trials.append(_trial(config, "raw", amount, f"raw-{preset}-{placement}-{seed}"))
    return trials


def _honest(scale: Scale, base: RunConfig) -> list[Trial]:
    trials = []
    p = max(scale.probabilities)
    for seed in range(scale.honest):
        config = replace(base, protocol=replace(base.protocol, p=p), seed=20_000 + seed)
        trials.append(_trial(config, "raw", 0, f"{HONEST}-{seed}"))
    for run in range(scale.seeds):
        config = replace(base, protocol=replace(base.protocol, p=1.0), seed=1000 * run)
        trials.append(_trial(config, "conditional", 0, f"train-{run}"))
    return trials
