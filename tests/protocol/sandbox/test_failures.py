"""Procedures that hang, crash, hog or lie end in a named failure, and the next job runs as if nothing had been."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from witbench.protocol.sandbox import Job, Sandbox, SandboxFailure, read_values

HEALTHY = "def hunt(): return 'healthy'"

CRASHES = {
    "sys.exit": "import sys; sys.exit(0)",
    "os._exit(0)": "import os; os._exit(0)",
    "os._exit(9)": "import os; os._exit(9)",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "abort": "import os; os.abort()",
    "broken exception": "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()",
    "closed files": "import os; os.closerange(0, 256)",
    "noise on all files": """
    import os
    for fd in range(3, 256):
        try:
            os.write(fd, os.urandom(5000))
        except OSError:
            pass
    os._exit(0)
    """,
    "full outcome pipe": """
    import os
    for fd in range(3, 256):
        try:
            while os.write(fd, bytes(4096)) and os.readlink(f"/proc/self/fd/{fd}").startswith("pipe"):
                pass
        except OSError:
            pass
    os._exit(0)
    """,
}
ERRORS = {
    "exception": ("raise KeyError('no such weight')", "KeyError: 'no such weight'"),
    "escape sequences": ("raise ValueError(chr(27) + '[2J' + chr(10) + 'accepted')", "ValueError: [2J accepted"),
    "long message": ("raise ValueError('x' * 10**6)", "ValueError: " + "x" * 188),
    "unprintable": ("raise type('Odd', (Exception,), {'__str__': lambda self: chr(0xD800)})()", "Odd:"),
    "missing module": ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    "recursion": ("return hunt()", "RecursionError: maximum recursion depth exceeded"),
}
HANGS = {
    "sleep": "import time; time.sleep(1000)",
    "busy loop": "while True: pass",
    "signals ignored": """
    import signal, time
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_IGN)
    time.sleep(1000)
    """,
    "stopped": """
    import os, time
    if os.fork():
        time.sleep(1000)
    os.setsid()
    time.sleep(1000)
    """,
}
FORK_BOMB = """
    import os
    while True:
        try:
            os.fork()
        except OSError:
            pass
"""
HOGS = {
    "bytes": "bytearray(4 << 30)",
    "torch": "import torch; torch.zeros(1 << 30, dtype=torch.float64)",
    "numpy": "import numpy; numpy.ones(1 << 30)",
    "list": "return [bytes(1 << 20) for _ in range(4096)]",
    "scratch files": """
    with open("/scratch/hog", "wb") as file:
        for _ in range(4096):
            file.write(bytes(1 << 20))
    """,
}


def hunting(body: str) -> str:
    return f"def hunt():\n    {body.strip()}\n"


@pytest.fixture(params=["namespaces", "process"], scope="module")
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return request.getfixturevalue("jail" if request.param == "namespaces" else "bare")


@pytest.fixture(autouse=True)
def _the_next_job_is_healthy(lab: Any, jail: Sandbox, bare: Sandbox) -> Iterator[None]:
    yield
    assert lab.hunt_in(jail, HEALTHY) == "healthy"
    assert lab.hunt_in(bare, HEALTHY) == "healthy"


def failure(lab: Any, sandbox: Sandbox, body: str, **limits: Any) -> SandboxFailure:
    with pytest.raises(SandboxFailure) as caught:
        lab.hunt_in(sandbox, hunting(body), replace(lab.limits, **limits))
    return caught.value


@pytest.mark.parametrize("how", CRASHES)
def test_crash(lab: Any, sandbox: Sandbox, how: str) -> None:
    assert failure(lab, sandbox, CRASHES[how]).kind == "crash"


def test_killed(lab: Any, bare: Sandbox) -> None:
    failed = failure(lab, bare, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert (failed.kind, "SIGKILL" in failed.detail) == ("crash", True)


@pytest.mark.parametrize("how", ERRORS)
def test_error(lab: Any, sandbox: Sandbox, how: str) -> None:
    body, detail = ERRORS[how]
    failed = failure(lab, sandbox, body)
    assert failed.kind == "error"
    assert failed.detail.startswith(detail)
    assert failed.detail.isprintable()
    assert len(failed.detail) <= 200


@pytest.mark.parametrize("how", HANGS)
def test_timeout(lab: Any, sandbox: Sandbox, how: str) -> None:
    assert failure(lab, sandbox, HANGS[how], seconds=1.0).kind == "timeout"


def test_fork_bomb(lab: Any, jail: Sandbox) -> None:
    assert failure(lab, jail, FORK_BOMB, seconds=1.0).kind == "timeout"


def test_processes_are_bounded(lab: Any, jail: Sandbox) -> None:
    body = """
    import os, time
    for count in range(500):
        try:
            if os.fork() == 0:
                time.sleep(1000)
        except OSError:
            return count
    """
    assert lab.hunt_in(jail, hunting(body)) <= 64 + 1


@pytest.mark.parametrize("how", ["bytes", "torch", "numpy", "list"])
def test_memory(lab: Any, sandbox: Sandbox, how: str) -> None:
    assert failure(lab, sandbox, HOGS[how]).kind == "memory"


def test_scratch_files_are_bounded(lab: Any, jail: Sandbox) -> None:
    assert failure(lab, jail, HOGS["scratch files"], output_bytes=1 << 40).detail.startswith("OSError: [Errno 28]")


def test_output(lab: Any, sandbox: Sandbox) -> None:
    assert failure(lab, sandbox, "return 'x' * 100_000", output_bytes=90_000).kind == "output"
    assert lab.hunt_in(sandbox, hunting("return 'x' * 100_000")) == "x" * 100_000


def test_a_forged_result_is_only_bytes_within_the_limit(lab: Any, sandbox: Sandbox) -> None:
    body = """
    import os
    for fd in range(3, 256):
        try:
            os.write(fd, b"done")
            os.ftruncate(fd, 200_000)
        except OSError:
            pass
    os._exit(0)
    """
    job = Job.update(lab.procedure(hunting(body)), lab.start_state(), [lab.some_batch()])
    assert bytes(sandbox.run(job, replace(lab.limits, output_bytes=90_000))) == b"done"


def test_a_result_is_read_only(lab: Any, jail: Sandbox) -> None:
    result = jail.run(Job.init(lab.procedure(HEALTHY), 1))
    with pytest.raises(TypeError):
        result[0] = 0


def test_not_a_number_is_allowed_through(lab: Any, sandbox: Sandbox) -> None:
    assert math.isnan(lab.hunt_in(sandbox, hunting("return float('nan')")))


@pytest.mark.parametrize("result", [b"", b"[]", b'{"a": "1"}', b'{"a": 1}', b"\xff", b"[" * 100_000])
def test_evaluations_that_are_not_numbers(result: bytes) -> None:
    with pytest.raises(SandboxFailure, match="numbers by name"):
        read_values(result)


def test_evaluations_keep_every_bit() -> None:
    values = {"b": 0.1 + 0.2, "a": float("inf"), "c": 5e-324}
    assert read_values(json.dumps(values).encode()) == values
