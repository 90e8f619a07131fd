"""The overhead's arithmetic, and that both sides of a pair do run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from witbench.bench.overhead import Overhead
from witbench.cli.main import main

LIBRARY = Path(pytest.__file__).parent.parent / "_pytest"


def test_the_interval_is_students_on_logarithms() -> None:
    mean, low, high = Overhead((2.0, 2.0 * math.e, 2.0 / math.e), 1.0, {}).interval()
    assert mean == pytest.approx(2.0)
    # t(0.975, 2) = 4.302653, deviation of the logarithms 1, three pairs.
    assert high == pytest.approx(2.0 * math.exp(4.302653 / math.sqrt(3)), rel=1e-5)
    assert low * high == pytest.approx(4.0)


def test_it_measures_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").mkdir()
    for path in sorted(LIBRARY.glob("*.py"))[:12]:
        (tmp_path / "texts" / path.name).write_bytes(path.read_bytes())
    monkeypatch.setenv("WITBENCH_CACHE", str(tmp_path / "cache"))
    tiny = ("model.layers=1", "model.width=16", "model.heads=2", "model.context=16", "training.sequences=2")
    more = ("training.updates=6", "data=folder", f"data.path={tmp_path / 'texts'}")
    assert main(["bench", "overhead", "pairs=2", "json=true", *tiny, *more]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["ratios"]) == 2
    assert set(found["parts"]) >= {"update", "state digest", "sketch", "start snapshot, durable"}
    assert all(seconds > 0 for seconds in found["parts"].values())
    assert main(["bench", "overheat"]) == 2
    assert main(["bench", "overhead", "pairs=1"]) == 2
