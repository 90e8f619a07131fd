"""The law of detection against enumeration, Monte Carlo, and the protocol's own coins."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from witbench.attacks.placement import Burst, Placement, Spread, Tail, Uniform
from witbench.errors import ConfigError
from witbench.evaluation.law import Plan, conditional, fatal_coins, fitting, monte_carlo, theory, theory_spread
from witbench.evaluation.simulation import simulate
from witbench.protocol.beacon import Beacon
from witbench.protocol.switches import BeaconCoin, coin_threshold

P = 0.1


def enumerated(plan: Plan, updates: range, amount: int, p: float, v: float) -> float:
    """Mean of the law over every subset of positions."""
    positions = range(updates.start * plan.tokens, updates.stop * plan.tokens)
    rates = []
    for subset in itertools.combinations(positions, amount):
        escape = 1.0
        for unit in {position // plan.tokens // plan.unit + 1 for position in subset}:
            escape *= 1 - (1.0 if unit == plan.units else p) * v
        rates.append(1 - escape)
    return math.fsum(rates) / len(rates)


@pytest.mark.parametrize("plan", [Plan(4, 1, 3), Plan(5, 2, 2), Plan(3, 3, 3), Plan(7, 3, 2)])
@pytest.mark.parametrize("amount", [1, 2, 4])
@pytest.mark.parametrize("v", [1.0, 0.6])
def test_uniform_is_the_mean_over_all_subsets(plan: Plan, amount: int, v: float) -> None:
    expected = enumerated(plan, range(plan.updates), amount, P, v)
    assert theory("uniform", amount, plan, P, v) == pytest.approx(expected, abs=1e-12)


def test_tail_is_the_mean_over_all_subsets_of_its_window() -> None:
    plan = Plan(9, 2, 2)  # units of updates 0-1, 2-3, 4-5, 6-7 and the last, 8
    assert plan.tail(0.34) == range(5, 8)
    expected = enumerated(plan, range(5, 8), 3, P, 1.0)
    assert theory("tail:0.34", 3, plan, P) == pytest.approx(expected, abs=1e-12)


def test_closed_forms() -> None:
    plan = Plan(64, 1, 1024)
    assert theory("burst", 1000, plan, P) == pytest.approx(P)
    assert theory("burst:63", 1000, plan, P) == 1.0
    assert theory("burst:62", 1000, plan, P) == pytest.approx(P)
    assert theory("tail", 5, plan, P) == pytest.approx(P)
    assert theory("spread:8", 100, plan, P) == pytest.approx(1 - 0.9**8)
    assert theory("uniform", 1, plan, P) == pytest.approx((63 * P + 1) / 64)
    assert theory("uniform", 64 * 1024, plan, P) == pytest.approx(1.0)


def test_uniform_is_not_the_law_of_as_many_units_as_tokens() -> None:
    plan = Plan(64, 1, 1024)
    naive = fatal_coins(P, 64)
    assert abs(theory("uniform", 64, plan, P) - naive) > 1e-3


def test_fatal_coins_keep_precision_and_the_last_unit() -> None:
    assert fatal_coins(1e-12, 3) == pytest.approx(3e-12, rel=1e-9, abs=0)
    assert fatal_coins(P, 0) == 0.0
    assert fatal_coins(1.0, 0) == 0.0
    assert fatal_coins(1.0, 2) == 1.0
    assert fatal_coins(0.0, 1, last=True) == 1.0


def test_conditional_averages_all_coins() -> None:
    plan = Plan(10, 2, 1)  # five units
    assert conditional(plan, P, (1, 3), (1.0, 0.5)) == pytest.approx(1 - 0.9 * 0.95)
    assert conditional(plan, P, (5,), (0.5,)) == pytest.approx(0.5)
    assert conditional(plan, 0.0, (5, 1), (1.0, 1.0)) == 1.0
    assert conditional(plan, P, (), ()) == 0.0


@pytest.mark.parametrize(
    ("units", "v", "message"),
    [((1,), (), "one v for each"), ((1, 1), (1, 1), "twice"), ((6,), (1,), "unit 6"), ((1,), (1.5,), "v=1.5")],
)
def test_conditional_refuses(units: tuple[int, ...], v: tuple[float, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        conditional(Plan(10, 2, 1), P, units, v)


@pytest.mark.parametrize("label", ["nowhere", "spread", "spread:0", "spread:x", "uniform:2", "burst:1.5", "tail:x"])
def test_an_unknown_placement_has_no_closed_form(label: str) -> None:
    with pytest.raises(ConfigError, match=r"monte_carlo"):
        theory(label, 1, Plan(64, 1, 8), P)


@pytest.mark.parametrize(("label", "low", "high"), [("spread:3", 3, 24), ("burst", 1, 8), ("tail", 1, 8)])
def test_amounts_that_fit(label: str, low: int, high: int) -> None:
    plan = Plan(64, 1, 8)
    assert fitting(label, plan) == range(low, high + 1)
    with pytest.raises(ConfigError, match="does not fit"):
        theory(label, high + 1, plan, P)


@given(
    updates=st.integers(2, 40),
    unit=st.integers(1, 5),
    amount=st.integers(1, 60),
    p=st.floats(0, 1),
    v=st.floats(0, 1),
)
def test_uniform_grows_with_the_amount(updates: int, unit: int, amount: int, p: float, v: float) -> None:
    plan = Plan(updates, unit, 31)
    fewer, more = (theory("uniform", each, plan, p, v) for each in (amount, amount + 1))
    assert -1e-9 <= fewer <= more + 1e-9
    assert more <= 1 + 1e-9


PLACEMENTS: list[tuple[Placement, int]] = [
    (Uniform(), 1),
    (Uniform(), 8),
    (Uniform(), 40),
    (Burst(), 40),
    (Tail(fraction=0.1), 5),
    (Spread(units=5), 40),
]


@pytest.mark.parametrize(("placement", "amount"), PLACEMENTS, ids=lambda each: getattr(each, "label", str(each)))
@pytest.mark.parametrize("plan", [Plan(64, 1, 64), Plan(50, 3, 64)], ids=["L=1", "L=3"])
def test_monte_carlo_and_closed_form_agree(placement: Placement, amount: int, plan: Plan) -> None:
    mean, error = monte_carlo(placement.draw, amount, plan, P, draws=1500)
    assert mean == pytest.approx(theory(placement.label, amount, plan, P), abs=4 * error + 1e-12)
    assert monte_carlo(placement.draw, amount, plan, P, draws=1500) == (mean, error)


@pytest.mark.parametrize(("placement", "amount"), PLACEMENTS, ids=lambda each: getattr(each, "label", str(each)))
@pytest.mark.parametrize("p", [0.01, 0.1])
def test_real_coins_follow_the_law(placement: Placement, amount: int, p: float) -> None:
    plan, seeds = Plan(64, 1, 64), 2000
    threshold = coin_threshold(p)
    caught = simulate(placement.draw, amount, plan, threshold, coin=BeaconCoin(), beacon=Beacon, seeds=seeds)
    rate = theory(placement.label, amount, plan, p)
    assert abs(caught - seeds * rate) <= 4 * math.sqrt(seeds * rate * (1 - rate))


def test_the_simulation_is_a_function_of_its_seeds() -> None:
    plan, threshold = Plan(16, 2, 8), coin_threshold(0.3)

    def run(seeds: int, first: int = 0) -> int:
        draw = Uniform().draw
        return simulate(draw, 2, plan, threshold, coin=BeaconCoin(), beacon=Beacon, seeds=seeds, first_seed=first)

    assert run(60) == run(25) + run(35, first=25)


def test_a_plan_counts_units_and_their_room() -> None:
    plan = Plan(7, 3, 2)
    assert plan.units == 3
    assert plan.unforced == 6
    assert [plan.unit_of(update) for update in range(7)] == [1, 1, 1, 2, 2, 2, 3]
    assert plan.capacities(range(7)) == {1: 6, 2: 6, 3: 2}
    assert plan.touched([6, 0, 1]) == (1, 3)
    with pytest.raises(ConfigError, match="update 7"):
        plan.unit_of(7)
    with pytest.raises(ConfigError, match="updates=0"):
        Plan(0, 1, 1)
    assert np.isclose(plan.coin(3, 0.2), 1.0)


def test_the_spread_over_placements_is_that_of_all_of_them() -> None:
    plan, p, amount = Plan(4, 1, 2), 0.3, 2
    rates = []
    for flat in itertools.combinations(range(8), amount):
        units = plan.touched(position // 2 for position in flat)
        rates.append(conditional(plan, p, units, [1.0] * len(units)))
    assert theory_spread("uniform", amount, plan, p) == pytest.approx(np.std(rates))
    assert theory_spread("burst", amount, plan, p) == pytest.approx(0, abs=1e-7)
