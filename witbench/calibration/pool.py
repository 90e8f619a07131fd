"""Measuring processes of one thread each, which end with the process that started them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from witbench.errors import ConfigError
from witbench.trials.pool import end_with

T = TypeVar("T")


def run_all(work: Sequence[Callable[[], T]], workers: int) -> Iterator[T]:
    """Yield the result of each piece of work as it ends.

    Work must be picklable. With one worker it runs in this process.

    Raises:
        ConfigError: a process was killed, most likely because memory ran out.
    """
    if workers == 1:
        yield from (piece() for piece in work)
        return
    pool = ProcessPoolExecutor(
        min(workers, len(work)), multiprocessing.get_context("spawn"), initializer=_begin, initargs=(os.getpid(),)
    )
    try:
        for future in as_completed([pool.submit(piece) for piece in work]):
            yield future.result()
    except KeyboardInterrupt:
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    except BrokenProcessPool:
        raise ConfigError("a measuring process was killed; with less memory, try workers=1") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    end_with(parent)
    os.environ["OMP_NUM_THREADS"] = "1"
    # Where cores are shared, the threads of a variation would spin for one another longer than they compute.
    os.environ["OMP_WAIT_POLICY"] = "passive"
