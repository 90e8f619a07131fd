"""The dispatcher: every command has a help, every mistake is one line, exit statuses are as promised."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import witbench as package
from tests.cli.conftest import Result
from witbench.cli import main as dispatcher
from witbench.cli.command import Arguments, Command
from witbench.errors import StateError

Run = Callable[..., Result]
ROOT = Path(__file__).resolve().parents[2]


def raising(error: BaseException) -> Command:
    def run(arguments: Arguments) -> int:
        raise error

    return Command("ls", "Fails.", "", run, resume="run `witbench ls` again")


@pytest.mark.parametrize("name", dispatcher.COMMANDS)
def test_every_command_explains_itself_with_examples(name: str, witbench: Run) -> None:
    result = witbench(name, "--help")
    assert result.status == 0
    assert result.out.startswith(f"usage: witbench {name}")
    assert "examples:\n  witbench " in result.out
    assert result.err == ""


def test_overview_names_every_command_and_version_is_the_packages(witbench: Run) -> None:
    out = witbench("--help").out
    assert all(f"\n  {name} " in out for name in dispatcher.COMMANDS)
    assert witbench("--version").out == witbench("ls", "--version").out == f"witbench {package.__version__}\n"
    assert witbench().status == 2


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("verfy", "x"), "command=verfy: unknown; choose from attack, bench"),
        (("verfy", "x"), "did you mean verify?"),
        (("--verbose",), "--verbose: unknown"),
        (("verify",), "usage: witbench verify CERT"),
        (("verify", "/no/such/cert"), "/no/such/cert: no such certificate"),
        (("verify", "x", "trust=/no/such"), "trust=/no/such: must be a file that exists"),
        (("data", "fech"), "did you mean fetch?"),
        (("show", "rth"), "did you mean rht?"),
        (("ls", "skech"), "did you mean sketch?"),
        (("verify", "--cfg", "job"), "--cfg: verify has no config"),
        (("train", "--info", "default"), "did you mean defaults?"),
        (("train", "model=gpt_3n"), "did you mean gpt_3m?"),
        (("train", "protocol.p=1.5"), "protocol.p=1.5"),
        (("train", "jsn=true"), "jsn"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_status_2(argv: tuple[str, ...], says: str, witbench: Run) -> None:
    result = witbench(*argv)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("witbench: ")
    assert says in result.err
    assert result.err.count("\n") == 1


def test_ctrl_c_says_how_to_go_on(witbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "find", lambda name: raising(KeyboardInterrupt()))
    result = witbench("ls")
    assert (result.status, result.err) == (130, "witbench: interrupted: run `witbench ls` again\n")


def test_errors_of_several_lines_and_full_disks_are_one_line(witbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "find", lambda name: raising(StateError("not\nfinite")))
    assert witbench("ls") == Result(2, "", "witbench: not finite\n")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/tape")
    monkeypatch.setattr(dispatcher, "find", lambda name: raising(full))
    assert witbench("ls") == Result(2, "", "witbench: runs/tape: No space left on device\n")


def test_a_bug_keeps_its_traceback(witbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "find", lambda name: raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        witbench("ls")


def test_cfg_job_prints_the_composed_config_and_info_the_defaults(witbench: Run) -> None:
    result = witbench("train", "model=gpt_3m", "--cfg", "job", "protocol.p=0.25")
    assert result.status == 0
    assert "name: gpt_3m" in result.out
    assert "p: 0.25" in result.out
    info = witbench("train", "model=gpt_3m", "--info", "defaults")
    assert info.status == 0


def test_python_m_works_and_a_closed_pipe_is_quiet() -> None:
    # The reader leaves before the first line, so that writing fails for certain.
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "witbench", "ls"]
    with os.fdopen(writer, "wb") as out:
        result = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.PIPE, check=False)
    assert (result.returncode, result.stderr) == (141, b"")
