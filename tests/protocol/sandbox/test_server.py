"""The fork server: several jobs at once, deaths on either side, isolation where the system forbids namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import witbench
from witbench.protocol.sandbox import Job, Limits, Sandbox, SandboxError, SandboxFailure, linux
from witbench.protocol.sandbox.job import unpack
from witbench.training.serialize import state_from_bytes

ROOT = str(Path(witbench.__file__).parent.parent)
PROCESSES_OF_A_JOB = {"namespaces": 3, "process": 2}  # (server in the jail), supervisor, job
HANG = "import time\ndef hunt(): time.sleep(1000)"


def descendants(pid: int) -> set[int]:
    """Pids of all living processes below one."""
    parents = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found, fresh = set(), {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh}
        found |= fresh
    return found


def await_family(pid: int, size: int) -> set[int]:
    """The descendants of a process, once there are so many."""
    for _ in range(1200):
        if len(found := descendants(pid)) >= size:
            return found
        time.sleep(0.05)
    raise AssertionError(f"only {found} below {pid}")


def await_end(pids: set[int]) -> bool:
    """Whether all of the processes end within a generous time."""
    for _ in range(600):
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_jobs_of_several_threads(lab: Any, jail: Sandbox) -> None:
    def seed_back(seed: int) -> object:
        return state_from_bytes(jail.run(Job.init(lab.procedure("def hunt(): pass"), seed))).exact["seed"]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(seed_back, range(24))) == list(range(24))


def test_a_hanging_job_holds_up_no_other(lab: Any, jail: Sandbox) -> None:
    ended = threading.Event()

    def hang() -> None:
        with pytest.raises(SandboxFailure, match="timeout"):
            lab.hunt_in(jail, HANG, replace(lab.limits, seconds=5))
        ended.set()

    thread = threading.Thread(target=hang)
    thread.start()
    assert lab.hunt_in(jail, "def hunt(): return 1") == 1
    assert not ended.is_set()
    thread.join()
    assert ended.is_set()


@pytest.mark.parametrize("isolation", ["namespaces", "process"])
def test_nothing_survives_the_sandbox(lab: Any, isolation: str) -> None:
    children = linux.children()
    with Sandbox(limits=lab.limits, isolation=isolation) as sandbox:
        (server,) = linux.children() - children

        def hang() -> None:
            with pytest.raises((SandboxFailure, SandboxError)):
                lab.hunt_in(sandbox, HANG)

        thread = threading.Thread(target=hang)
        thread.start()
        below = await_family(server, PROCESSES_OF_A_JOB[isolation])
    assert await_end(below | {server})
    thread.join()


DAEMON = """
import os, time

def hunt():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    return "done"
"""


@pytest.mark.parametrize("isolation", ["namespaces", "process"])
def test_a_daemon_ends_with_its_job(lab: Any, isolation: str) -> None:
    children = linux.children()
    with Sandbox(limits=lab.limits, isolation=isolation) as sandbox:
        (server,) = linux.children() - children
        idle = descendants(server)
        assert lab.hunt_in(sandbox, DAEMON) == "done"
        assert await_end(descendants(server) - idle)


@pytest.mark.parametrize("isolation", ["namespaces", "process"])
def test_a_dead_server_is_replaced(lab: Any, isolation: str) -> None:
    children = linux.children()
    with Sandbox(limits=lab.limits, isolation=isolation) as sandbox:
        (server,) = linux.children() - children
        os.kill(server, signal.SIGKILL)
        assert lab.hunt_in(sandbox, "def hunt(): return 2") == 2


ORPHAN = """
import sys, threading
from witbench.protocol.sandbox import Job, Limits, Sandbox

sandbox = Sandbox(limits=Limits(seconds=500, memory_bytes=1 << 30), isolation=sys.argv[1]).__enter__()
job = Job.init(bytes.fromhex(sys.argv[2]), 1)
threading.Thread(target=sandbox.run, args=(job,)).start()
print("started", flush=True)
"""


@pytest.mark.parametrize("isolation", ["namespaces", "process"])
def test_jobs_die_with_the_prover(lab: Any, isolation: str) -> None:
    source = lab.procedure("import time\ntime.sleep(1000)").hex()
    command = [sys.executable, "-c", ORPHAN, isolation, source]
    environment = {**os.environ, "PYTHONPATH": ROOT}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as prover:
        assert prover.stdout is not None
        assert prover.stdout.readline() == b"started\n"
        below = await_family(prover.pid, PROCESSES_OF_A_JOB[isolation] + 1)
        prover.kill()
    assert await_end(below)


def test_a_server_has_one_thread_and_no_secret(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WITBENCH_PREY", "broker seed")
    children = linux.children()
    with Sandbox(threads=2, limits=lab.limits) as sandbox:
        (outer,) = linux.children() - children
        for pid in {outer} | descendants(outer):
            process = Path(f"/proc/{pid}")
            assert len(list((process / "task").iterdir())) == 1
            assert b"PREY" not in (process / "environ").read_bytes()
            links = {str(fd.readlink()).split(":")[0] for fd in (process / "fd").iterdir()}
            assert links <= {"/dev/null", "socket", "/memfd", "anon_inode"}
        assert lab.hunt_in(sandbox, "import torch\ndef hunt(): return torch.get_num_threads()") == 2


LOCKED_DOWN = """
import os, sys
from pathlib import Path
from witbench.protocol.sandbox import Sandbox, SandboxError, linux

