"""The honest trainer, step by step. An attack overrides only the steps in which it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from witbench.training.data import Dataset
    from witbench.training.procedure import Procedure
    from witbench.training.state import Batch, State


class Trainer:
    """What the trainer's side does at each step of the protocol; the worker carries the results to the broker.

    Args:
        procedure: the functional training procedure.
        dataset: the training data.
        evaluation_set: the data of the evaluation that is shown.
        order_seed: seed of the bound data order, drawn by the broker.
    """

    def __init__(self, procedure: Procedure, dataset: Dataset, evaluation_set: Dataset, order_seed: bytes) -> None:
        self.procedure = procedure
        self.dataset = dataset
        self.evaluation_set = evaluation_set
        self.order_seed = order_seed

    def start(self, seed: int) -> State:
        """S_0."""
        return self.procedure.init(seed)

    def enter(self, unit: int, state: State) -> State:
        """The state that a unit (1-based) starts from: the one the last unit ended in."""
        return state

    def declare(self, t: int) -> Batch:
        """The batch that is declared for update t."""
        return self.procedure.batch(self.dataset, self.order_seed, t)

    def train(self, t: int, state: State, declared: Batch) -> State:
        """The state that update t really leads to."""
        return self.procedure.update(state, declared)

    def commit(self, unit: int, state: State) -> State:
        """The state whose digest is committed at the unit's end."""
        return state

    def sketch(self, unit: int, state: State, key: bytes) -> State:
        """The state that is sketched, after its key is known."""
        return state

    def open(self, unit: int, start: State, batches: Sequence[Batch]) -> tuple[State, Sequence[Batch]] | None:
        """What is opened of a challenged unit: start state and batches; None refuses."""
        return start, batches

    def open_final(self, state: State) -> State:
        """The state that is opened as the run's last one."""
        return state

    def publish(self, state: State) -> State:
        """The state whose parameters are published as the run's weights."""
        return state

    def evaluate(self, state: State) -> dict[str, float]:
        """The evaluation shown for the published state."""
        return self.procedure.evaluate(state, self.evaluation_set)
