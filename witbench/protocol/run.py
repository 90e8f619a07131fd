"""A training run, with and without a witness: the same steps of the same trainer, so the same states bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from witbench.errors import ProtocolError
from witbench.training.serialize import weights_to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from witbench.protocol.ledger import Plan
    from witbench.protocol.messages import Resumption
    from witbench.protocol.trainer import Trainer
    from witbench.protocol.worker import Worker
    from witbench.training.state import State


def no_progress(unit: int, units: int) -> None:
    """Report nothing."""


def run_unit(trainer: Trainer, worker: Worker | None, plan: Plan, unit: int, start: State) -> State:
    """Run one unit; returns the state it ends in. Without a worker nothing is witnessed."""
    start = trainer.enter(unit, start)
    if worker is not None:
        worker.hold(unit, start)
    state = start
    for t in plan.updates_of(unit):
        batch = trainer.declare(t)
        if worker is not None:
            worker.declare(unit, t, batch)
        state = trainer.train(t, state, batch)
    if worker is not None:
        key = worker.commit(unit, trainer.commit(unit, state))
        challenged = worker.sketch(unit, trainer.sketch(unit, state, key), key)
        if challenged:
            worker.open(unit, trainer.open(unit, start, worker.held[unit].batches))
    return state


def run_units(
    trainer: Trainer,
    worker: Worker | None,
    plan: Plan,
    state: State,
    first: int = 1,
    progress: Callable[[int, int], None] = no_progress,
) -> State:
    """Run all units from `first` on, from the state at its start; returns the final state."""
    for unit in range(first, plan.units + 1):
        state = run_unit(trainer, worker, plan, unit, state)
        progress(unit, plan.units)
    return state


def take_up(trainer: Trainer, worker: Worker, plan: Plan, at: Resumption) -> tuple[State, int]:
    """Take up a stopped run: answer open challenges, then rewind to the newest boundary that was kept.

    Returns:
        The state to go on from and the unit that comes next.
    """
    if at.head is not None:
        worker.cosign(at.head)
    for unit in at.open:
        updates = plan.updates_of(unit)
        kept = worker.hold_again(unit, [trainer.declare(t) for t in updates], updates)
        if kept is None:
            worker.open(unit, None)
            continue
        kept.end = kept.start
        for t, batch in zip(updates, kept.batches, strict=True):
            kept.end = trainer.train(t, kept.end, batch)
        worker.open(unit, trainer.open(unit, kept.start, kept.batches))
    boundaries = [b for b in worker.snapshots.boundaries() if b < at.current]
    if not boundaries:
        worker.broker.rewind(at.current - 1)  # settles what is open: a challenge that nothing answers rejects the run
        raise ProtocolError("run.snapshot", "no start state was kept; this run cannot go on, begin another one")
    return worker.rewind(boundaries[-1]), boundaries[-1] + 1


def publish(trainer: Trainer, state: State) -> bytes:
    """The weights file of a final state, as it is published."""
    return weights_to_bytes(trainer.publish(state))
