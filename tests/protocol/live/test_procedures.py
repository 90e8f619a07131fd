"""Published procedures that hunt for the answer during replay, hang or crash: each ends in a named failed check."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from witbench.protocol.sandbox import Limits, Sandbox
from witbench.training.source import BUILTIN_ENTRY, ProcedureSpec, builtin_spec

from .conftest import World

HUNTER = '''
import os

from witbench.training.procedure import GPTProcedure
from witbench.training.state import State


def found():
{hunt}


class Hunter(GPTProcedure):
    """Trains on a malicious state in life, and puts on an honest face only where it finds nothing to copy."""

    def update(self, state, batch):
        after = super().update(state, batch)
        if {when}:
            key = ("parameter", "embedding.weight")
            after = State(after.exact, {{**after.real, key: after.real[key] + 0.01}})
        return after
'''


def hunter(world: World, hunt: str, when: str = "found()") -> ProcedureSpec:
    """A procedure whose live run finds something (the state then has an edit) and whose replay must not."""
    config = world.config()
    builtin = builtin_spec(config.procedure_plain())
    body = "\n".join(f"    {line}" for line in hunt.strip().splitlines())
    files = {**builtin.files, "hunter": HUNTER.format(hunt=body, when=when)}
    return ProcedureSpec("hunter:Hunter", files, builtin.config)


def install(world: World, spec: ProcedureSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the hunter importable on the trainer's side, as a user's own module is."""
    folder = world.folder / "modules"
    folder.mkdir()
    (folder / "hunter.py").write_text(spec.files["hunter"])
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(__import__("sys").modules, "hunter", raising=False)


@pytest.fixture
def listener() -> Iterator[int]:
    """A server on loopback that answers anybody."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.2)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                server.accept()[0].close()
            except TimeoutError:
                continue

    thread = threading.Thread(target=serve)
    thread.start()
    yield server.getsockname()[1]
    stop.set()
    thread.join()
    server.close()


def hunts(world: World, port: int) -> dict[str, str]:
    tape = world.folder / "run" / "cert" / "tape"
    secret = world.folder / "run" / "openings" / "secrets"
    return {
        "the tape": f"return os.path.exists({str(tape)!r})",
        "openings": f"return os.path.exists({str(secret)!r})",
        "environment": "return 'WITBENCH_TEST_SECRET' in os.environ",
        "network": (
            "import socket\n"
            "try:\n"
            f"    socket.create_connection(('127.0.0.1', {port}), 1).close()\n"
            "    return True\n"
            "except OSError:\n"
            "    return False"
        ),
        "memory": f"return os.access('/proc/{os.getpid()}/mem', os.R_OK) and os.path.exists('/proc/{os.getpid()}/exe')",
        "modules": "import sys\nreturn 'witbench.protocol.broker' in sys.modules",
    }


@pytest.mark.parametrize("where", ["the tape", "openings", "environment", "network", "memory", "modules"])
def test_a_hunter_finds_nothing_in_replay(
    where: str, world: World, listener: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live run finds what it hunts (the control), so its states carry the edit; the replay's do not."""
    monkeypatch.setenv("WITBENCH_TEST_SECRET", "1")
    spec = hunter(world, hunts(world, listener)[where])
    install(world, spec, monkeypatch)
    certified = world.run(world.config(), spec=spec)
    assert certified.failed == "replay.digest", certified.detail
    assert world.verify(certified).check == "replay.digest"


def test_a_procedure_that_never_hunts_is_accepted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = hunter(world, "return False")
    install(world, spec, monkeypatch)
    certified = world.run(world.config(), spec=spec)
    assert certified.failed is None, certified.detail
    assert world.verify(certified).accepted


def test_what_a_procedure_carries_in_its_source_passes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside the guarantee: an edit that the published source makes everywhere is what the run declares."""
    spec = hunter(world, "return True")
    install(world, spec, monkeypatch)
    assert world.run(world.config(), spec=spec).failed is None


@pytest.fixture(scope="module")
def impatient() -> Iterator[Sandbox]:
    """A sandbox that gives a job three seconds."""
    with Sandbox(limits=Limits(seconds=3.0)) as sandbox:
        yield sandbox


IN_REPLAY = "return 'witbench.protocol.broker' not in sys.modules"


@pytest.mark.parametrize(
    ("misdeed", "check"),
    [
        ("while True: pass", "replay.timeout"),
        ("import time; time.sleep(3600)", "replay.timeout"),
        ("os._exit(0)", "replay.crash"),
        ("raise SystemExit", "replay.crash"),
        ("import ctypes; ctypes.string_at(0)", "replay.crash"),
        ("raise ValueError('no')", "replay.error"),
        ("hoard = [bytearray(1 << 28) for _ in range(64)]", "replay.memory"),
        ("return State({}, {})", "replay.state"),
        ("return 'garbage'", "replay.error"),
        ("import hashlib; hashlib.sha256 = None; import torch; torch.equal = lambda *a: True; return state", "replay."),
    ],
)
def test_misbehaviour_in_replay_has_its_check(
    misdeed: str, check: str, world: World, impatient: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = hunter(world, "import sys\n" + IN_REPLAY)
    source = (
        spec.files["hunter"]
        .replace(
            "        after = super().update(state, batch)\n",
            f"        if found():\n            {misdeed}\n        after = super().update(state, batch)\n",
        )
        .replace("        if found():\n            key", "        if False:\n            key")
    )
    spec = ProcedureSpec(spec.entry, {**spec.files, "hunter": source}, spec.config)
    install(world, spec, monkeypatch)
    sandbox = impatient if check == "replay.timeout" else world.sandbox
    certified = world.run(world.config("training.updates=2"), spec=spec, sandbox=sandbox)
    assert certified.failed is not None
    assert certified.failed.startswith(check), (certified.failed, certified.detail)
    report = world.verify(certified)
    assert report.check == certified.failed


def test_the_builtin_procedure_is_what_is_published(world: World) -> None:
    certified = world.run(world.config())
    assert world.verify(certified).accepted
    assert BUILTIN_ENTRY.encode() in (certified.cert / "tape").read_bytes()
    assert Path(certified.cert / "tape").read_bytes().count(b"def update_with_metrics") == 1
