"""The prover's side of the sandbox: starts the fork server, hands it jobs, reads results of ended processes."""

from __future__ import annotations

import mmap
import os
import select
import site
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import witbench
from witbench.errors import WitbenchError
from witbench.protocol.sandbox import linux, wire
from witbench.protocol.sandbox.job import Job, Limits, SandboxFailure, printable

Isolation = Literal["auto", "namespaces", "process"]

_START_SECONDS = 120.0
_GRACE_SECONDS = 60.0
_LAST_WORDS_SECONDS = 1.0
_PACKAGE = Path(witbench.__file__).parent
_BOOT = (
    "import sys; sys.path[:0] = {paths!r}; from witbench.protocol.sandbox.server import main; sys.exit(main({setup!r}))"
)
_KEPT_ENVIRONMENT = (
    "LD_LIBRARY_PATH",  # where some installations have libpython
    "ATEN_CPU_CAPABILITY",  # the rest picks the machine code of sums and products, hence their last bits
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
)


class SandboxError(WitbenchError):
    """The sandbox itself does not work here; no procedure is to blame."""


class _ServerGoneError(Exception):
    pass


class Sandbox:
    """Runs jobs, each in a fresh process that sees its own arguments and nothing else.

    A context manager. `run` may be called from several threads at once. One sandbox serves any number of runs: no
    job leaves anything behind for the next.

    Args:
        threads: torch threads of every job.
        limits: what a job may use unless `run` says otherwise.
        isolation: `auto` isolates with Linux namespaces and another user where the system allows it, `namespaces`
            refuses to do without, `process` does without: jobs are then mere processes with resource limits.
    """

    def __init__(self, threads: int = 1, limits: Limits | None = None, isolation: Isolation = "auto") -> None:
        self._threads = threads
        self._limits = limits or Limits()
        self._asked = isolation
        self._lock = threading.Lock()
        self._server: _Server | None = None

    def __enter__(self) -> Sandbox:
        """Start the server (a second or two: it imports torch)."""
        with self._lock:
            if self._server is None:
                self._server = _Server(self._threads, self._asked)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the server and whatever still runs."""
        self.close()

    def close(self) -> None:
        """End the server and whatever still runs."""
        with self._lock:
            if self._server is not None:
                self._server.close()
            self._server = None

    @property
    def isolation(self) -> str:
        """`namespaces` or `process only`."""
        return self._current().isolation

    @property
    def reason(self) -> str:
        """Why the isolation is `process only`; empty when it is not."""
        return self._current().reason

    def run(self, job: Job, limits: Limits | None = None) -> memoryview:
        """Run one job and wait for it.

        Args:
            job: what to run.
            limits: in place of the sandbox's own.

        Returns:
            The result, read-only; written by the trainer's code, so to be parsed as hostile.

        Raises:
            SandboxFailure: the procedure gave no result within its limits.
            SandboxError: the server cannot be started.
            OSError: the dataset cannot be opened, or this process is out of memory or descriptors.
        """
        try:
            return self._attempt(job, limits or self._limits)
        except _ServerGoneError:
            self._restart()
        try:
            return self._attempt(job, limits or self._limits)
        except _ServerGoneError:
            raise SandboxFailure("crash", "the sandbox died with the job, twice") from None

    def _current(self) -> _Server:
        server = self._server
        if server is None:
            raise SandboxError("the sandbox is not open; use it as a context manager")
        return server

    def _restart(self) -> None:
        with self._lock:
            if self._server is not None and self._server.ended(_LAST_WORDS_SECONDS):
                self._server.close()
                self._server = _Server(self._threads, self._asked)

    def _attempt(self, job: Job, limits: Limits) -> memoryview:
        server = self._current()
        result = linux.memfd("result")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, os.fdopen(result, "rb", buffering=0):
            payload = job.pack()
            dataset = None if job.dataset is None else os.open(job.dataset, os.O_RDONLY | os.O_CLOEXEC)
            files = wire.Descriptors(theirs.detach(), payload, result, dataset)
            try:
                server.ask(limits, files)
            finally:
                for fd in set(files.all()) - {result}:
                    os.close(fd)
            ours.settimeout(limits.seconds + _GRACE_SECONDS)
            try:
                answer = wire.receive(ours)
            except TimeoutError:
                raise SandboxFailure("timeout", f"no answer after {limits.seconds:g} s") from None
            if answer is None:
                raise _ServerGoneError
            if answer["kind"] != "done":
                raise SandboxFailure(answer["kind"], printable(answer["detail"]))
            return _read(result, limits)


def _read(result: int, limits: Limits) -> memoryview:
    try:
        linux.seal(result)
    except OSError:
        raise SandboxFailure("crash", "something still writes to the result") from None
    size = os.fstat(result).st_size
    if size == 0:
        raise SandboxFailure("crash", "ended without a result")
    if size > limits.output_bytes:
        raise SandboxFailure("output", f"the result has {size} bytes, allowed are {limits.output_bytes}")
    return memoryview(mmap.mmap(result, size, access=mmap.ACCESS_READ))


class _Server:
    """A running fork server."""

    def __init__(self, threads: int, isolation: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        self._sending = threading.Lock()
        errors = linux.memfd("errors")
        with theirs, os.fdopen(errors, "rb", buffering=0):
            site_folders = tuple(dict.fromkeys((*site.getsitepackages(), site.getusersitepackages())))
            site_folders = tuple(folder for folder in site_folders if Path(folder).is_dir())
            setup = wire.Setup(theirs.fileno(), threads, str(_PACKAGE), site_folders, isolation)
            paths = [str(_PACKAGE.parent), *(folder for folder in site_folders if folder in sys.path)]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _BOOT.format(paths=paths, setup=setup.to_text())],
                env=_environment(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            theirs.close()
            try:
                hello = self._hello(errors)
            except SandboxError:
                self.close()
                raise
        self.isolation: str = hello["isolation"]
        self.reason: str = hello["reason"]

    def _hello(self, errors: int) -> dict[str, Any]:
        ready, _, _ = select.select([self._control], [], [], _START_SECONDS)
        hello = wire.receive(self._control) if ready else None
        if hello is None:
            os.lseek(errors, 0, os.SEEK_SET)
            lines = os.read(errors, 1 << 16).decode(errors="replace").split("\n")
            last = next((printable(line) for line in reversed(lines) if line.strip()), "it said nothing")
            raise SandboxError(f"the sandbox does not start: {last}")
        if "unavailable" in hello:
            raise SandboxError(f"this system forbids the sandbox's namespaces: {hello['unavailable']}")
        return hello

    def ask(self, limits: Limits, files: wire.Descriptors) -> None:
        try:
            with self._sending:
                wire.send_job(self._control, limits, files)
        except OSError as error:
            if self.ended(_LAST_WORDS_SECONDS):
                raise _ServerGoneError from error
            raise

    def ended(self, within: float) -> bool:
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait()


def _environment() -> dict[str, str]:
    # One thread in the server: a pool would not live on in forked jobs, which set their own number.
    scratch = tempfile.gettempdir()
    kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", "HOME": scratch, "TMPDIR": scratch, "OMP_NUM_THREADS": "1"}
