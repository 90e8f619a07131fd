"""Running commands inside the test's own process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from witbench.cli.main import main


@dataclass(frozen=True)
class Result:
    """What a command line gave."""

    status: int
    out: str
    err: str


@pytest.fixture
def witbench(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run `witbench …` and return its status and output."""

    def run(*argv: str) -> Result:
        status = main(argv)
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run