user, group = os.geteuid(), os.getegid()
linux.unshare(linux.CLONE_NEWUSER)
Path("/proc/self/setgroups").write_text("deny")
Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
Path("/proc/sys/user/max_user_namespaces").write_text("0")
linux.drop_bounding_capabilities()
linux.drop_capabilities()
with Sandbox() as sandbox:
    print(sandbox.isolation, "|", sandbox.reason)
try:
    Sandbox(isolation="namespaces").__enter__()
except SandboxError as error:
    print(error)
"""


def test_without_namespaces_it_says_so() -> None:
    environment = {**os.environ, "PYTHONPATH": ROOT}
    lines = subprocess.run(
        [sys.executable, "-c", LOCKED_DOWN], capture_output=True, text=True, check=True, env=environment
    ).stdout.splitlines()
    assert lines[0].startswith("process only | unshare: ")
    assert lines[1].startswith("this system forbids the sandbox's namespaces: unshare: ")


def test_isolation_is_reported(jail: Sandbox, bare: Sandbox) -> None:
    assert (jail.isolation, jail.reason) == ("namespaces", "")
    assert (bare.isolation, bare.reason) == ("process only", "asked for")


ORDINARY_USER = """
import os, sys
from pathlib import Path
from witbench.protocol.sandbox import linux

prefix, user = sys.base_prefix, 65534
linux.unshare(linux.CLONE_NEWNS)
linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
held = os.open(prefix, os.O_PATH)
closed = next((p for p in reversed(Path(prefix).parents) if not p.stat().st_mode & 1), None)
if closed is not None:  # an interpreter below a folder that only root may enter
    linux.mount("open", str(closed), "tmpfs", 0, "mode=755")
    os.makedirs(prefix)
    linux.mount(f"/proc/self/fd/{held}", prefix, flags=linux.MS_BIND | linux.MS_REC)
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
AS_ANYBODY = """
import json, sys
from witbench.protocol.sandbox import Job, Limits, Sandbox, read_values

with Sandbox(limits=Limits(seconds=60, memory_bytes=1 << 30), isolation="namespaces") as sandbox:
    print(bytes(sandbox.run(Job.init(bytes.fromhex(sys.argv[1]), 1))).count(b"jailed nobody"))
"""


def test_an_ordinary_user_gets_namespaces_too(lab: Any) -> None:
    hunt = """
import os
from witbench.training.state import State

class Who:
    def __init__(self, config): pass
    def init(self, seed):
        jailed = os.listdir("/proc").count("1") and not os.path.exists("/etc/passwd")
        return State({"who": b"jailed nobody" if jailed and os.getuid() == 65534 else b"somebody"}, {})
"""
    source = lab.ProcedureSpec("who:Who", {"who": hunt}, {}).to_bytes().hex()
    demote = ["-c", ORDINARY_USER] if os.geteuid() == 0 else []
    inner = ["-c", AS_ANYBODY, source]
    command = [sys.executable, *(demote or inner), *(inner if demote else [])]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ROOT}, check=False)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr


def test_a_job_is_packed_as_it_is() -> None:
    job = Job.update(b"procedure", b"state" * 100, [b"batch 0", b"", b"batch 2"])
    fd = job.pack()
    with os.fdopen(fd, "rb") as file:
        data = os.pread(file.fileno(), 1 << 20, 0)
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", 0)
    assert tuple(bytes(part) for part in unpack(memoryview(data)).parts) == job.parts
    overhead = len(data) - sum(len(part) for part in job.parts)
    assert overhead < 4 + 200 + 64 * len(job.parts)


def test_a_closed_sandbox_says_so() -> None:
    with pytest.raises(SandboxError, match="context manager"):
        Sandbox().run(Job.init(b"", 1))


@pytest.mark.parametrize(
    "wrong", [{"seconds": 0}, {"seconds": float("nan")}, {"memory_bytes": -1}, {"output_bytes": 0}]
)
def test_limits_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        Limits(**wrong)
