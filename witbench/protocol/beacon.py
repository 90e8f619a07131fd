"""The broker's randomness: a reverse hash chain, what is derived from it, and the counter that uses each value once."""

from __future__ import annotations

import hashlib
import math
import os
from typing import TYPE_CHECKING

from witbench.errors import ConfigError, ProtocolError

if TYPE_CHECKING:
    from pathlib import Path

SPARE_REVEALS = 64
"""Reveals a chain must hold beyond four a unit and one an evaluation."""


def reveals_needed(units: int, evaluations: int = 0) -> int:
    """Fewest reveals that the chain of a run must hold."""
    return 4 * units + evaluations + SPARE_REVEALS


def _hashed(value: bytes, times: int) -> bytes:
    for _ in range(times):
        value = hashlib.sha256(value).digest()
    return value


class Beacon:
    """r_N, ..., r_1, r_0 with r_(i-1) = SHA-256(r_i): the anchor r_0 is published, the rest is revealed from r_1 on.

    Keeps one value in sqrt(N), so memory and the time of a reveal are both of that order.

    Args:
        seed: 32 secret bytes or more; r_N is their tagged hash.
        length: N, the number of reveals.
    """

    def __init__(self, seed: bytes, length: int) -> None:
        if len(seed) < 32 or length < 1:
            raise ConfigError("a beacon needs a seed of at least 32 bytes and at least one reveal")
        self.length = length
        self._stride = math.isqrt(length) or 1
        value = hashlib.sha256(b"witbench/beacon/v0\n" + seed).digest()
        self._kept = {length: value}
        for number in range(length - 1, -1, -1):
            value = hashlib.sha256(value).digest()
            if number % self._stride == 0:
                self._kept[number] = value
        self.anchor = value

    def reveal(self, number: int) -> bytes:
        """r_number, 1-based. Raises ProtocolError (`beacon.exhausted`) when no such value is left."""
        if not 1 <= number <= self.length:
            raise ProtocolError("beacon.exhausted", f"there is no reveal {number}; the chain holds {self.length}")
        above = min(-(-number // self._stride) * self._stride, self.length)
        return _hashed(self._kept[above], above - number)


def check_reveal(previous: bytes, revealed: bytes, steps: int = 1) -> bool:
    """Whether a revealed value hashes to an earlier one (or to the anchor) in exactly `steps` steps."""
    return steps >= 1 and _hashed(revealed, steps) == previous


def derive(tag: str, reveal: bytes, size: int, root: bytes) -> bytes:
    """32 bytes bound to a reveal and a tape head: SHA-256(tag, newline, reveal, u64 tree size, root)."""
    return hashlib.sha256(tag.encode() + b"\n" + reveal + size.to_bytes(8, "big") + root).digest()


class RevealCounter:
    """Number of the last value revealed, in memory only."""

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def next(self) -> int:
        """The number to reveal now; it is never handed out again."""
        self.value += 1
        return self.value


class CounterFile(RevealCounter):
    """A reveal counter that is on disk before the number is handed out, so that a crash never repeats a reveal.

    Args:
        path: the file; made by the first `next` when it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(self._read())

    def _read(self) -> int:
        if not self.path.exists():
            return 0
        text = self.path.read_text()
        if not text.strip().isdecimal():
            raise ConfigError(f"{self.path}: not a reveal counter; a run without its counter must not go on")
        return int(text)

    def next(self) -> int:
        """The number to reveal now, after it is durable."""
        temporary = self.path.with_name(self.path.name + ".part")
        with temporary.open("w") as file:
            file.write(f"{self.value + 1}\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return super().next()
