"""`doctor`: a line for each check, a remedy for what is missing, nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from tests.cli.conftest import Result
from witbench.cli import doctor
from witbench.protocol.sandbox import SandboxError

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def _no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting one takes seconds, and the sandbox has tests of its own."""
    monkeypatch.setattr(doctor, "probe_sandbox", lambda: ("namespaces", ""))


def test_a_line_for_each_check(witbench: Run) -> None:
    result = witbench("doctor")
    assert result.status == 0
    assert [line.split()[1] for line in result.out.splitlines()] == [
        "python", "torch", "threads", "sandbox", "cache", "dataset", "compiler",
    ]  # fmt: skip
    assert {each["what"]: each["ok"] for each in json.loads(witbench("doctor", "json=true").out)}["torch"] is True


def test_missing_torch_is_a_negative_verdict_with_a_remedy(witbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    result = witbench("doctor")
    assert result.status == 1
    assert "missing  torch      not installed; run make install" in result.out


def test_an_old_torch_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "2.9.1+cpu")
    assert not doctor.torch().ok


def test_weak_isolation_is_told_but_not_needed(witbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "probe_sandbox", lambda: ("process only", "not root"))
    result = witbench("doctor")
    assert result.status == 0
    assert "missing  sandbox    process only (not root); run as root or allow user namespaces" in result.out


def test_no_sandbox_at_all_is_a_negative_verdict(witbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def probe() -> tuple[str, str]:
        raise SandboxError("no fork")

    monkeypatch.setattr(doctor, "probe_sandbox", probe)
    assert witbench("doctor").status == 1


def test_looking_at_the_cache_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert doctor.cache().ok
    assert list(tmp_path.iterdir()) == []
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert not doctor.cache().ok
