"""Measurements are spread over all units of a phase and never repeat themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from witbench.calibration.plan import MOST_RUNS, runs_needed, share, shares, units_by_phase, ways_of
from witbench.config import RunConfig
from witbench.protocol.tau import AFTER, WARMUP, warmup_units


@pytest.mark.parametrize(
    ("updates", "unit", "units"),
    [(64, 1, 7), (64, 8, 1), (8, 1, 1), (100, 3, 4), (1, 1, 1), (10, 1, 1), (11, 1, 2), (1000, 7, 15)],
)
def test_warm_up_is_a_tenth_of_the_updates_rounded_up(updates: int, unit: int, units: int) -> None:
    assert warmup_units(updates, unit) == units


def test_every_unit_is_in_one_phase(config: RunConfig) -> None:
    for unit in (1, 3, 8):
        phases = units_by_phase(replace(config, protocol=replace(config.protocol, unit=unit)))
        assert sorted(phases[WARMUP] + phases[AFTER]) == list(range(1, -(-8 // unit) + 1))


def test_ways_begin_with_one_of_each_variation() -> None:
    assert ways_of([1, 3, 2]) == [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1), (1, 2)]
    assert ways_of([]) == []


def test_runs_take_turns_over_all_units_and_ways(config: RunConfig) -> None:
    ways = ways_of([1, 2, 8])
    parts = shares(config, 300, ways, runs=8)
    assert all(len(part[1]) == 11 for part in parts), "the one warm-up unit has eleven ways"
    for part in parts:
        assert all(len(set(given)) == len(given) for given in part.values())
        counts = [len(part[unit]) for unit in range(2, 9)]
        assert sum(counts) == 38
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("members", "count", "runs"), [(57, 38, 8), (1000, 4, 16), (8, 4, 16), (7, 43, 7), (57, 2, 40)]
)
def test_few_measurements_a_run_still_meet_everything(members: int, count: int, runs: int) -> None:
    units, ways = range(1, members + 1), ways_of([1, 3, 8, 1])
    parts = [share(units, count, ways, run, runs) for run in range(runs)]
    assert all(sum(map(len, part.values())) == count for part in parts)
    met = [unit for part in parts for unit in part]
    if count * runs >= members:
        assert set(met) == set(units)
    else:
        assert len(set(met)) == len(met), "no unit number twice before all were met"
    assert {way for part in parts for given in part.values() for way in given} == set(ways)


def test_runs_follow_from_what_a_phase_can_give(config: RunConfig) -> None:
    assert runs_needed(config, 300, 13) == 24  # the warm-up's one unit has 13 ways: 300 / 13
    assert runs_needed(config, 10, 13) == 8
    assert runs_needed(config, 10**6, 13) == MOST_RUNS
