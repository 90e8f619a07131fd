"""Philox against Random123's published known answers, and the key derivation against hashlib written out."""

from __future__ import annotations

import hashlib

import pytest
import torch

from witbench.errors import ConfigError
from witbench.kernels.base import Entry
from witbench.kernels.philox import address, check_key, philox4x32, stream_key

# Rows "philox4x32 10" of tests/kat_vectors in Random123 1.14.0: counter, key, answer.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def _words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def test_known_answers_all_at_once() -> None:
    counters = torch.tensor([_words(counter) for counter, _, _ in KNOWN_ANSWERS])
    keys = torch.tensor([_words(key) for _, key, _ in KNOWN_ANSWERS])
    out = torch.stack(philox4x32(tuple(counters.T), tuple(keys.T)), dim=1)
    assert out.tolist() == [_words(answer) for _, _, answer in KNOWN_ANSWERS]


def test_counters_and_keys_broadcast() -> None:
    zero = torch.zeros((), dtype=torch.int64)
    grid = philox4x32((torch.arange(5), zero, torch.arange(3)[:, None], zero), (zero, zero + 7))
    one = philox4x32((zero + 4, zero, zero + 2, zero), (zero, zero + 7))
    assert grid[0].shape == (3, 5)
    assert [int(word[2, 4]) for word in grid] == [int(word) for word in one]


def test_address_splits_at_32_bits() -> None:
    low, high = address(torch.tensor([0, 2**32 - 1, 2**32, 5 * 2**32 + 6]))
    assert low.tolist() == [0, 2**32 - 1, 0, 6]
    assert high.tolist() == [0, 0, 1, 5]


def test_stream_key_is_the_documented_hash() -> None:
    entry = Entry("exp_avg", "blocks.0.w", "float32", (2, 3), "g", "identity", 44)
    kappa = bytes(range(32))
    message = (
        b"\0\0\0\x0fwitbench/rht/v0" + b"\0\0\0\1d" + b"\0\0\0\x20" + kappa
        + b"\0\0\0\x07exp_avg" + b"\0\0\0\x0ablocks.0.w"
    )  # fmt: skip
    digest = hashlib.sha256(message).digest()
    expected = (int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little"))
    assert stream_key("witbench/rht/v0", "d", kappa, entry) == expected


def test_stream_keys_differ_by_every_part() -> None:
    def key(tag: str = "t", stream: str = "d", kappa: bytes = bytes(32), role: str = "r", name: str = "n") -> object:
        return stream_key(tag, stream, kappa, Entry(role, name, "float32", (1,), "g", "identity", 40))

    variants = [key(), key(tag="u"), key(stream="e"), key(kappa=b"\1" + bytes(31)), key(role="s"), key(name="m")]
    # Length prefixes: moving a letter between neighbouring parts is a different message.
    variants += [key(role="rn", name=""), key(role="", name="rn")]
    assert len(set(variants)) == len(variants)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_key_length(length: int) -> None:
    with pytest.raises(ConfigError, match=f"32 bytes, not {length}"):
        check_key(bytes(length))
