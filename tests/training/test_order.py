"""The bound order: every window once an epoch, from the seed alone, at any place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from witbench.training.order import batch_windows

SEED = bytes(range(32))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.binary(min_size=32, max_size=32), st.integers(0, 3))
def test_each_epoch_visits_every_window_once(windows: int, seed: bytes, epoch: int) -> None:
    visited = batch_windows(windows, seed, epoch * windows, windows)
    assert sorted(visited) == list(range(windows))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**7), st.integers(0, 10**9), st.integers(1, 8))
def test_any_place_is_open_without_the_ones_before(windows: int, first: int, count: int) -> None:
    together = batch_windows(windows, SEED, first, count)
    assert together == [batch_windows(windows, SEED, first + i, 1)[0] for i in range(count)]
    assert all(0 <= window < windows for window in together)


def test_seeds_and_epochs_give_other_orders() -> None:
    orders = [batch_windows(1000, SEED, 0, 1000), batch_windows(1000, SEED, 1000, 1000)]
    orders.append(batch_windows(1000, bytes(32), 0, 1000))
    for i, a in enumerate(orders):
        for b in orders[:i]:
            # Two independent permutations agree in one place on average (Poisson): ten has probability 1e-7.
            assert sum(x == y for x, y in zip(a, b, strict=True)) < 10


@pytest.mark.parametrize("windows", [2, 7, 1000])
def test_first_windows_are_spread_evenly(windows: int) -> None:
    """Over many seeds, the first window is each window equally often (chi-square within five sigma)."""
    seeds = 4000
    counts = [0] * windows
    for number in range(seeds):
        counts[batch_windows(windows, number.to_bytes(32, "big"), 0, 1)[0]] += 1
    expected = seeds / windows
    chi_square = sum((count - expected) ** 2 / expected for count in counts)
    assert abs(chi_square - (windows - 1)) < 5 * (2 * (windows - 1)) ** 0.5


def test_the_order_is_pinned() -> None:
    """The order is part of the protocol: it must not change under a user's feet."""
    assert batch_windows(1000, SEED, 0, 8) == PINNED
    assert batch_windows(1, SEED, 5, 2) == [0, 0]


PINNED = [702, 382, 522, 768, 572, 83, 928, 511]
