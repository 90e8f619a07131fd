"""The process that runs a procedure: confines itself for good, makes the call, leaves the result and an outcome.

Everything after `load_procedure` is the trainer's code running as this process: nothing it leaves behind is believed
beyond its bytes.
"""

from __future__ import annotations

import math
import mmap
import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path

from witbench.protocol.sandbox import jail, linux
from witbench.protocol.sandbox.calls import prepare
from witbench.protocol.sandbox.job import Limits, unpack
from witbench.training.determinism import set_deterministic

DONE = b"done"
_MAX_SCRATCH = 256 << 20
_MAX_PROCESSES = 64
_MAX_FILES = 256
_ALLOCATION_FAILED = "can't allocate memory"


@dataclass(frozen=True)
class Assignment:
    """One job, as its process finds it.

    Attributes:
        number: counts the jobs of a server.
        limits: what the job may use.
        threads: torch threads.
        jailed: whether the process is inside a jail.
        payload: descriptor of the packed job.
        result: descriptor for the result.
        dataset: descriptor of the token file, when the job has one.
        outcome: pipe that takes `DONE`, or a failure's kind and detail on two lines.
        go: pipe that ends when the supervisor is gone, and holds a byte once it watches.
    """

    number: int
    limits: Limits
    threads: int
    jailed: bool
    payload: int
    result: int
    dataset: int | None
    outcome: int
    go: int


def warm() -> None:
    """Spend the time of first use in the server, once for all jobs. More than one thread would start a pool."""
    set_deterministic(1)


def run(assignment: Assignment) -> None:
    """Run one job in this freshly forked process, which must end afterwards."""
    _confine(assignment)
    try:
        result = _call(assignment)
        if len(result) > assignment.limits.output_bytes:
            outcome = (
                f"output\nthe result has {len(result)} bytes, allowed are {assignment.limits.output_bytes}".encode()
            )
        else:
            linux.write_all(assignment.result, result)
            outcome = DONE
    except MemoryError:
        outcome = b"memory\nallocation refused"
    except Exception as error:  # the procedure may raise anything; SystemExit is no answer and ends the process
        kind = "memory" if _ALLOCATION_FAILED in str(error) else "error"
        outcome = f"{kind}\n{type(error).__name__}: {error}"[:4096].encode(errors="replace")
    os.write(assignment.outcome, outcome)


def _confine(assignment: Assignment) -> None:
    limits = assignment.limits
    os.setsid()
    files = (assignment.payload, assignment.result, assignment.dataset, assignment.outcome, assignment.go)
    _close_all_but({fd for fd in files if fd is not None})
    if assignment.jailed:
        jail.settle(min(limits.memory_bytes, _MAX_SCRATCH))
    address_space = _address_space() + limits.memory_bytes
    processor_seconds = math.ceil(limits.seconds) * (os.cpu_count() or 1) + 1
    for what, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, processor_seconds),
        (resource.RLIMIT_AS, address_space),
        (resource.RLIMIT_FSIZE, limits.output_bytes),
        (resource.RLIMIT_NOFILE, _MAX_FILES),
    ):
        _lower_limit(what, most)
    Path("/proc/self/oom_score_adj").write_text("1000")
    if assignment.jailed:  # outside of one, the count would cover every process of the user
        _lower_limit(resource.RLIMIT_NPROC, _MAX_PROCESSES + assignment.threads)
        jail.renounce(assignment.number)
        os.chdir(jail.SCRATCH)
    else:
        linux.drop_bounding_capabilities()
        linux.drop_capabilities()
        linux.forbid_new_privileges()
    linux.die_with_parent(signal.SIGKILL)
    if not os.read(assignment.go, 1):
        os._exit(1)
    os.close(assignment.go)


def _call(assignment: Assignment) -> bytes:
    set_deterministic(assignment.threads)
    # The mapping outlives this function on purpose: the process ends without giving it back.
    payload = mmap.mmap(assignment.payload, 0, access=mmap.ACCESS_READ)
    call = prepare(unpack(memoryview(payload)), assignment.dataset)
    _blind_all_but({assignment.result, assignment.outcome})
    return call()


def _blind_all_but(keep: set[int]) -> None:
    """Point every other descriptor at /dev/null.

    Mappings keep a descriptor of their file, through which /proc/self/fd would let its owner open it for writing.
    """
    nothing = os.open("/dev/null", os.O_RDWR)
    for fd in _descriptors() - keep - {nothing}:
        os.dup2(nothing, fd)


def _close_all_but(keep: set[int]) -> None:
    for fd in _descriptors() - keep - {0, 1, 2}:
        os.close(fd)


def _descriptors() -> set[int]:
    with os.scandir("/proc/self/fd") as entries:
        fds = {int(entry.name) for entry in entries}
    return {fd for fd in fds if _is_open(fd)}


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False  # the listing's own
    return True


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def _lower_limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))
