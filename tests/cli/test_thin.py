"""`data` and `verify` hand what they were given to the packages below."""

from __future__ import annotations

import io
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result

Run = Callable[..., Result]


def test_data_fetch_lists_fetches_and_refuses(witbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    corpora = types.ModuleType("witbench.training.corpora")
    corpora.CORPORA = {"kjv": None, "shakespeare": None}  # type: ignore[attr-defined]
    corpora.fetch = lambda name: f"/cache/{name}"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "witbench.training.corpora", corpora)
    assert witbench("data", "fetch").out == "kjv\nshakespeare\n"
    assert witbench("data", "fetch", "kjv").out == "/cache/kjv\n"
    assert "did you mean shakespeare?" in witbench("data", "fetch", "shakespear").err


def test_verify_refuses_what_is_no_certificate_with_status_1(tmp_path: Path, witbench: Run) -> None:
    (tmp_path / "tape").write_text("this is a text file, not a tape\n" * 10)
    result = witbench("verify", str(tmp_path), "json=true")
    assert (result.status, result.err) == (1, "")
    report = json.loads(result.out)
    assert report["accepted"] is False
    text = witbench("verify", str(tmp_path))
    assert text.status == 1
    assert text.out.startswith("REJECTED")


def test_verify_reads_a_tape_on_standard_input(witbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert witbench("verify", "-").status == 1


def test_verify_refuses_a_key_or_policy_that_is_none(tmp_path: Path, witbench: Run) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("hello\n")
    for option in ("trust", "policy"):
        result = witbench("verify", str(tmp_path), f"{option}={other}")
        assert (result.status, result.out) == (2, "")
        assert option in result.err
