"""The fork server: a fresh interpreter that imports torch, runs nothing, and forks a supervisor for each job.

`python -I -c "... main(SETUP)"` starts a small process that stays outside and, where the system allows it, the server
as first process of a jail: whichever of them ends, every job ends with it. The server holds no secret and learns
none: of a job it only touches the descriptors.
"""

from __future__ import annotations

import gc
import itertools
import os
import select
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from witbench.protocol.sandbox import jail, linux, wire

_NOT_READY = 3
_POLL_SECONDS = 1.0


def main(text: str) -> int:
    """Serve until the client is gone. Returns the exit status."""
    setup = wire.Setup.from_text(text)
    os.umask(0o022)
    client = os.getppid()
    reason: str | None = "asked for"
    if setup.isolation != "process":
        folders = jail.library_folders(Path(setup.package), setup.site_folders)
        reason = jail.probe(folders)
        if reason is None:
            status = _stay_outside(jail.enter(folders), setup, client)
            if status != _NOT_READY:
                return status
            reason = "the server does not start inside a jail"
    if setup.isolation == "namespaces":
        with socket.socket(fileno=setup.control) as control:
            wire.send(control, {"unavailable": reason})
        return _NOT_READY
    return _serve(setup, reason, client)


def _stay_outside(pid: int, setup: wire.Setup, client: int) -> int:
    """In the caller of fork: wait for the server in the jail. In its child: be that server."""
    if pid == 0:
        linux.die_with_parent(signal.SIGKILL)
        return _serve(setup, None, 0)
    process = os.pidfd_open(pid)
    while not select.select([process], [], [], _POLL_SECONDS)[0]:
        if os.getppid() != client:
            os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _serve(setup: wire.Setup, reason: str | None, client: int) -> int:
    # These import torch: only once inside the jail, and before any fork.
    from witbench.protocol.sandbox.child import warm
    from witbench.protocol.sandbox.supervisor import supervise

    jailed = reason is None
    if jailed:
        os.environ.update(HOME=jail.SCRATCH, TMPDIR=jail.SCRATCH)
    warm()
    gc.collect()
    gc.freeze()
    linux.adopt_orphans()
    os.dup2(0, 2)  # from here on nobody reads error messages, and jobs must not share a file
    supervisors: set[int] = set()
    with socket.socket(fileno=setup.control) as control:
        isolation = wire.NAMESPACES if jailed else wire.PROCESS_ONLY
        wire.send(control, {"isolation": isolation, "reason": reason or ""})
        for number in itertools.count():
            while not select.select([control], [], [], _POLL_SECONDS)[0]:
                _reap(supervisors)
                if not jailed and os.getppid() != client:
                    return 0
            request = wire.receive_job(control)
            if request is None:
                break
            _reap(supervisors)
            limits, files = request
            pid = _start(wire.Watch(number, limits, files, setup.threads, jailed), supervise)
            supervisors |= {pid} if pid else set()
    return 0


def _start(watch: wire.Watch, supervise: Callable[[wire.Watch], None]) -> int | None:
    """Pid of a new supervisor; None when the system has no process left for one."""
    try:
        pid = os.fork()
    except OSError as error:
        reason = {"kind": "crash", "detail": f"no process for the job: {error.strerror}"}
        with socket.socket(fileno=os.dup(watch.files.reply)) as reply:
            wire.send(reply, reason)
        pid = None
    if pid == 0:
        try:
            supervise(watch)
        finally:
            os._exit(0)
    watch.files.close()
    return pid


def _reap(supervisors: set[int]) -> None:
    """Collect ended supervisors, and end what one left behind that was killed before its job was."""
    while supervisors or linux.children():
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            break
        supervisors.discard(pid)
    for orphan in linux.children() - supervisors:
        os.kill(orphan, signal.SIGKILL)
