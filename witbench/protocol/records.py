"""The kinds of tape records and the type of every field. docs/format.md says what each field means.

A record is checked against its kind's fields when it is written and when it is read: no field more, none less.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from witbench.errors import TapeError

VERSION = 0
"""Version of the format; 0 until it is frozen."""

MAX_RECORD = 65_535
"""Largest record, bytes: its length is two bytes on disk."""

CHUNK = 32_000
"""Largest `data` of a blob or sketch record, bytes; only a last part is shorter."""

FIRST_PREV = hashlib.sha256(b"witbench/tape/v0\n").digest()
"""`prev` of record 0."""

BLOBS = ("config", "manifest", "procedure")
"""Blobs in the order they follow genesis."""

MAX_PARTS = 2048
"""Most parts of one blob or sketch."""

PUBLISHED, ALLOW_LISTED = "published", "allow-listed"
"""Procedure policies: its source is on the tape, or its digest is on the broker's list and no blob of it is."""

ISOLATIONS = ("process only", "namespaces")
"""How a replayer may be isolated, the weakest first."""

PASSED, FAILED = "passed", "failed"
COMPLETE, REJECTED = "complete", "rejected"

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOO_LARGE = 1 << 63


class Kind(ABC):
    """The type of a field."""

    @abstractmethod
    def problem(self, value: object) -> str | None:
        """What is wrong with a value, or None."""


@dataclass(frozen=True)
class Number(Kind):
    """A non-negative integer below 2^63."""

    least: int = 0

    def problem(self, value: object) -> str | None:
        """What is wrong with a value, or None."""
        if isinstance(value, int) and not isinstance(value, bool) and self.least <= value < _TOO_LARGE:
            return None
        return f"must be an integer from {self.least}"


@dataclass(frozen=True)
class Text(Kind):
    """Text of a bounded length, optionally of given values or of a pattern."""

    longest: int = 1024
    among: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None

    def problem(self, value: object) -> str | None:
        """What is wrong with a value, or None."""
        if not isinstance(value, str) or len(value) > self.longest:
            return f"must be text of at most {self.longest} characters"
        if self.among and value not in self.among:
            return f"must be one of {', '.join(self.among)}"
        if self.pattern and not self.pattern.fullmatch(value):
            return f"must match {self.pattern.pattern}"
        return None


@dataclass(frozen=True)
class Bytes(Kind):
    """A byte string of exactly `size` bytes, or of at most `longest`."""

    size: int | None = None
    longest: int = CHUNK

    def problem(self, value: object) -> str | None:
        """What is wrong with a value, or None."""
        if not isinstance(value, bytes):
            return "must be a byte string"
        if self.size is not None and len(value) != self.size:
            return f"must have {self.size} bytes, not {len(value)}"
        if self.size is None and len(value) > self.longest:
            return f"must have at most {self.longest} bytes, not {len(value)}"
        return None


@dataclass(frozen=True)
class Flag(Kind):
    """True or false."""

    def problem(self, value: object) -> str | None:
        """What is wrong with a value, or None."""
        return None if isinstance(value, bool) else "must be true or false"


@dataclass(frozen=True)
class Maybe(Kind):
    """Null or a value of another type."""

    of: Kind

    def problem(self, value: object) -> str | None:
        """What is wrong with a value, or None."""
        return None if value is None else self.of.problem(value)


@dataclass(frozen=True)
class ListOf(Kind):
    """A list without repetitions."""

    of: Kind

    def problem(self, value: object) -> str | None:
        """What is wrong with a value, or None."""
        if not isinstance(value, list):
            return "must be a list"
        for item in value:
            if trouble := self.of.problem(item):
                return f"an item {trouble}"
        return "must not repeat an item" if len(set(value)) != len(value) else None


_NAME = Text()


@dataclass(frozen=True)
class MapOf(Kind):
    """A map from any text to values of one type."""

    of: Kind

    def problem(self, value: object) -> str | None:
        """What is wrong with a value, or None."""
        if not isinstance(value, Mapping):
            return "must be a map"
        for key, item in value.items():
            if trouble := _NAME.problem(key) or self.of.problem(item):
                return f"{str(key)[:60]}: {trouble}"
        return None


@dataclass(frozen=True)
class Fields(Kind):
    """A map with exactly the given keys."""

    of: Mapping[str, Kind]

    def problem(self, value: object) -> str | None:
        """What is wrong with a value, or None."""
        if not isinstance(value, Mapping):
            return "must be a map"
        if missing := [name for name in self.of if name not in value]:
            return f"lacks {', '.join(missing)}"
        if extra := [str(name)[:60] for name in value if name not in self.of]:
            return f"has unknown {', '.join(extra)}"
        for name, kind in self.of.items():
            if trouble := kind.problem(value[name]):
                return f"{name}: {trouble}"
        return None


