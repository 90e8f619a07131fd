"""The four calls of a procedure, from packed job to result bytes. Runs inside the process of one job only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from witbench.protocol.sandbox.job import Job, write_values
from witbench.training.data import Dataset
from witbench.training.serialize import batch_from_bytes, batch_to_bytes, state_from_bytes, state_to_bytes
from witbench.training.source import ProcedureSpec, load_procedure

if TYPE_CHECKING:
    from witbench.training.procedure import Procedure


def prepare(job: Job, dataset: int | None) -> Callable[[], bytes]:
    """Read all arguments of a job; the returned call runs the procedure and gives the result.

    Args:
        job: the unpacked job.
        dataset: descriptor of its token file; it may be closed once this returns.
    """
    spec = ProcedureSpec.from_bytes(bytes(job.parts[0]))
    data = None
    if dataset is not None:
        data = Dataset.from_fd(dataset, str(job.scalars["dtype"]), int(job.scalars["vocab"]))
    call = _CALLS[job.kind](job, data)
    return lambda: call(load_procedure(spec))


_Call = Callable[["Procedure"], bytes]


def _init(job: Job, data: Dataset | None) -> _Call:
    seed = int(job.scalars["seed"])
    return lambda procedure: state_to_bytes(procedure.init(seed))


def _batch(job: Job, data: Dataset | None) -> _Call:
    seed, t = bytes(job.parts[1]), int(job.scalars["t"])
    if data is None:
        raise ValueError("a batch job needs a dataset")
    return lambda procedure: batch_to_bytes(procedure.batch(data, seed, t))


def _update(job: Job, data: Dataset | None) -> _Call:
    start = state_from_bytes(job.parts[1])
    batches = [batch_from_bytes(part) for part in job.parts[2:]]

    def call(procedure: Procedure) -> bytes:
        state = start
        for batch in batches:
            state = procedure.update(state, batch)
        return state_to_bytes(state)

    return call


def _evaluate(job: Job, data: Dataset | None) -> _Call:
    state = state_from_bytes(job.parts[1])
    if data is None:
        raise ValueError("an evaluate job needs a dataset")
    return lambda procedure: write_values(procedure.evaluate(state, data))


_CALLS: dict[str, Callable[[Job, Dataset | None], _Call]] = {
    "init": _init,
    "batch": _batch,
    "update": _update,
    "evaluate": _evaluate,
}
