"""Placements: every draw holds what its name says, and an amount that does not fit is refused with what would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from witbench.attacks.placement import Burst, Placement, Spread, Tail, Uniform
from witbench.errors import ConfigError
from witbench.evaluation.law import Plan, fitting


@st.composite
def drawn(draw: st.DrawFn) -> tuple[Placement, int, Plan, int]:
    """A placement, an amount that fits it, a run and a seed."""
    unit = draw(st.integers(1, 4))
    plan = Plan(draw(st.integers(2 * unit, 60)), unit, draw(st.integers(1, 40)))
    placement: Placement = draw(
        st.one_of(
            st.builds(Uniform),
            st.builds(Burst, update=st.none() | st.integers(0, plan.updates - 1)),
            st.builds(Tail, fraction=st.sampled_from([0.01, 0.1])),
            st.builds(Spread, units=st.integers(1, plan.units - 1)),
        )
    )
    allowed = fitting(placement.label, plan) if not _too_long(placement, plan) else range(0)
    amount = draw(st.sampled_from([allowed[0], allowed[-1]]) | st.integers(allowed[0], allowed[-1])) if allowed else 1
    return placement, amount, plan, draw(st.integers(0, 2**32))


def _too_long(placement: Placement, plan: Plan) -> bool:
    return isinstance(placement, Tail) and max(1, round(placement.fraction * plan.updates)) > plan.unforced


@given(drawn())
def test_a_draw_holds_the_amount_inside_the_run(case: tuple[Placement, int, Plan, int]) -> None:
    placement, amount, plan, seed = case
    if _too_long(placement, plan):
        return
    draws = [
        placement.draw(amount, plan.tokens, plan.updates, plan.unit, np.random.default_rng(seed)) for _ in range(2)
    ]
    assert draws[0] == draws[1]
    placed = draws[0]
    assert list(placed) == sorted(placed)
    assert sum(map(len, placed.values())) == amount
    for update, positions in placed.items():
        assert 0 <= update < plan.updates
        assert type(update) is int
        assert positions
        assert list(positions) == sorted(set(positions))
        assert positions[0] >= 0 and positions[-1] < plan.tokens
        assert all(type(position) is int for position in positions)
    units = plan.touched(placed)
    if isinstance(placement, Burst):
        assert len(placed) == 1
        assert placement.update in (None, *placed)
    if isinstance(placement, Spread):
        assert len(units) == placement.units
        counts = dict.fromkeys(units, 0)
        for update, positions in placed.items():
            counts[plan.unit_of(update)] += len(positions)
        assert max(counts.values()) - min(counts.values()) <= 1
    if isinstance(placement, Tail):
        assert set(placed) <= set(plan.tail(placement.fraction))
    if not isinstance(placement, Uniform) and not (isinstance(placement, Burst) and placement.update is not None):
        assert plan.units not in units


def test_uniform_reaches_every_position_equally() -> None:
    rng = np.random.default_rng(0)
    counts = np.zeros((6, 5))
    for _ in range(3000):
        for update, positions in Uniform().draw(4, 5, 6, 2, rng).items():
            counts[update, list(positions)] += 1
    expected = 3000 * 4 / 30
    assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected))


@pytest.mark.parametrize("placement", [Burst(), Spread(units=2), Tail(fraction=0.5)], ids=lambda each: each.label)
def test_the_others_reach_every_update_before_the_last_unit(placement: Placement) -> None:
    rng = np.random.default_rng(0)
    reached = {update for _ in range(400) for update in placement.draw(2, 5, 9, 2, rng)}
    assert reached == (set(range(4, 8)) if isinstance(placement, Tail) else set(range(8)))


def test_spread_shares_evenly() -> None:
    rng = np.random.default_rng(0)
    firsts = set()
    for _ in range(50):
        counts = [len(positions) for positions in Spread(units=4).draw(7, 8, 12, 1, rng).values()]
        assert sorted(counts) == [1, 2, 2, 2]
        firsts.add(counts.index(1))
    assert firsts == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("updates", "unit", "window"), [(64, 1, [62]), (1000, 1, range(989, 999)), (512, 4, range(503, 508))]
)
def test_the_tail_is_one_percent_before_the_last_unit(updates: int, unit: int, window: range) -> None:
    amount = 8 * len(window)
    assert list(Tail().draw(amount, 8, updates, unit, np.random.default_rng(0))) == list(window)


@pytest.mark.parametrize(
    ("placement", "amount", "updates", "unit", "message"),
    [
        (Uniform(), 65, 8, 1, r"amount=65 does not fit placement=uniform: between 1 and 64 \(8 update"),
        (Uniform(), 0, 8, 1, "between 1 and 64"),
        (Burst(), 9, 8, 1, r"placement=burst: between 1 and 8"),
        (Burst(), 1, 8, 8, "single unit"),
        (Burst(update=8), 1, 8, 1, "update 8"),
        (Tail(), 9, 8, 1, "between 1 and 8"),
        (Tail(), 1, 8, 8, "does not fit before the last unit"),
        (Spread(units=8), 8, 8, 1, "7 units before its last"),
        (Spread(units=4), 3, 8, 1, "amount=3 cannot touch 4 units"),
        (Spread(units=2), 17, 8, 1, "between 1 and 8"),
    ],
)
def test_what_does_not_fit(placement: Placement, amount: int, updates: int, unit: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        placement.draw(amount, 8, updates, unit, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Spread(units=0), "placement.units=0"),
        (lambda: Tail(fraction=0.0), "placement.fraction=0.0"),
        (lambda: Burst(update=-1), "placement.update=-1"),
    ],
)
def test_knobs_are_checked(make: Callable[[], Placement], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_labels_name_the_law() -> None:
    labels = [each.label for each in (Uniform(), Burst(), Burst(update=3), Tail(), Tail(fraction=0.1), Spread(units=8))]
    assert labels == ["uniform", "burst", "burst:3", "tail", "tail:0.1", "spread:8"]
    for label in labels:
        assert len(fitting(label, Plan(64, 1, 8))) > 0


def test_without_torch() -> None:
    code = "import sys, witbench.attacks.placement, witbench.evaluation.table; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
