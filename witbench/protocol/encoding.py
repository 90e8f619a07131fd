"""Canonical CBOR, the only encoding of hashed bytes: text keys, no floats, no tags, no indefinite lengths.

A decoder of untrusted bytes bounds size and depth first, refuses everything outside the subset, and then compares the
bytes with the canonical re-encoding of what it read, so that one value has one encoding (RFC 8949, section 4.2).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NoReturn

import cbor2

from witbench.errors import TapeError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DEPTH = 8
"""Deepest nesting of maps and lists; a record needs three."""

MAX_SIZE = 1 << 26
"""Largest message read unless a caller sets a lower limit, bytes."""

_BUILT_IN_TAGS = (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 100, 256, 258, 260, 261, 1004, 43000, 55799)


def _refuse(*_: object) -> NoReturn:
    raise ValueError("tags are not allowed")


_NO_TAGS: Any = dict.fromkeys(_BUILT_IN_TAGS, _refuse)


def encode(value: Mapping[str, Any]) -> bytes:
    """Canonical bytes of a map of text, bytes, booleans, None, 64-bit integers, lists and maps with text keys.

    Raises:
        TapeError: the value holds anything else, a float for example.
    """
    if not isinstance(value, dict):
        value = dict(value)
    _check(value, MAX_DEPTH)
    return cbor2.dumps(value, canonical=True)


def decode(data: bytes, limit: int = MAX_SIZE) -> dict[str, Any]:
    """Read an untrusted map of at most `limit` bytes; whatever is not canonical is refused.

    Raises:
        TapeError: not CBOR, not in the subset, too large, too deep, or not the canonical encoding.
    """
    if len(data) > limit:
        raise TapeError(f"{len(data)} bytes are more than the {limit} allowed")
    try:
        value = cbor2.loads(
            data,
            max_depth=MAX_DEPTH,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
            semantic_decoders=_NO_TAGS,
        )
    except cbor2.CBORDecodeError as error:
        raise TapeError(f"not canonical CBOR ({error})") from None
    if not isinstance(value, dict):
        raise TapeError("not a CBOR map")
    _check(value, MAX_DEPTH)
    if cbor2.dumps(value, canonical=True) != data:
        raise TapeError("not canonical CBOR (another encoding of the same value exists)")
    return value


def _check(value: object, depth: int) -> None:
    kind = type(value)
    if kind is bytes or kind is str or kind is bool or value is None:
        return
    if isinstance(value, int):
        if not -(1 << 64) <= value < 1 << 64:
            raise TapeError("an integer does not fit 64 bits")
    elif depth == 0:
        raise TapeError("maps and lists are nested too deeply")
    elif isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise TapeError("a map key is not text")
            _check(item, depth - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check(item, depth - 1)
    else:
        raise TapeError(f"{kind.__name__} values are not allowed")


def f64(value: float) -> bytes:
    """A real number as 8 bytes, IEEE 754 binary64, big-endian."""
    return struct.pack(">d", value)


def f64_from(data: bytes) -> float:
    """The real number in 8 bytes; may be infinite or not a number."""
    (value,) = struct.unpack(">d", data)
    return float(value)


def reals(values: Mapping[str, bytes]) -> dict[str, float]:
    """The real numbers of a taped map."""
    return {name: f64_from(value) for name, value in values.items()}
