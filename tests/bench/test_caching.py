"""What caching is worth, on a tiny model: every step does less than the one before, and gives the same rows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from witbench.bench.caching import Caching, measure

TEXTS = Path(pytest.__file__).parent.parent / "_pytest"
TINY = (
    "training.updates=8",
    "training.sequences=2",
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "model.context=32",
    "sketch.params.k=64",
    "study.draws=3",
    "executor.workers=1",
)


def test_it_measures_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "texts").mkdir()
    for path in sorted(TEXTS.glob("*.py"))[:12]:
        (tmp_path / "texts" / path.name).write_bytes(path.read_bytes())
    os.environ.setdefault("WITBENCH_CACHE", str(tmp_path / "cache"))
    done: list[tuple[int, int]] = []
    found = measure(["data=folder", f"data.path={tmp_path / 'texts'}", *TINY], lambda *at: done.append(at))
    assert found.trials == 2 * 3 * 2 * 3 + 2
    assert [total for at, total in done if at == 0] == [2, 2, 0], "trained, measured again, and nothing to do"
    assert all(seconds > 0 for seconds in (found.cold, found.trained, found.measured, found.again))


def test_the_report_shows_ratios() -> None:
    report = Caching(1000, 20.0, 10.0, 2.0, 0.5).report
    assert "2.00 times" in report
    assert "10.00 times" in report
    assert "500 trials/s" in report
