"""`witbench train` as a user meets it: a kill, Ctrl-C, a full disk, a state that breaks, data that is not there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from witbench.cli.main import main

OVERRIDES = (
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "model.context=16",
    "training.sequences=2",
    "training.updates=150",
    "training.eval_batches=1",
    "sketch.params.k=64",
    "protocol.p=0.2",
    "data=folder",
)
LIBRARY = Path(pytest.__file__).parent.parent / "_pytest"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a few texts in it."""
    (tmp_path / "texts").mkdir()
    for path in sorted(LIBRARY.glob("*.py"))[:12]:
        (tmp_path / "texts" / path.name).write_bytes(path.read_bytes())
    monkeypatch.setenv("WITBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(place: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "witbench", "train", *OVERRIDES, "data.path=texts", "out=run", *more]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    return subprocess.Popen(
        command,
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )


def heed_interrupts() -> None:
    """Undo that a shell without job control makes what it runs in the background ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for_records(place: Path, size: int, process: subprocess.Popen[str]) -> None:
    tape = place / "run" / "cert" / "tape"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if tape.exists() and tape.stat().st_size > size:
            return
        time.sleep(0.02)
    raise AssertionError(f"no tape of {size} bytes: {process.communicate()}")


def verify(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    status = main(["verify", "run/cert", *more])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def finish(place: Path) -> str:
    process = start(place)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return out


def test_kill_9_twice_then_the_same_command(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for size in (120_000, 260_000):
        process = start(place)
        wait_for_records(place, size, process)
        process.kill()
        process.communicate()
        status, said = verify(capsys)
        assert status == 1
        assert re.search(r"incomplete: .*unit \d+ \(record \d+\)", said), said
    line = re.search(r"witbench (verify .*)", finish(place))
    assert line is not None
    assert main(line[1].split()) == 0
    said = capsys.readouterr().out
    assert "ACCEPTED" in said
    assert re.search(r"rewinds +2", said)
    assert "has ended before" in finish(place), "the same command once more trains nothing"


def test_ctrl_c_says_how_to_go_on(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = start(place)
    wait_for_records(place, 120_000, process)
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip().splitlines()[-1].startswith("witbench: interrupted: ")
    assert "Traceback" not in err
    assert "same command goes on" in err
    assert verify(capsys)[0] == 1
    finish(place)
    assert verify(capsys, "trust=runs/broker/broker.vkey")[0] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="a full disk is a small tmpfs, which only root can mount")
def test_a_full_disk_is_one_line_and_nothing_is_lost(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disk = place / "run"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], check=True)
    try:
        process = start(place)
        out, err = process.communicate(timeout=240)
        assert process.returncode == 2, (out, err)
        assert len(err.strip().splitlines()) == 1, err
        assert "No space left on device" in err
        status, said = verify(capsys)
        assert status == 1
        assert "incomplete" in said
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        finish(place)
        assert verify(capsys, "trust=runs/broker/broker.vkey")[0] == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("data.path=nowhere",), "nowhere"),
        (("data.path=empty",), "empty"),
        (("data.path=texts", "protocol.p=1.5"), "protocol.p"),
        (("data.path=texts", "sketch.params.k=100"), "k"),
        (("data.path=texts", "optimizer.lr=1e30", "optimizer.clip=0"), "norm|weight|bias|value"),
        (("data.path=texts", "tolerance=calibrated"), "tolerance.calibration"),
        (("data.path=texts", "training.threads=0"), "training.threads"),
    ],
)
def test_bad_input_is_one_line(
    more: tuple[str, ...], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "empty").mkdir()
    status = main(["train", *OVERRIDES, "out=run", *more])
    err = capsys.readouterr().err.strip()
    assert status == 2, err
    assert len(err.splitlines()) == 1, err
    assert re.search(message, err), err
