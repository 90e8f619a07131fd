"""Blobs and serialised sketches that go over several records."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from witbench.errors import TapeError
from witbench.protocol.encoding import decode
from witbench.protocol.records import CHUNK, MAX_PARTS

if TYPE_CHECKING:
    from collections.abc import Mapping

SketchForm = dict[str, tuple[str, int]]
"""Group -> dtype and number of bytes."""


@dataclass
class Parts:
    """Collects the parts of one blob or sketch: numbered from 0, all but the last one full.

    Attributes:
        keep: keep the data; otherwise only its SHA-256 is formed.
    """

    keep: bool
    _parts: int = 0
    _next: int = 0
    _data: bytearray = field(default_factory=bytearray)
    _hash: Any = field(default_factory=hashlib.sha256)

    def add(self, record: Mapping[str, Any]) -> bool:
        """Take the next part; whether it was the last one. Raises TapeError."""
        parts = self._parts or min(record["parts"], MAX_PARTS)
        if (record["part"], record["parts"]) != (self._next, parts):
            raise TapeError(f"part {record['part']} of {record['parts']} where part {self._next} of {parts} is due")
        last = self._next == parts - 1
        size = len(record["data"])
        if (not last and size != CHUNK) or (last and self._next and not size):
            raise TapeError(f"a part of {size} bytes; all but the last have {CHUNK}, and the last is not empty")
        self._parts, self._next = parts, self._next + 1
        self._hash.update(record["data"])
        if self.keep:
            self._data += record["data"]
        return last

    def digest(self) -> bytes:
        """SHA-256 of the whole."""
        return bytes(self._hash.digest())

    def data(self) -> bytes:
        """The whole, if it was kept."""
        return bytes(self._data)


def sketch_form(data: bytes) -> SketchForm:
    """The form of a serialised sketch: a canonical map group -> [dtype, bytes]. Raises TapeError."""
    form = {}
    for group, entry in decode(data).items():
        pair = isinstance(entry, list) and len(entry) == 2
        if not pair or not isinstance(entry[0], str) or not isinstance(entry[1], bytes) or not entry[1]:
            raise TapeError(f"group {group[:60]} is not a dtype and its bytes")
        form[group] = entry[0], len(entry[1])
    return form
