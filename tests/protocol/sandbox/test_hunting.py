"""Procedures that hunt for what the replayer must not see. Each hunt has a control in which it finds its prey."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from witbench.protocol.sandbox import Job, Sandbox, read_values
from witbench.training.data import Dataset
from witbench.training.serialize import state_from_bytes

READ = """
def hunt(path):
    try:
        return open(path, "rb").read().decode()
    except OSError as error:
        return type(error).__name__
"""


def test_files_of_the_run_are_not_there(lab: Any, jail: Sandbox, bare: Sandbox, tmp_path: Path) -> None:
    prey = tmp_path / "run" / "openings"
    prey.parent.mkdir()
    prey.write_text("end state")
    assert lab.hunt_in(bare, READ, path=str(prey)) == "end state"
    assert lab.hunt_in(jail, READ, path=str(prey)) == "FileNotFoundError"


@pytest.mark.parametrize("path", ["/etc/passwd", "/sys/kernel/notes", "/var/log", "/proc/self/cwd/../etc/passwd"])
def test_files_of_the_system_are_not_there(lab: Any, jail: Sandbox, path: str) -> None:
    assert lab.hunt_in(jail, READ, path=path) == "FileNotFoundError"


SIBLINGS = """
import os

def hunt(folder):
    return sorted(os.listdir(folder))
"""


def test_only_the_package_is_left_of_its_folder(lab: Any, jail: Sandbox, bare: Sandbox) -> None:
    root = Path(sys.modules["witbench"].__file__ or "").parent.parent
    seen = set(lab.hunt_in(jail, SIBLINGS, folder=str(root)))
    assert {"witbench"} <= seen < set(lab.hunt_in(bare, SIBLINGS, folder=str(root)))
    assert not seen & {"tests", ".git", "runs"}


MEMORY = """
def hunt(pid, address, length):
    import os
    found = []
    for number in {pid, os.getppid()}:
        try:
            with open(f"/proc/{number}/mem", "rb", buffering=0) as memory:
                memory.seek(address)
                found.append(memory.read(length).decode(errors="replace"))
        except OSError as error:
            found.append(type(error).__name__)
    return found
"""


def test_the_parents_memory_is_out_of_reach(lab: Any, jail: Sandbox) -> None:
    prey = ctypes.create_string_buffer(b"sketch under the key")
    where = {"pid": os.getpid(), "address": ctypes.addressof(prey), "length": 20}
    assert "sketch under the key" in lab.hunt_here(MEMORY, **where)
    assert set(lab.hunt_in(jail, MEMORY, **where)) == {"FileNotFoundError"}


PROCESSES = """
import os

def hunt():
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
"""


def test_no_other_process_is_listed(lab: Any, jail: Sandbox, bare: Sandbox) -> None:
    assert os.getpid() in lab.hunt_in(bare, PROCESSES)
    assert lab.hunt_in(jail, PROCESSES) == [1]


ENVIRONMENT = """
import glob, os

def hunt():
    found = ["%s=%s" % pair for pair in os.environ.items()]
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            found += open(path, "rb").read().decode(errors="replace").split(chr(0))
        except OSError:
            pass
    return [line for line in found if "PREY" in line]
"""


CONNECT = """
import socket

def hunt(kind, address):
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(5)
        try:
            client.connect(address if kind == "unix" else tuple(address))
        except OSError as error:
            return type(error).__name__
        return client.recv(100).decode()
"""


@pytest.mark.parametrize("kind", ["inet", "unix"])
def test_a_listening_socket_is_not_reached(lab: Any, jail: Sandbox, bare: Sandbox, kind: str) -> None:
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    with socket.socket(family) as server:
        server.bind(f"\0witbench-test-{os.getpid()}" if kind == "unix" else ("127.0.0.1", 0))
        server.listen()
        address = server.getsockname()
        address = address.decode() if kind == "unix" else list(address)
        control = subprocess.Popen(
            [sys.executable, "-c", f"{CONNECT}\nprint(hunt({kind!r}, {address!r}))"], stdout=subprocess.PIPE
        )
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"the answer")
        assert control.communicate()[0] == b"the answer\n"
        caught = lab.hunt_in(jail, CONNECT, kind=kind, address=address)
        assert caught == ("ConnectionRefusedError" if kind == "unix" else "OSError")


FILES = """
import os

