"""Runs work in a few processes, one thread each, and gets over a process that dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Generic, TypeVar

from witbench.errors import WitbenchError
from witbench.trials.executor import ExecutorConfig

T = TypeVar("T")
Work = Callable[[], T]

_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Done(Generic[T]):
    """One piece of work that ended.

    Attributes:
        index: which one.
        result: what it gave, unless it failed.
        error: why it failed, or None.
    """

    index: int
    result: T | None
    error: str | None


def run_all(work: Sequence[Work[T]], executor: ExecutorConfig) -> Iterator[Done[T]]:
    """Yield each piece of work as it ends. A piece whose process dies is tried once more, alone.

    Work must be picklable; each process runs one thread of torch, so that they fill as many cores as there are of them.
    """
    left = dict(enumerate(work))
    for done in _run(left, executor):
        left.pop(done.index, None)
        yield done
    for index, piece in list(left.items()):
        alone = list(_run({index: piece}, executor))
        yield alone[0] if alone else Done(index, None, "its process died, twice")


def _run(work: dict[int, Work[T]], executor: ExecutorConfig) -> Iterator[Done[T]]:
    """Yield what ends until a process dies."""
    if not work:
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    # One process for each slot, which it takes when it starts.
    slots: multiprocessing.SimpleQueue[str | None] = context.SimpleQueue()
    devices, processes = executor.devices(), executor.processes(len(work))
    for number in range(processes):
        slots.put(devices[number % len(devices)] if devices else None)
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(slots, os.getpid()))
    try:
        futures: dict[Future[T], int] = {pool.submit(piece): index for index, piece in work.items()}
        while futures:
            ended, _ = wait(futures, return_when=FIRST_COMPLETED)
            for future in ended:
                index = futures.pop(future)
                try:
                    yield Done(index, future.result(), None)
                except BrokenProcessPool:
                    return
                except (WitbenchError, OSError, RuntimeError, ArithmeticError) as error:
                    yield Done(index, None, f"{type(error).__name__}: {error}")
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(slots: multiprocessing.SimpleQueue[str | None], parent: int) -> None:
    """Let this process see the one GPU of its slot, before anything has touched it; and never outlive its parent."""
    end_with(parent)
    device = slots.get()
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device


def end_with(parent: int) -> None:
    """Let this process end when its parent does, and at once and in silence at Ctrl-C.

    Ctrl-C reaches every process of a terminal; the first one says what happened.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()


def _die_with(parent: int) -> None:
    """A killed parent cannot stop its processes, and nobody would write down what they found."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)
