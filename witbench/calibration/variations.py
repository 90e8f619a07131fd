"""Other numerics of the same update: the noise that honest live runs and honest replays may differ by.

Each variation turns (procedure, state, batches) into the end state of a unit that was computed in another way. What is
computed is the same in exact arithmetic, so the exact part must come out equal, and only roundings of the real part
may differ. `VARIATIONS` is the one list of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch

from witbench.errors import ConfigError
from witbench.registry import unknown

if TYPE_CHECKING:
    import numpy as np

    from witbench.config import RunConfig
    from witbench.training.data import Dataset
    from witbench.training.procedure import Procedure
    from witbench.training.state import Batch, State

THREADS = (1, 2)
"""Thread counts that are held against each other."""

_ORDERS = 8
"""Most permutations of the rows that are tried on one unit."""

_DROPOUT = "with model.dropout the masks follow the rows, so it would train another function"


def run_unit(procedure: Procedure, state: State, batches: Sequence[Batch]) -> State:
    """The end state of a unit."""
    for batch in batches:
        state = procedure.update(state, batch)
    return state


@contextmanager
def thread_count(threads: int) -> Iterator[None]:
    """Compute with another number of torch threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Variation(ABC):
    """One way to compute a unit otherwise.

    Args:
        config: the configuration that is calibrated.

    Attributes:
        name: as it is chosen on the command line and named in a calibration.
    """

    name: ClassVar[str]

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def unfit(self) -> str | None:
        """Why it does not apply to this configuration or machine, or None."""
        return None

    @abstractmethod
    def draws(self) -> int:
        """How many different ways it has on one unit."""

    @abstractmethod
    def __call__(
        self, procedure: Procedure, state: State, batches: Sequence[Batch], draw: int, random: np.random.Generator
    ) -> State:
        """The end state of a unit.

        Args:
            procedure: the honest procedure.
            state: start state of the unit.
            batches: its batches, one an update.
            draw: which of its ways, from 0.
            random: for ways that are drawn.
        """

    def evaluate(self, procedure: Procedure, state: State, dataset: Dataset) -> Mapping[str, float] | None:
        """The procedure's `evaluate` under it; None when it changes nothing there."""
        return None


class Threads(Variation):
    """Another thread count: sums are split by thread."""

    name = "threads"

    def draws(self) -> int:
        return len(self._others)

    def __call__(
        self, procedure: Procedure, state: State, batches: Sequence[Batch], draw: int, random: np.random.Generator
    ) -> State:
        with thread_count(self._others[draw]):
            return run_unit(procedure, state, batches)

    def evaluate(self, procedure: Procedure, state: State, dataset: Dataset) -> Mapping[str, float] | None:
        with thread_count(self._others[0]):
            return procedure.evaluate(state, dataset)

    @property
    def _others(self) -> list[int]:
        return [threads for threads in THREADS if threads != self.config.training.threads]


class MicroBatches(Variation):
    """Another split of the batch: gradients are added up in other parts."""

    name = "micro_batches"

    def unfit(self) -> str | None:
        if self.config.model.dropout:
            return _DROPOUT
        return None if self._splits else "a batch of one row has one split"

    def draws(self) -> int:
        return len(self._splits)

    def __call__(
        self, procedure: Procedure, state: State, batches: Sequence[Batch], draw: int, random: np.random.Generator
    ) -> State:
        parts = self._splits[draw]
        split = []
        for batch in batches:
            rows = batch.tokens.shape[0]
            split.append(replace(batch, batch_fields={**batch.batch_fields, "micro_batches": (rows // parts,) * parts}))
        return run_unit(procedure, state, split)

    @property
    def _splits(self) -> list[int]:
        rows, own = self.config.training.sequences, self.config.training.micro_batches
        return [parts for parts in range(1, rows + 1) if rows % parts == 0 and parts != own]


class Order(Variation):
    """The rows of each batch in another order: the same sum, added up otherwise."""

    name = "order"

    def unfit(self) -> str | None:
        if self.config.model.dropout:
            return _DROPOUT
        return None if self.config.training.sequences > 1 else "a batch of one row has one order"

    def draws(self) -> int:
        return min(_ORDERS, math.factorial(self.config.training.sequences) - 1)

    def __call__(
        self, procedure: Procedure, state: State, batches: Sequence[Batch], draw: int, random: np.random.Generator
    ) -> State:
        return run_unit(procedure, state, [_permuted(batch, random) for batch in batches])


class Compiled(Variation):
    """Loss and gradient compiled by torch: fused kernels round in other places."""

    name = "compile"

    def unfit(self) -> str | None:
        from witbench.calibration.compiled import compiler_trouble

        return _DROPOUT if self.config.model.dropout else compiler_trouble()

    def draws(self) -> int:
        return 1

    def __call__(
        self, procedure: Procedure, state: State, batches: Sequence[Batch], draw: int, random: np.random.Generator
    ) -> State:
        from witbench.calibration.compiled import compiled_procedure

        return run_unit(compiled_procedure(self.config), state, batches)


VARIATIONS: dict[str, type[Variation]] = {cls.name: cls for cls in (Threads, MicroBatches, Order, Compiled)}
"""Name -> variation, in the order in which they are applied."""


def read_names(text: str) -> tuple[str, ...]:
    """The names of a comma-separated list, each once. Raises ConfigError for an unknown one."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in VARIATIONS:
            raise unknown("variations", name, VARIATIONS)
    if not names:
        raise ConfigError(f"variations={text}: must name at least one of {', '.join(VARIATIONS)}")
    return names


def chosen(config: RunConfig, names: Sequence[str]) -> tuple[list[Variation], dict[str, str]]:
    """The variations of these names that apply, and why the others do not (name -> reason).

    Raises:
        ConfigError: none applies.
    """
    made = [VARIATIONS[name](config) for name in VARIATIONS if name in names]
    reasons = {each.name: each.unfit() for each in made}
    left_out = {name: reason for name, reason in reasons.items() if reason is not None}
    fit = [each for each in made if each.name not in left_out]
    if not fit:
        listed = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise ConfigError(f"variations={','.join(names)}: none applies here ({listed})")
    return fit, left_out


def _permuted(batch: Batch, random: np.random.Generator) -> Batch:
    rows = batch.tokens.shape[0]
    order = list(range(rows))
    while order == list(range(rows)):
        order = random.permutation(rows).tolist()
    index = torch.tensor(order)
    fields = {name: values[index] for name, values in batch.sequence_fields.items()}
    return replace(batch, tokens=batch.tokens[index], lengths=batch.lengths[index], sequence_fields=fields)