def hunt(prey):
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
            found.append(os.pread(int(name), 100, 0).decode(errors="replace"))
        except OSError:
            pass
    return {"prey": any(prey in text for text in found), "links": found}
"""


@pytest.mark.parametrize("isolation", ["namespaces", "process"])
def test_no_file_and_no_variable_is_inherited(
    lab: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, isolation: str
) -> None:
    monkeypatch.setenv("WITBENCH_PREY", "broker seed")
    prey = tmp_path / "tape"
    prey.write_text("inheritable prey")
    with prey.open() as opened:
        os.set_inheritable(opened.fileno(), True)
        with Sandbox(limits=lab.limits, isolation=isolation) as sandbox:
            assert lab.hunt_here(FILES, prey="inheritable prey")["prey"]
            found = lab.hunt_in(sandbox, FILES, prey="inheritable prey")
            assert "WITBENCH_PREY=broker seed" in lab.hunt_here(ENVIRONMENT)
            variables = lab.hunt_in(sandbox, ENVIRONMENT)
    if isolation == "namespaces":
        assert variables == []
    assert not found["prey"]
    kinds = {link.split(":")[0] for link in found["links"] if link and link[0] in "/ps"}
    assert {link for link in kinds if not link.startswith("/proc/")} <= {"/dev/null", "/memfd", "pipe"}


PTRACE = """
import ctypes

