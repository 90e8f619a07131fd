"""The process beside each job: starts it, watches it, ends all of it, and says how it ended."""

from __future__ import annotations

import os
import select
import signal
import socket
import time

from witbench.protocol.sandbox import jail, linux, wire
from witbench.protocol.sandbox.child import DONE, Assignment, run
from witbench.protocol.sandbox.job import FAILURES, Limits

_OUTCOME_LENGTH = 8192


def supervise(watch: wire.Watch) -> None:
    """Run one job to its end and answer on its reply socket; this process must end afterwards."""
    linux.adopt_orphans()
    if watch.jailed:
        jail.separate()
    linux.die_with_parent(signal.SIGKILL)
    deadline = time.monotonic() + watch.limits.seconds
    outcome, outcome_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    go_out, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        files = watch.files
        numbers = (files.payload, files.result, files.dataset, outcome_in, go_out)
        try:
            run(Assignment(watch.number, watch.limits, watch.threads, watch.jailed, *numbers))
        finally:
            os._exit(1)
    os.close(outcome_in)
    os.close(go_out)
    os.close(watch.files.payload)
    os.write(go, b"g")
    with socket.socket(fileno=watch.files.reply) as reply:
        status = _wait(pid, reply, deadline)
        if not watch.jailed:  # in a jail, the kernel ended the whole pid namespace with its first process
            _end_descendants()
        wire.send(reply, _answer(status, outcome, watch.limits))


def _wait(pid: int, reply: socket.socket, deadline: float) -> int | None:
    """Exit status of the job; None when its time was up or nobody wants the answer any more."""
    process = os.pidfd_open(pid)
    events = select.poll()
    events.register(process, select.POLLIN)
    events.register(reply, select.POLLIN)
    ready = events.poll(max(0.0, deadline - time.monotonic()) * 1000)
    ended = any(fd == process for fd, _ in ready)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return status if ended else None


def _end_descendants() -> None:
    """Kill what a job left behind."""
    while children := linux.children():
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def _answer(status: int | None, outcome: int, limits: Limits) -> dict[str, str]:
    if status is None:
        return {"kind": "timeout", "detail": f"not done after {limits.seconds:g} s"}
    try:
        said = os.read(outcome, _OUTCOME_LENGTH)
    except BlockingIOError:
        said = b""
    if said == DONE:
        return {"kind": "done", "detail": ""}
    kind, _, detail = said.decode(errors="replace").partition("\n")
    if kind in FAILURES:
        return {"kind": kind, "detail": detail}
    return {"kind": "crash", "detail": f"ended {_how(status)} without a result"}


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"with exit status {code}"
    name = signal.Signals(-code).name
    return f"by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