HASH, REAL = Bytes(32), Bytes(8)
_VKEY = Text(256)
_CHECKS, _REALS = MapOf(Flag()), MapOf(REAL)

KINDS: Mapping[str, Mapping[str, Kind]] = {
    "genesis": {
        "version": Number(),
        "run": Text(64, pattern=_RUN_ID),
        "attempt": Number(1),
        "trainer_attempt": Number(1),
        "dataset": Fields({"root": HASH, "tokens": Number(), "dtype": Text(16)}),
        "order": Fields({"rule": Text(64), "seed": HASH}),
        "init_seed": Number(),
        "updates": Number(1),
        "unit": Number(1),
        "evaluation_root": Maybe(HASH),
        "tokenizer": HASH,
        "sketch": Fields({"name": Text(64), "config": Text(4096), "exact": Flag(), "tolerance": REAL}),
        "groups": ListOf(Text(256)),
        "switches": MapOf(Text(64)),
        "p": Bytes(9),
        "tau": Fields({"warmup": _REALS, "after": _REALS}),
        "warmup": Number(),
        "evaluation_tau": _REALS,
        "calibration": Maybe(HASH),
        "anchor": HASH,
        "reveals": Number(1),
        "lag": Number(),
        "deadline": Number(1),
        "broker_key": _VKEY,
        "trainer_key": _VKEY,
        "threads": Number(1),
        "libraries": MapOf(Text(64)),
        "procedure": HASH,
        "procedure_policy": Text(among=(PUBLISHED, ALLOW_LISTED)),
        "config": HASH,
        "manifest": HASH,
        "isolation": Text(among=ISOLATIONS),
    },
    "blob": {"name": Text(among=BLOBS), "part": Number(), "parts": Number(1), "data": Bytes()},
    "start": {"unit": Number(1), "state": HASH, "exact": HASH},
    "declare": {
        "unit": Number(1),
        "t": Number(),
        "root": HASH,
        "sequences": Number(),
        "tokens": Number(),
        "fields": HASH,
    },
    "commit": {"boundary": Number(), "state": HASH, "exact": HASH},
    "key": {"unit": Number(1), "number": Number(1), "reveal": HASH},
    "sketch": {"unit": Number(1), "part": Number(), "parts": Number(1), "data": Bytes()},
    "coin": {"unit": Number(1), "number": Number(1), "reveal": HASH, "challenged": Flag()},
    "replay": {
        "unit": Number(),
        "verdict": Text(among=(PASSED, FAILED)),
        "failed": Maybe(Text(64)),
        "checks": _CHECKS,
        "distances": _REALS,
        "yardstick": _REALS,
        "attempts": Number(),
        "isolation": Text(among=ISOLATIONS),
    },
    "evaluation": {"boundary": Number(), "set": HASH, "values": _REALS, "checks": _CHECKS},
    "rewind": {"boundary": Number()},
    "checkpoint": {"note": Text(16_384)},
    "final": {
        "status": Text(among=(COMPLETE, REJECTED)),
        "boundary": Number(),
        "state": HASH,
        "exact": HASH,
        "parameters": HASH,
        "weights": HASH,
        "checks": _CHECKS,
        "failed": Maybe(Text(64)),
        "units": Number(),
        "rewinds": Number(),
    },
}
"""Kind -> its fields, beside the `i`, `kind` and `prev` that every record has."""

WORKER_KINDS = frozenset({"start", "declare", "commit", "sketch", "rewind"})
"""Kinds of the worker's records: keys and coins hash the head at the last of them, so that timing steers nothing."""

_SCHEMAS = {
    kind: Fields({"i": Number(), "kind": Text(), "prev": HASH, **fields_of_kind})
    for kind, fields_of_kind in KINDS.items()
}


def check_record(record: Mapping[str, Any]) -> None:
    """Hold a record against its kind's fields. Raises TapeError, without a record number."""
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in _SCHEMAS:
        raise TapeError(f"unknown kind {str(kind)[:60]!r}")
    if trouble := _SCHEMAS[kind].problem(record):
        raise TapeError(f"{kind}: {trouble}")


def chunks(data: bytes) -> list[bytes]:
    """The parts in which a blob or a serialised sketch goes on the tape."""
    return [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)] or [b""]