def hunt(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    attached = libc.ptrace(0x4206, pid, None, None)
    return ctypes.get_errno() if attached == -1 else 0
"""


def test_no_process_outside_can_be_traced(lab: Any, jail: Sandbox) -> None:
    with subprocess.Popen(["sleep", "600"]) as prey:
        try:
            assert lab.hunt_in(jail, PTRACE, pid=prey.pid) == 3  # ESRCH
            assert lab.hunt_in(jail, PTRACE, pid=os.getpid()) == 3
            assert lab.hunt_here(PTRACE, pid=prey.pid) == 0
        finally:
            prey.kill()


SIGNAL = """
import os

def hunt(pid, signal):
    try:
        os.kill(pid, signal)
    except OSError as error:
        return type(error).__name__
    return "sent"
"""


def test_the_parent_receives_no_signal(lab: Any, jail: Sandbox, bare: Sandbox) -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    try:
        assert lab.hunt_in(jail, SIGNAL, pid=os.getpid(), signal=signal.SIGUSR1) == "ProcessLookupError"
        assert received == []
        assert lab.hunt_in(bare, SIGNAL, pid=os.getpid(), signal=signal.SIGUSR1) == "sent"
        assert received == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


WRITE = """
import os

def hunt(paths):
    outcome = {}
    for path in paths:
        try:
            with open(path, "w") as file:
                outcome[path] = file.write("prey")
        except OSError as error:
            outcome[path] = type(error).__name__
    return outcome
"""


def test_nothing_outside_the_scratch_folder_can_be_written(
    lab: Any, jail: Sandbox, bare: Sandbox, tmp_path: Path
) -> None:
    prey = str(tmp_path / "prey")
    assert lab.hunt_in(bare, WRITE, paths=[prey]) == {prey: 4}
    Path(prey).unlink()
    libraries = [f"{sysconfig.get_path(name)}/witbench_prey" for name in ("stdlib", "purelib")]
    package = str(Path(sys.modules["witbench"].__file__ or "").parent / "witbench_prey")
    places = ["/witbench_prey", "/dev/witbench_prey", "/usr/lib/witbench_prey", package, *libraries]
    outcome = lab.hunt_in(jail, WRITE, paths=[prey, *places, "/scratch/mine"])
    assert outcome.pop(prey) == "FileNotFoundError"
    assert outcome.pop("/scratch/mine") == 4
    assert set(outcome.values()) <= {"OSError", "PermissionError"}
    assert not any(Path(path).exists() for path in [prey, *places])


MOUNTS = """
import os

def hunt(folders):
    return [bool(os.statvfs(folder).f_flag & os.ST_RDONLY) for folder in folders]
"""


def test_every_library_is_mounted_read_only(lab: Any, jail: Sandbox) -> None:
    package = str(Path(sys.modules["witbench"].__file__ or "").parent)
    folders = ["/", "/dev/null", "/usr/lib", package, sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")]
    assert lab.hunt_in(jail, MOUNTS, folders=folders) == [True] * len(folders)
    assert lab.hunt_in(jail, MOUNTS, folders=["/scratch"]) == [False]


def test_nothing_is_left_for_the_next_job(lab: Any, jail: Sandbox) -> None:
    assert lab.hunt_in(jail, WRITE, paths=["/scratch/note"]) == {"/scratch/note": 4}
    assert lab.hunt_in(jail, READ, path="/scratch/note") == "FileNotFoundError"


PATCH = """
import hashlib

import torch

def hunt(patch):
    if patch:
        hashlib.sha256 = hashlib.md5
        torch.Tensor.sum = lambda self: 7
        torch.set_num_threads(3)
    return [hashlib.sha256(b"").hexdigest(), int(torch.ones(2).sum()), torch.get_num_threads()]
"""


def test_patched_modules_end_with_the_job(lab: Any, jail: Sandbox) -> None:
    true = hashlib.sha256(b"").hexdigest()
    assert lab.hunt_in(jail, PATCH, patch=True) == [hashlib.md5(b"").hexdigest(), 7, 3]
    assert lab.hunt_in(jail, PATCH, patch=False) == [true, 2, 1]
    assert lab.hunt_here(PATCH, patch=False)[:2] == [true, 2]


REOPEN = """
import os

def hunt(prey, dataset=None):
    written = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.fstat(int(name)).st_size == prey:
                with open(f"/proc/self/fd/{name}", "r+b", buffering=0) as file:
                    written += file.write(b"prey")
        except OSError:
            pass
    return {"written": float(written), "token": float(dataset.tokens[0]) if dataset is not None else 0.0}
"""


@pytest.mark.parametrize("isolation", ["namespaces", "process"])
def test_the_dataset_cannot_be_reopened_for_writing(lab: Any, tmp_path: Path, isolation: str) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(bytes([5]) * 54_321)
    path.chmod(0o666)
    with Sandbox(limits=lab.limits, isolation=isolation) as sandbox:
        dataset = Dataset(path, "uint8", 256)
        job = Job.evaluate(lab.procedure(REOPEN, prey=54_321), lab.start_state(), dataset)
        assert read_values(sandbox.run(job)) == {"written": 0.0, "token": 5.0}
    with path.open("rb"):
        assert lab.hunt_here(REOPEN, prey=54_321)["written"] > 0


SCAN = """
import re

def hunt(backwards):
    mark = backwards[::-1].encode()
    found = set()
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in list(maps):
            span, rights = line.split()[:2]
            if "r" not in rights or "[v" in line:
                continue
            at, end = (int(x, 16) for x in span.split("-"))
            tail = b""
            while at < end:
                try:
                    memory.seek(at)
                    block = memory.read(min(1 << 22, end - at))
                except (OSError, OverflowError, ValueError):
                    break
                for hit in re.finditer(re.escape(mark) + b"(START|FINAL)", tail + block):
                    found.add(hit.group(1).decode())
                tail, at = block[-64:], at + len(block)
                if not block:
                    break
    return sorted(found)
"""


def test_a_job_holds_its_arguments_and_nothing_of_the_prover(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = os.urandom(12).hex()
    held = [mark.encode() + b"FINAL" for _ in range(10)]
    monkeypatch.setenv("WITBENCH_HELD", mark + "FINAL")
    (tmp_path / "state").write_bytes(held[0])
    with Sandbox(limits=lab.limits, isolation="namespaces") as sandbox:
        state = lab.start_state(note=mark.encode() + b"START")
        job = Job.update(lab.procedure(SCAN, backwards=mark[::-1]), state, [lab.some_batch()])
        found = state_from_bytes(sandbox.run(job)).exact["found"]
    assert found == b'["START"]'
    assert "FINAL" in lab.hunt_here(SCAN, backwards=mark[::-1])
