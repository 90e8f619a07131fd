"""Figure 5, the agreement of the two estimators, poison and payload: what is drawn and said, from rows alone."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from tests.figures.test_placements import PLAN, row
from witbench.errors import DataError
from witbench.evaluation.law import Plan
from witbench.evaluation.rows import Row
from witbench.figures import agreement, fig5, payload, poison
from witbench.figures.payload import Lie, lies, undetected


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    kept: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **kwargs: Any) -> None:
        kept.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return kept


def rates() -> list[Row]:
    made = []
    for attack in ("substitution", "insertion:in_batch", "insertion:hidden", "deletion:mask"):
        for seed in range(4):
            for p in (0.05, 0.1):
                made.append(row("uniform", 1, p, (3,), seed, attack=attack))
            made.append(row("burst", 4, 0.05, (3,), seed, attack=attack))
    return made


def test_attacks_above_and_placements_below(figures: list[Figure], tmp_path: Path) -> None:
    files = fig5.draw(rates(), tmp_path)
    shown = [panel.get_title() for panel in figures[0].axes if panel.get_visible()]
    assert shown == ["substitution", "insertion", "deletion", "burst, p = 5%"]
    insertion = figures[0].axes[1]
    assert len(insertion.containers) == 4, "two routes at two p"
    legend = insertion.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["hidden", "in batch"]
    with files.csv.open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 4 * 3
    assert "Below: by placement at p = 0.05" in files.caption.read_text("utf-8")
    with pytest.raises(DataError, match="no finished conditional trial"):
        fig5.draw([replace(each, protocol="unchecked") for each in rates()], tmp_path)


def whole(attack: str, detected: int, of: int) -> list[Row]:
    raw = {"estimator": "raw", "probability": None, "check": None, "attack": attack}
    return [row("burst", 4, 0.05, (), 100 + seed, detected=seed < detected, **raw) for seed in range(of)]


def test_both_ways_to_a_rate_are_paired_and_compared(tmp_path: Path) -> None:
    rows = [*rates(), *whole("substitution", 1, 20), *whole("deletion:mask", 19, 20)]
    files = agreement.draw(rows, tmp_path)
    assert "1 of 2 pairs overlap" in files.caption.read_text("utf-8")
    with pytest.raises(DataError, match="measured both"):
        agreement.draw(rates(), tmp_path)


def test_poison_shows_success_and_detection(tmp_path: Path) -> None:
    rows = [row("uniform", n, 0.01, (3,), seed, attack="poison", tokens=8) for n in (1, 8) for seed in range(3)]
    told = {"triggered": 0.5, "control": 0.001, "documents": 8.0}
    raw = {"estimator": "raw", "probability": None, "check": None, "protocol": "unchecked"}
    rows.append(row("uniform", 8, 0.0, (), 9, attack="poison", tokens=8, detected=False, payload=told, **raw))
    files = poison.draw(rows, tmp_path)
    caption = files.caption.read_text("utf-8")
    assert "at most 0.001" in caption
    assert "8 sequences of one update; the run has 512" in caption
    with pytest.raises(DataError, match="poison"):
        poison.draw(rows[:-1], tmp_path)


CALIBRATION = {"warmup_units": 2, "tau": {"warmup": {"g": 1.0, "h": 1.0}, "after": {"g": 0.1, "h": 0.2}}}


def branch(size: int, boundary: int, check: str | None, g: float, h: float) -> dict[str, Any]:
    distances = {} if check == "open.digest" else {"g": g, "h": h}
    return {
        "label": "substitution",
        "size": size,
        "tokens": size,
        "boundary": boundary,
        "check": check,
        "distances": distances,
    }


def test_a_lie_is_as_visible_as_its_most_visible_group() -> None:
    found = lies(
        [
            branch(1, 5, "replay.digest", 0.3, 0.2),
            branch(1, 1, "replay.digest", 0.3, 0.2),
            branch(1, 5, "open.digest", 0, 0),
            branch(0, 5, None, 0, 0),
        ],
        CALIBRATION,
    )
    assert [(round(lie.ratio, 6), lie.warmup) for lie in found] == [(3.0, False), (0.3, True), (math.inf, False)]


def test_the_largest_payload_that_passes() -> None:
    made = [Lie("a", size, ratio, False) for size, ratio in ((1, 2.0), (1, 30.0), (8, 50.0), (8, 60.0))]
    assert [undetected(made, scale, 0.0) for scale in (1.0, 2.0, 55.0)] == [0, 1, 8]
    assert undetected(made, 2.0, 0.5) == 0, "half of the states is not more than half"


def test_payload_says_where_one_token_is_missed(figures: list[Figure], tmp_path: Path) -> None:
    caught = [branch(size, 5, "replay.digest", 3.0 * size, 0.0) for size in (1, 2, 4)]
    files = payload.draw(caught, CALIBRATION, Plan(64, 1, 1024), "Here.", tmp_path)
    assert "it is caught in all 1 checks" in files.caption.read_text("utf-8")
    right = figures[0].axes[2]
    uniform, spread, burst = right.lines
    assert max(burst.get_ydata()) == 1024
    assert max(spread.get_ydata()) == 8 * 1024
    assert min(uniform.get_ydata()) == 0
    missed = [*caught, branch(1, 6, "replay.digest", 0.01, 0.0)]
    files = payload.draw(missed, CALIBRATION, PLAN, "Here.", tmp_path)
    assert "missed in some of substitution" in files.caption.read_text("utf-8")
    with pytest.raises(DataError, match="no branch"):
        payload.draw([], CALIBRATION, PLAN, "Here.", tmp_path)
