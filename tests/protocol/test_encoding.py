"""Canonical CBOR: what is written, and what a reader refuses."""

from __future__ import annotations

import math

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from witbench.errors import TapeError
from witbench.protocol.encoding import MAX_DEPTH, decode, encode, f64, f64_from

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**64), 2**64 - 1), st.binary(max_size=40), st.text(max_size=20)
)
VALUES = st.recursive(
    SCALARS, lambda of: st.lists(of, max_size=4) | st.dictionaries(st.text(max_size=8), of, max_size=4), max_leaves=12
)


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=5))
def test_round_trip_and_one_encoding(value: dict[str, object]) -> None:
    data = encode(value)
    assert decode(data) == value
    assert encode(dict(reversed(list(value.items())))) == data


def test_known_bytes() -> None:
    value = {"i": 3, "kind": "rewind", "b": b"\x01", "ok": True, "none": None, "list": [1, -1, 500]}
    assert (
        encode(value).hex()
        == "a6616241016169036" + "26f6bf5646b696e6466726577696e64646c69737483012019" + "01f4646e6f6e65f6"
    )


NOT_CANONICAL = {
    "integer not shortest": "a161611801",
    "length not shortest": "a1616158014 1".replace(" ", ""),
    "keys not sorted": "a261620161610 2".replace(" ", ""),
    "longer key first": "a2626161016161 02".replace(" ", ""),
    "duplicate key": "a2616101616102",
    "indefinite map": "bf616101ff",
    "indefinite bytes": "a161615f4101ff",
    "float": "a16161f93c00",
    "undefined": "a16161f7",
    "simple value": "a16161f0",
    "tagged date": "a16161c11a514b67b0",
    "tagged bignum": "a16161c249010000000000000000",
    "tagged pattern": "a16161d8234161",
    "unknown tag": "a16161d9010c41ff",
    "self-described": "d9d9f7a0",
    "number as key": "a10102",
    "bytes as key": "a1416101",
    "trailing byte": "a16161 0100".replace(" ", ""),
    "cut": "a16161",
    "empty": "",
    "a list": "8101",
    "bad UTF-8": "a161616 2c328".replace(" ", ""),
    "claims 2^63 bytes": "a161615b7fffffffffffffff",
    "claims 2^63 items": "a161619b7fffffffffffffff",
}


@pytest.mark.parametrize("data", NOT_CANONICAL.values(), ids=NOT_CANONICAL.keys())
def test_refuses(data: str) -> None:
    with pytest.raises(TapeError):
        decode(bytes.fromhex(data))


def test_refuses_depth_before_it_recurses() -> None:
    assert decode(b"\xa1\x61a" + b"\x81" * (MAX_DEPTH - 2) + b"\x01")
    for depth in (MAX_DEPTH, 60_000):
        with pytest.raises(TapeError):
            decode(b"\xa1\x61a" + b"\x81" * depth + b"\x01")


def test_refuses_size_before_it_reads() -> None:
    data = encode({"a": bytes(100)})
    assert decode(data, limit=len(data))
    with pytest.raises(TapeError, match="more than the"):
        decode(data, limit=len(data) - 1)


@given(st.binary(max_size=60))
def test_hostile_bytes_never_crash(data: bytes) -> None:
    try:
        value = decode(data)
    except TapeError:
        return
    assert cbor2.dumps(value, canonical=True) == data


@pytest.mark.parametrize("value", [1.0, 2**64, -(2**64) - 1, object(), {1: 2}, {"deep": [[[[[[[[[1]]]]]]]]]}])
def test_refuses_to_write(value: object) -> None:
    with pytest.raises(TapeError):
        encode({"a": value})


def test_reals_are_big_endian_doubles() -> None:
    assert f64(1.5).hex() == "3ff8000000000000"
    assert math.isnan(f64_from(f64(math.nan)))
    assert f64_from(f64(-math.inf)) == -math.inf
