"""The numbers of a certificate against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from witbench.protocol.numbers import Tally, detection, drift, expected_checks, failing_bound, longest_stretch
from witbench.protocol.switches import WITNESS, Switches
from witbench.protocol.tau import Tau


@pytest.mark.parametrize(
    ("checks", "attempts", "bound"),
    [
        (0, 1, 1.0),  # nothing was checked: anything may fail
        (1, 1, 0.99),  # 1 - 0.01
        (2, 1, 0.9),  # 1 - sqrt(0.01)
        (2, 4, 0.95),  # 1 - sqrt(0.0025)
        (458, 1, 0.010004592),  # the smallest n for about 1%: ln(0.01)/458 = -0.0100550
        (299, 5, 0.0205701),  # 1 - 0.002^(1/299) = 1 - exp(-6.214608/299)
    ],
)
def test_failing_bound(checks: int, attempts: int, bound: float) -> None:
    assert failing_bound(checks, attempts) == pytest.approx(bound, rel=1e-4)


@pytest.mark.parametrize(
    ("p", "coins", "caught"),
    [
        (0.1, 1, 0.1),
        (0.1, 2, 0.19),
        (0.5, 10, 1023 / 1024),
        (0.01, 100, 0.63396766),
        (1.0, 1, 1.0),
        (1.0, 0, 0.0),
        (0.0, 1000, 0.0),
        (1e-18, 1, 1e-18),
    ],
)
def test_detection(p: float, coins: int, caught: float) -> None:
    assert detection(p, coins) == pytest.approx(caught, rel=1e-7)


def test_expected_checks_count_the_last_unit_as_certain() -> None:
    assert expected_checks(0.1, 11) == pytest.approx(2.0)
    assert expected_checks(0.1, 1) == 1.0
    assert expected_checks(0.1, 0) == 0.0


@pytest.mark.parametrize(
    ("checked", "longest"), [([], 0), ([0], 1), ([1], 0), ([0, 0, 1, 0, 0, 0, 2, 0], 3), ([1, 0, 0], 2)]
)
def test_longest_stretch(checked: list[int], longest: int) -> None:
    assert longest_stretch(checked) == longest


def test_drift() -> None:
    assert drift(100, Tau({"g": 0.5, "h": 0.25})) == {"g": 50.0, "h": 25.0}
    assert drift(100, Tau({"g": 0.5}), amplification=3.0) == {"g": 150.0}
    assert drift(100, Tau({"g": 0.5}, {"g": 2.0}, 10)) == {"g": 65.0}
    assert drift(4, Tau({"g": 0.5}, {"g": 2.0}, 10)) == {"g": 8.0}
    assert drift(100, Tau()) == {}


def _tally(*units: tuple[int, str]) -> Tally:
    tally = Tally()
    for number, (tokens, check) in enumerate(units, 1):
        tally.add(tokens, check != "free")
        if check == "passed":
            tally.passed(number)
    return tally


CALIBRATED = Switches.from_names(WITNESS)


def test_numbers_of_a_run() -> None:
    tally = _tally((10, "free"), (10, "passed"), (10, "free"), (7, "free"), (7, "passed"))
    numbers = tally.numbers(5, 0.25, 2, CALIBRATED, Tau({"g": 2.0}))
    assert (numbers.units, numbers.tokens, numbers.drawn, numbers.passed, numbers.coins) == (5, 44, 2, 2, 1)
    assert numbers.longest_unchecked == 2
    assert numbers.expected == 0.25 * 4 + 1
    assert numbers.failing_at_most == pytest.approx(1 - 0.005)
    assert numbers.detection == {1: pytest.approx(0.25)}
    assert numbers.detection_last == 1.0
    assert numbers.drift == {"g": 10.0}


def test_detection_is_the_worst_case_of_the_switches() -> None:
    tally = _tally(*[(1, "free")] * 9, (1, "passed"))
    exact = Switches.from_names({**WITNESS, "tolerance": "exact"})
    assert tally.numbers(10, 0.1, 1, CALIBRATED, Tau({"g": 1.0})).detection[10] == pytest.approx(1 - 0.9**5)
    assert tally.numbers(10, 0.1, 1, exact, Tau()).detection[10] == pytest.approx(1 - 0.9**10)
    assert tally.numbers(10, 0.1, 1, exact, Tau()).drift == {}


def test_the_last_unit_is_no_coin() -> None:
    numbers = _tally((1, "passed")).numbers(1, 0.5, 1, CALIBRATED, Tau({"g": 1.0}))
    assert (numbers.passed, numbers.coins, numbers.failing_at_most) == (1, 0, 1.0)


def test_dropped_units_count_for_nothing() -> None:
    tally = _tally((10, "passed"), (20, "passed"), (30, "passed"), (30, "free"))
    tally.rewind(1)
    assert (tally.units, tally.tokens, tally.rewinds) == (1, 10, 1)
    tally.add(5, False)
    tally.add(5, True)
    tally.passed(3)
    numbers = tally.numbers(3, 0.5, 1, CALIBRATED, Tau({"g": 1.0}))
    assert (numbers.units, numbers.tokens, numbers.passed, numbers.coins, numbers.longest_unchecked) == (3, 20, 2, 1, 1)
    tally.rewind(0)
    assert (tally.units, tally.tokens, tally.rewinds) == (0, 0, 2)


def test_tokens_agree_with_a_plain_sum_under_many_rewinds() -> None:
    import random

    draw, tally, plain = random.Random(1), Tally(), []
    for _ in range(2000):
        if plain and draw.random() < 0.1:
            boundary = draw.randint(0, len(plain))
            tally.rewind(boundary)
            del plain[boundary:]
        else:
            plain.append(draw.choice([8, 8, 8, 9]))
            tally.add(plain[-1], False)
        assert tally.tokens == sum(plain)
    assert math.isfinite(tally.tokens)
    assert tally.units == len(plain)
