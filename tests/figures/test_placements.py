"""Figure 5: files, plotted numbers, the curve, the band and the caption, from rows alone."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from witbench.errors import DataError
from witbench.evaluation.law import Plan, conditional, theory
from witbench.evaluation.rows import Row, trial_key
from witbench.figures import placements

PLAN = Plan(64, 1, 1024)


def row(placement: str, amount: int, p: float, units: tuple[int, ...], seed: int, **changes: Any) -> Row:
    plain: dict[str, Any] = {
        "key": trial_key({"placement": placement, "amount": amount, "p": p, **changes}, seed, {}),
        "attack": "substitution",
        "placement": placement,
        "amount": amount,
        "protocol": "witness",
        "sketch": "rht",
        "model": "gpt_0.1m",
        "p": p,
        "L": PLAN.unit,
        "tau": None,
        "updates": PLAN.updates,
        "tokens": PLAN.tokens,
        "seed": seed,
        "estimator": "conditional",
        "probability": conditional(PLAN, p, units, [1.0] * len(units)),
        "check": "replay.digest",
        "units": units,
        "v": (1.0,) * len(units),
        "clusters": {"run": str(seed)},
        "commit": "0123456789abcdef",
        "machine": "two cores",
    }
    return Row(**(plain | changes))


def rows() -> list[Row]:
    made = []
    for p in (0.05, 0.1):
        for seed in range(5):
            made += [row("burst", amount, p, (3,), seed) for amount in (1, 1024)]
            made += [row("spread:4", 256, p, (1, 2, 3, 4), seed)]
    raw = {"estimator": "raw", "probability": None, "check": None}
    return made + [row("burst", 1024, 0.1, (), seed, detected=seed == 10, **raw) for seed in range(10, 20)]


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[placements.Artifacts, Figure]:
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **kwargs: Any) -> None:
        figures.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    others = [dataclasses.replace(rows()[0], key=name, **{name: "other"}) for name in ("attack", "protocol")]
    return placements.draw(rows() + others, tmp_path / "new"), figures[0]


def test_the_files(drawn: tuple[placements.Artifacts, Figure]) -> None:
    files, _ = drawn
    assert files.png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert files.pdf.read_bytes()[:5] == b"%PDF-"


def test_the_csv_holds_the_plotted_numbers(drawn: tuple[placements.Artifacts, Figure]) -> None:
    with open(drawn[0].csv, encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 7
    by_cell = {(line["placement"], line["p"], line["tokens"], line["estimator"]): line for line in lines}
    spread = by_cell["spread:4", "0.1", "256", "conditional"]
    assert float(spread["rate"]) == pytest.approx(1 - 0.9**4)
    assert float(spread["theory"]) == pytest.approx(1 - 0.9**4)
    assert spread["training_runs"] == spread["trials"] == "5"
    raw = by_cell["burst", "0.1", "1024", "raw"]
    assert (float(raw["detections"]), int(raw["trials"])) == (1, 10)
    assert float(raw["low10"]) < 0.1 < float(raw["high90"])


def test_the_panels_show_law_band_and_bars(drawn: tuple[placements.Artifacts, Figure]) -> None:
    axes = {panel.get_title(): panel for panel in drawn[1].axes}
    assert list(axes) == ["spread over 4 units", "burst"]
    burst = axes["burst"]
    curves = [line for line in burst.lines if len(line.get_xdata()) > 20]
    assert [set(curve.get_ydata()) for curve in curves] == [{0.05}, {0.1}]
    assert max(curves[0].get_xdata()) <= 1024
    band = burst.patches[0].get_extents().transformed(burst.transData.inverted())
    assert (band.x0, band.x1) == pytest.approx((0.65536, 65.536))
    assert not [line for line in burst.lines if line.get_linestyle() == ":"]
    assert len(burst.containers) == 3  # two p with coins averaged, one of whole runs


def test_the_uniform_curve_is_averaged_over_placements(tmp_path: Path) -> None:
    cell_rows = [row("uniform", 64, 0.1, tuple(range(1, 40)), seed) for seed in range(3)]
    files = placements.draw(cell_rows, tmp_path)
    with open(files.csv, encoding="utf-8") as file:
        line = next(csv.DictReader(file))
    assert float(line["theory"]) == pytest.approx(theory("uniform", 64, PLAN, 0.1))


def test_the_caption_says_what_was_run_and_cites_the_band(drawn: tuple[placements.Artifacts, Figure]) -> None:
    caption = drawn[0].caption.read_text(encoding="utf-8")
    for part in (
        "gpt_0.1m",
        "65,536 in all",
        "exact tolerance",
        "p = 0.05, 0.1",
        "30 conditional trials",
        "10 whole runs",
        "15 training runs",
        "Alber et al. 2025",
        "Zhang et al. 2024",
        "Souly et al. 2025",
        "250 documents ≈ 420,000 tokens",
        "not drawn",
        "two cores, 0123456789ab.",
    ):
        assert part in caption, part


def test_document_marks_appear_once_the_run_is_long_enough(tmp_path: Path) -> None:
    long = Plan(1024, 1, 1024)
    changes: dict[str, Any] = {"updates": long.updates, "placement": "uniform", "amount": 2**19}
    files = placements.draw([dataclasses.replace(each, **changes) for each in rows() if each.p == 0.05], tmp_path)
    assert "dotted lines" in files.caption.read_text(encoding="utf-8")


def test_drawing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = (placements.draw(order, tmp_path / name) for name, order in (("a", rows()), ("b", rows()[::-1])))
    for first, second in zip(dataclasses.astuple(one), dataclasses.astuple(two), strict=True):
        assert first.read_bytes() == second.read_bytes(), first.name


def test_a_placement_without_a_law_is_drawn_without_a_curve(tmp_path: Path) -> None:
    files = placements.draw([row("from_a_plugin", 8, 0.1, (2,), seed) for seed in range(3)], tmp_path)
    with open(files.csv, encoding="utf-8") as file:
        assert next(csv.DictReader(file))["theory"] == ""


def test_nothing_to_draw(tmp_path: Path) -> None:
    failed = row("burst", 1, 0.1, (), 0, probability=None, v=(), error="crashed")
    for empty in ([], [failed]):
        with pytest.raises(DataError, match="make bench"):
            placements.draw(empty, tmp_path)


def test_runs_of_two_shapes_are_not_drawn_together(tmp_path: Path) -> None:
    other = dataclasses.replace(rows()[0], key="0" * 32, updates=128)
    with pytest.raises(DataError, match="apart"):
        placements.draw([*rows(), other], tmp_path)
