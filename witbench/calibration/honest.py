"""Honest trajectories to measure on: the units of one seed, each with its start state, batches and end state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from witbench.calibration.variations import run_unit
from witbench.errors import ConfigError, StateError
from witbench.kernels.manifest import build_manifest, full_view
from witbench.protocol.ledger import Plan
from witbench.registry import SKETCHES, build
from witbench.training.data import load_data
from witbench.training.determinism import set_deterministic
from witbench.training.source import builtin_spec, procedure_from

if TYPE_CHECKING:
    from witbench.config import DataConfig, RunConfig
    from witbench.kernels.base import Manifest, Sketch, SketchDesign
    from witbench.training.data import Dataset
    from witbench.training.procedure import Procedure
    from witbench.training.state import Batch, State


@dataclass(frozen=True)
class Unit:
    """One honest unit.

    Attributes:
        number: 1-based.
        start, end: its states.
        batches: its batches, one an update.
    """

    number: int
    start: State
    batches: tuple[Batch, ...]
    end: State


class Honest:
    """One honest run, a pure function of configuration and seed.

    Args:
        config: the configuration.
        seed: of initial state and data order. A seed of a calibration and the same seed of a check are the same run.
    """

    def __init__(self, config: RunConfig, seed: int) -> None:
        set_deterministic(config.training.threads)
        self.procedure: Procedure = procedure_from(builtin_spec(config.procedure_plain()))
        self.plan = Plan(config.training.updates, config.protocol.unit)
        self.dataset, self.evaluation_set = _data(config.data, config.model.vocab)
        self._order = _drawn(f"order/{seed}")
        self._initial = self.procedure.init(int.from_bytes(_drawn(f"init/{seed}")[:7], "big"))
        self.manifest = build_manifest(self._initial.real, config.sketch.groups)
        self.design: SketchDesign = build(SKETCHES, config.sketch.name, config.sketch.params)

    def units(self, last: int | None = None) -> Iterator[Unit]:
        """The units in order, up to the last one or a given one."""
        state = self._initial
        for number in range(1, (last or self.plan.units) + 1):
            updates = self.plan.updates_of(number)
            batches = tuple(self.procedure.batch(self.dataset, self._order, t) for t in updates)
            end = run_unit(self.procedure, state, batches)
            yield Unit(number, state, batches, end)
            state = end

    def sketch(self, state: State, key: bytes) -> Sketch:
        """Sketch a state under a 32-byte key. Raises ConfigError when training has left what a sketch covers."""
        try:
            return self.design.sketch(full_view(self.manifest, state.real), key)
        except StateError as error:
            raise ConfigError(f"the honest run breaks ({error}); there is nothing to calibrate") from None


def manifest_of(config: RunConfig) -> Manifest:
    """The manifest of a configuration's states."""
    initial = procedure_from(builtin_spec(config.procedure_plain())).init(0)
    return build_manifest(initial.real, config.sketch.groups)


def rounding_of(state: State, manifest: Manifest) -> Mapping[str, float]:
    """Group -> largest step by which the storage of one of its values can round: eps of the dtype times the value."""
    steps: dict[str, float] = {}
    for entry in manifest.entries:
        tensor = state.real[entry.role, entry.name]
        largest = float(tensor.detach().abs().max()) if tensor.numel() else 0.0
        largest = largest**0.5 if entry.transform == "sqrt" else largest
        step = torch.finfo(tensor.dtype).eps * largest
        steps[entry.group] = max(steps.get(entry.group, 0.0), step)
    return steps


@lru_cache(maxsize=1)
def _data(config: DataConfig, vocab: int) -> tuple[Dataset, Dataset]:
    training, evaluation = load_data(config, vocab)
    return training, evaluation


def _drawn(label: str) -> bytes:
    return hashlib.sha256(f"witbench/calibration/v0\n{label}".encode()).digest()
