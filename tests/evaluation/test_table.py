"""Cells, and the table that shows them."""

from __future__ import annotations

from typing import Any

import pytest

from witbench.evaluation.rates import binomial_rate
from witbench.evaluation.rows import Row
from witbench.evaluation.summary import Summary, summarise
from witbench.evaluation.table import plain_table


def row(seed: int, **changes: Any) -> Row:
    plain: dict[str, Any] = {
        "key": f"{seed:032x}",
        "attack": "substitution",
        "placement": "burst",
        "amount": 1024,
        "protocol": "witness",
        "sketch": "rht",
        "model": "gpt_0.1m",
        "p": 0.1,
        "L": 1,
        "tau": None,
        "updates": 64,
        "tokens": 1024,
        "seed": seed,
        "estimator": "raw",
        "detected": seed == 0,
        "check": "replay.digest" if seed == 0 else None,
        "cost_seconds": 2.0,
        "clusters": {"run": str(seed)},
    }
    return Row(**(plain | changes))


HONEST = {"attack": "none", "placement": "none", "amount": 0, "detected": False, "check": None}


def only(rows: list[Row]) -> Summary:
    (summary,) = summarise(rows)
    return summary


def test_a_cell_of_whole_runs() -> None:
    summary = only([row(seed) for seed in range(10)])
    assert summary.rate == binomial_rate(1, 10)
    assert summary.theory == pytest.approx(0.1)
    assert (summary.check, summary.clusters, summary.seconds, summary.errors) == ("replay.digest", 10, 20.0, 0)


def test_trials_of_one_training_run_count_as_one() -> None:
    summary = only([row(seed, clusters={"run": "a"}) for seed in range(10)])
    assert summary.rate is not None
    assert (summary.rate.trials, summary.rate.effective, summary.clusters) == (10, 1.0, 1)


def test_the_conditional_cell_averages_its_probabilities() -> None:
    changes: dict[str, Any] = {"estimator": "conditional", "detected": None, "check": "replay.digest"}
    rows = [row(seed, **changes, probability=0.1 * v, units=(4,), v=(v,)) for seed, v in enumerate((1.0, 1.0, 0.0))]
    summary = only(rows)
    assert summary.rate is not None
    assert summary.rate.estimate == pytest.approx(0.2 / 3)
    assert summary.rate.detections == pytest.approx(0.2)


def test_errors_are_counted_and_leave_the_rate() -> None:
    failed = {"detected": None, "check": None, "error": "crashed"}
    rows = [row(seed) for seed in range(4)] + [row(9, **failed)]
    summary = only(rows)
    assert summary.rate == binomial_rate(1, 4)
    assert summary.errors == 1
    assert only([row(9, **failed)]).rate is None
    assert " 0/0 " in plain_table([only([row(9, **failed)])])
    assert "errors" in plain_table([summary])
    assert "errors" not in plain_table(summarise(rows[:4]))


def test_honest_runs_are_a_cell_whose_theory_is_no_reject() -> None:
    summary = only([row(seed, **HONEST) for seed in range(20)])
    assert summary.theory == 0.0
    assert summary.rate is not None
    assert summary.rate.low == 0.0 < summary.rate.high


def test_no_law_is_claimed_for_a_weakened_protocol() -> None:
    assert only([row(1, protocol="unchecked")]).theory is None


def test_attacks_that_touch_other_units_than_their_placement_have_no_law() -> None:
    assert only([row(1, attack="reorder")]).theory is None
    assert only([row(1, attack="insertion:hidden")]).theory is not None


def test_cells_do_not_mix() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"p": 0.2},
        {"amount": 4},
        {"tau": 0.1},
        {"protocol": "unchecked"},
        {"updates": 128},
        {"placement": "spread:4"},
        {"placement": "spread:16"},
    ]
    summaries = summarise([row(1, **each) for each in changes])
    assert len(summaries) == len(changes)
    spreads = [each.cell.placement for each in summaries if each.cell.placement.startswith("spread")]
    assert spreads == ["spread:4", "spread:16"]


def test_the_table_shows_k_n_rate_interval_theory_check_and_seconds() -> None:
    rows = [row(seed) for seed in range(10)] + [row(seed + 50, **HONEST) for seed in range(20)]
    lines = plain_table(summarise(rows), "Detection").splitlines()
    assert lines[0].strip() == "Detection"
    (attack,) = [line.split() for line in lines if "substitution" in line]
    assert attack == ["substitution", "witness", "burst", "0.1", "1,024", "raw", "1/10", "10", *attack[8:]]
    assert attack[8:] == ["0.100", "0.049-0.310", "0.100", "replay.digest", "20.0"]
    (honest,) = [line.split() for line in lines if "none" in line]
    assert honest[6:] == ["0/20", "20", "0.000", "0.000-0.104", "0.000", "-", "40.0"]
    assert all(line.isprintable() and "\x1b" not in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "header", "cells"),
    [
        ({"sketch": "gaussian"}, "sketch", ("rht", "gaussian")),
        ({"model": "gpt_3m"}, "model", ("gpt_0.1m", "gpt_3m")),
        ({"L": 4}, "L", ("1", "4")),
        ({"updates": 12_800}, "updates", ("64", "12,800")),
        ({"tau": 1e-4}, "tau", ("exact", "0.0001")),
    ],
)
def test_what_cells_differ_in_is_a_column_and_else_is_none(
    changes: dict[str, Any], header: str, cells: tuple[str, str]
) -> None:
    alike = plain_table(summarise([row(seed) for seed in range(4)]))
    assert header not in alike.split()
    text = plain_table(summarise([row(0), row(1, **changes)]))
    assert header in text.split()
    shown = [line.split()[2] for line in text.splitlines() if "substitution" in line]
    assert sorted(shown) == sorted(cells)


def test_long_names_and_brackets_are_shown_whole() -> None:
    name = "a_very_long_name_of_an_attack_" * 8 + "[bold]"
    text = plain_table(summarise([row(0, attack=name)]))
    assert name in text
    assert "…" not in text
