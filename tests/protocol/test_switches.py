"""Switches: one class a choice, found by name; what each of them decides."""

from __future__ import annotations

import math

import pytest

from witbench.errors import ConfigError
from witbench.protocol.beacon import derive
from witbench.protocol.switches import (
    WITNESS,
    Calibrated,
    Exact,
    Switches,
    choices,
    coin_threshold,
    reference_choices,
    threshold_from_bytes,
    threshold_to_bytes,
)

REVEAL, ROOT = b"r" * 32, b"h" * 32


def _switches(**changes: str) -> Switches:
    return Switches.from_names({**WITNESS, **changes})


def test_names_round_trip() -> None:
    assert _switches().names() == WITNESS
    assert _switches(opening="both", tolerance="exact").names() == {**WITNESS, "opening": "both", "tolerance": "exact"}


def test_what_counts_as_reference() -> None:
    assert reference_choices("tolerance") == ["calibrated", "exact"]
    assert choices("tolerance") == ["calibrated", "exact", "fixed"]
    assert reference_choices("opening") == ["both", "start"]


def test_unknown_choice_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"switches.tolerance=exakt: unknown; choose from .*did you mean exact\?"):
        _switches(tolerance="exakt")


@pytest.mark.parametrize("names", [{**WITNESS, "extra": "x"}, {k: v for k, v in WITNESS.items() if k != "coin"}])
def test_all_ten_switches_are_named(names: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="missing or unknown"):
        Switches.from_names(names)


def test_key_and_coin_are_bound_to_reveal_and_head() -> None:
    switches = _switches()
    assert switches.key.key(REVEAL, 9, ROOT) == derive("key", REVEAL, 9, ROOT)
    first = int.from_bytes(derive("coin", REVEAL, 9, ROOT)[:8], "big")
    assert switches.coin.challenged(REVEAL, 9, ROOT, first + 1)
    assert not switches.coin.challenged(REVEAL, 9, ROOT, first)


@pytest.mark.parametrize(("p", "threshold"), [(0.0, 0), (1.0, 2**64), (0.5, 2**63), (0.01, 184467440737095520)])
def test_thresholds(p: float, threshold: int) -> None:
    assert coin_threshold(p) == pytest.approx(threshold, rel=1e-15)
    data = threshold_to_bytes(coin_threshold(p))
    assert len(data) == 9
    assert threshold_from_bytes(data) == coin_threshold(p)


@pytest.mark.parametrize("p", [-0.01, 1.01, math.nan])
def test_p_outside_0_and_1(p: float) -> None:
    with pytest.raises(ConfigError, match=r"must be in \[0, 1\]"):
        coin_threshold(p)


@pytest.mark.parametrize("data", [b"\x01" * 9, bytes(8), bytes(10)])
def test_bad_threshold_bytes(data: bytes) -> None:
    with pytest.raises(ConfigError):
        threshold_from_bytes(data)


def test_p_0_and_1_at_the_extreme_draws() -> None:
    coin = _switches().coin
    assert all(coin.challenged(bytes([i]) * 32, 1, ROOT, 2**64) for i in range(50))
    assert not any(coin.challenged(bytes([i]) * 32, 1, ROOT, 0) for i in range(50))


def test_coin_frequency_is_p() -> None:
    coin, n, p = _switches().coin, 4000, 0.1
    fallen = sum(coin.challenged(i.to_bytes(32, "big"), i, ROOT, coin_threshold(p)) for i in range(n))
    assert abs(fallen - n * p) < 4 * math.sqrt(n * p * (1 - p))


def test_exact_judges_the_digest_alone() -> None:
    assert Exact().judge({"g": math.inf}, {}, True) == {"replay.digest": True}
    assert Exact().judge({"g": 0.0}, {}, False) == {"replay.digest": False}


@pytest.mark.parametrize(
    ("distances", "tau", "passed"),
    [
        ({"g": 0.5, "h": 0.0}, {"g": 0.5, "h": 1.0}, True),
        ({"g": 0.5000001, "h": 0.0}, {"g": 0.5, "h": 1.0}, False),
        ({"g": 0.0, "h": 1.5}, {"g": 0.5, "h": 1.0}, False),
        ({"g": math.nan, "h": 0.0}, {"g": 0.5, "h": 1.0}, False),
        ({"g": -0.1, "h": 0.0}, {"g": 0.5, "h": 1.0}, False),
        ({"g": 0.1}, {"g": 0.5, "h": 1.0}, False),
        ({"g": 0.1, "h": 0.1, "x": 0.1}, {"g": 0.5, "h": 1.0}, False),
        ({"g": 0.1, "h": 0.0}, {"g": math.nan, "h": 1.0}, False),
        ({}, {}, False),
    ],
)
def test_distances_fail_closed(distances: dict[str, float], tau: dict[str, float], passed: bool) -> None:
    assert Calibrated().judge(distances, tau, False) == {"replay.distance": passed}


def test_replay_checks_follow_the_switches() -> None:
    always = ("open.leaf", "open.root", "declare.order", "replay.exact_part")
    start = ("open.digest", "open.sketch")
    assert _switches().replay_checks(1) == (*always, "replay.distance")
    assert _switches().replay_checks(2) == (*start, *always, "replay.distance")
    both = _switches(tolerance="exact", opening="both").replay_checks(2)
    assert both == (*start, *always, "replay.digest", "replay.exact_distance")
    own = _switches(chain="parentless", order="free")
    for unit in (1, 2):
        unordered = [check for check in always if check != "declare.order"]
        assert own.replay_checks(unit) == ("open.digest", *unordered, "replay.distance")


@pytest.mark.parametrize(
    ("tolerance", "opening", "coins"),
    [
        ("calibrated", "start", [0, 1, 1, 2, 2, 3]),
        ("exact", "start", [0, 1, 2, 3, 4, 5]),
        ("calibrated", "both", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_fatal_coins_at_worst(tolerance: str, opening: str, coins: list[int]) -> None:
    switches = _switches(tolerance=tolerance, opening=opening)
    assert [switches.fatal_coins(touched) for touched in range(6)] == coins
