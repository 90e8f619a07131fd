"""Reveals in their order, and verdicts at their lag."""

from __future__ import annotations

import pytest

from witbench.errors import TapeError
from witbench.protocol.beacon import Beacon
from witbench.protocol.schedule import Challenges, Reveals

BEACON = Beacon(b"s" * 32, 10)


def _reveals(*numbers: int, may_skip: bool = False) -> Reveals:
    reveals = Reveals(BEACON.anchor, BEACON.length)
    for number in numbers:
        reveals.may_skip = may_skip
        reveals.take(number, BEACON.reveal(number))
    return reveals


def test_one_after_the_other() -> None:
    assert _reveals(*range(1, 11)).number == 10


def test_skipping_only_after_a_rewind_and_only_once() -> None:
    reveals = _reveals(1, 4, may_skip=True)
    assert reveals.number == 4
    with pytest.raises(TapeError, match="reveal 6 where reveal 5 is due"):
        reveals.take(6, BEACON.reveal(6))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_never_again(number: int) -> None:
    with pytest.raises(TapeError, match="used before"):
        _reveals(1, 2, 3).take(number, BEACON.reveal(number))


def test_a_skip_must_hash_back_too() -> None:
    reveals = _reveals(1)
    reveals.may_skip = True
    for number, value in ((3, 4), (4, 3), (2, 3)):
        with pytest.raises(TapeError, match="does not hash"):
            reveals.take(number, BEACON.reveal(value))


def test_not_beyond_the_chain_that_genesis_names() -> None:
    reveals = Reveals(BEACON.anchor, 2)
    for number in (1, 2):
        reveals.take(number, BEACON.reveal(number))
    with pytest.raises(TapeError, match="reveal 3 of a chain of 2"):
        reveals.take(3, BEACON.reveal(3))


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_verdict_has_one_place(lag: int) -> None:
    for delay in range(5):
        challenges = Challenges(lag, [1])

        def go(challenges: Challenges = challenges, delay: int = delay) -> None:
            for unit in range(2, 7):
                if unit == 2 + delay:
                    challenges.settle(1)
                challenges.begin(unit)

        if delay == lag:
            go()
            continue
        with pytest.raises(TapeError, match="before its place" if delay < lag else "overdue"):
            go()


def test_verdicts_in_order_and_only_where_one_is_due() -> None:
    with pytest.raises(TapeError, match="that of unit 1 is due"):
        Challenges(1, [1, 2]).settle(2)
    with pytest.raises(TapeError, match="where none is due"):
        Challenges(1).settle(2)


def test_ends_close_everything_and_need_no_lag() -> None:
    challenges = Challenges(5, [1, 2])
    challenges.settle(1)
    with pytest.raises(TapeError, match="unit 2 is still open"):
        challenges.close()
    challenges.settle(2)
    challenges.close()
    challenges.go_on()


def test_no_verdict_within_a_unit() -> None:
    challenges = Challenges(0, [1])
    challenges.settle(1)
    with pytest.raises(TapeError, match="out of place"):
        challenges.go_on()
