"""The reverse hash chain, what is derived from it, and the counter."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from witbench.errors import ConfigError, ProtocolError
from witbench.protocol.beacon import Beacon, CounterFile, RevealCounter, check_reveal, derive, reveals_needed

SEED = bytes(range(32))


@pytest.mark.parametrize("length", [1, 2, 3, 10, 99, 100, 101])
def test_every_reveal_hashes_to_the_one_before(length: int) -> None:
    beacon = Beacon(SEED, length)
    previous = beacon.anchor
    for number in range(1, length + 1):
        revealed = beacon.reveal(number)
        assert hashlib.sha256(revealed).digest() == previous
        assert check_reveal(previous, revealed)
        assert check_reveal(beacon.anchor, revealed, number)
        previous = revealed


def test_the_chain_ends() -> None:
    beacon = Beacon(SEED, 5)
    for number in (0, 6):
        with pytest.raises(ProtocolError) as caught:
            beacon.reveal(number)
        assert caught.value.check == "beacon.exhausted"


def test_wrong_reveals() -> None:
    beacon = Beacon(SEED, 5)
    assert not check_reveal(beacon.anchor, beacon.reveal(2))
    assert not check_reveal(beacon.reveal(1), beacon.reveal(1))
    assert not check_reveal(beacon.anchor, beacon.anchor, 0)
    assert Beacon(SEED[::-1], 5).anchor != beacon.anchor


@pytest.mark.parametrize(("seed", "length"), [(b"short", 5), (SEED, 0)])
def test_weak_beacons_are_refused(seed: bytes, length: int) -> None:
    with pytest.raises(ConfigError):
        Beacon(seed, length)


def test_derive_is_the_documented_hash() -> None:
    expected = hashlib.sha256(b"coin\n" + b"r" * 32 + (258).to_bytes(8, "big") + b"h" * 32).digest()
    assert derive("coin", b"r" * 32, 258, b"h" * 32) == expected
    others = {derive("key", b"r" * 32, 258, b"h" * 32), derive("coin", b"r" * 32, 259, b"h" * 32)}
    assert expected not in others


def test_reveals_needed() -> None:
    assert reveals_needed(10, 3) == 4 * 10 + 3 + 64


def test_counters_count(tmp_path: Path) -> None:
    for counter in (RevealCounter(), CounterFile(tmp_path / "counter")):
        assert [counter.next(), counter.next(), counter.value] == [1, 2, 2]
    assert CounterFile(tmp_path / "counter").next() == 3


def test_a_number_is_durable_before_it_is_handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "counter"
    CounterFile(path).next()
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(handle), real(handle))[1])
    assert CounterFile(path).next() == 2
    assert len(synced) == 2, "the file, and the folder that names it"
    assert path.read_text() == "2\n"


def test_a_number_that_could_not_be_written_is_not_handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = CounterFile(tmp_path / "counter")
    counter.next()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        counter.next()
    assert counter.value == 1
    assert CounterFile(tmp_path / "counter").value == 1


def test_a_damaged_counter_stops_the_run(tmp_path: Path) -> None:
    (tmp_path / "counter").write_text("seven")
    with pytest.raises(ConfigError, match="not a reveal counter"):
        CounterFile(tmp_path / "counter")
