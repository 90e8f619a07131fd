"""The tape on disk: u16-length-prefixed records, each with the leaf hash of the one before it.

Writing and reading stream: beside one record, only the frontier of the Merkle tree is in memory.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from witbench.errors import TapeError
from witbench.protocol.encoding import decode, encode
from witbench.protocol.merkle import Frontier, leaf_hash
from witbench.protocol.records import FIRST_PREV, MAX_RECORD, VERSION, check_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NOT_A_TAPE = "this is not a witbench tape"


class TapeWriter:
    """Appends records to a tape in a new file, or in memory.

    A record is written whole or, as far as the system lets us, not at all: after a failed write (disk full) the file is
    cut back to its last whole record, and the writer still stands where it stood.

    Args:
        path: file to create, or None for a tape in memory (`getvalue`).
        fsync: make each record durable before `append` returns.
    """

    def __init__(self, path: Path | None = None, fsync: bool = False) -> None:
        self._file: BinaryIO = io.BytesIO() if path is None else path.open("xb", buffering=0)
        self._fsync = fsync and path is not None
        self._length = 0
        self._frontier = Frontier()
        self.last_leaf = FIRST_PREV

    @classmethod
    def reopen(cls, path: Path, fsync: bool = False) -> TapeWriter:
        """Go on with a tape after a stop: a torn last record is cut off. Raises TapeError for anything else."""
        writer = cls(None)
        writer._file, writer._fsync = path.open("r+b", buffering=0), fsync
        with path.open("rb") as stream:
            reader = TapeReader(stream, torn_end=True)
            for _ in reader:
                pass
        writer._frontier, writer.last_leaf, writer._length = reader.frontier, reader.last_leaf, reader.length
        writer._file.truncate(writer._length)
        writer._file.seek(writer._length)
        return writer

    @property
    def size(self) -> int:
        """Number of records."""
        return self._frontier.size

    def root(self) -> bytes:
        """Merkle root over all records."""
        return self._frontier.root()

    def append(self, kind: str, **fields: Any) -> bytes:
        """Write one record; `i` and `prev` are filled in.

        Returns:
            The record's bytes, without the length prefix.

        Raises:
            TapeError: a field is missing, unknown or of another type, or the record is too large.
            OSError: the record could not be written; the tape is as it was.
        """
        record = {"i": self.size, "kind": kind, "prev": self.last_leaf, **fields}
        check_record(record)
        raw = encode(record)
        if len(raw) > MAX_RECORD:
            raise TapeError(f"{kind}: {len(raw)} bytes are more than the {MAX_RECORD} of a record", self.size)
        self._write(len(raw).to_bytes(2, "big") + raw)
        self.last_leaf = self._frontier.append(raw)
        return raw

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            if self._fsync:
                os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(self._length)
            self._file.seek(self._length)
            raise
        self._length += len(data)

    def getvalue(self) -> bytes:
        """The whole tape, of a writer in memory."""
        if not isinstance(self._file, io.BytesIO):
            raise TypeError("only a tape in memory has its bytes at hand")
        return self._file.getvalue()

    def close(self) -> None:
        """Make the tape durable and close its file."""
        if not isinstance(self._file, io.BytesIO):
            os.fsync(self._file.fileno())
            self._file.close()


@dataclass
class TapeReader:
    """Iterates over the (raw, record) pairs of a tape, checking framing, encoding, fields, numbering and `prev`.

    Attributes:
        stream: where the tape is read from.
        torn_end: end quietly at a torn last record instead of raising.
        frontier: Merkle tree over the records read so far.
        last_leaf: leaf hash of the last of them.
        length: their bytes on disk.
    """

    stream: BinaryIO
    torn_end: bool = False
    frontier: Frontier = field(default_factory=Frontier)
    last_leaf: bytes = FIRST_PREV
    length: int = 0

    @property
    def size(self) -> int:
        """Number of records read."""
        return self.frontier.size

    def __iter__(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yield each record's bytes and fields. Raises TapeError with the number of the record that is wrong."""
        while (raw := self._next_raw()) is not None:
            record = self._parse(raw)
            leaf = leaf_hash(raw)
            self.frontier.append_hash(leaf)
            self.last_leaf = leaf
            self.length += 2 + len(raw)
            yield raw, record

    def _next_raw(self) -> bytes | None:
        prefix = _read(self.stream, 2)
        if not prefix:
            return None
        size = int.from_bytes(prefix, "big")
        raw = _read(self.stream, size) if len(prefix) == 2 else b""
        if len(prefix) == 2 and len(raw) == size:
            return raw
        if self.torn_end:
            return None
        if self.size == 0:
            raise TapeError(f"{_NOT_A_TAPE}, or it is cut inside its first record", 0)
        raise TapeError("the tape is cut inside this record", self.size)

    def _parse(self, raw: bytes) -> dict[str, Any]:
        try:
            record = decode(raw, MAX_RECORD) if self.size else _decode_first(raw)
            check_record(record)
        except TapeError as error:
            raise TapeError(error.reason, self.size) from None
        if record["i"] != self.size:
            raise TapeError(f"carries number {record['i']}", self.size)
        if record["prev"] != self.last_leaf:
            raise TapeError("`prev` is not the hash of the record before it", self.size)
        return record


def _decode_first(raw: bytes) -> dict[str, Any]:
    """Read a genesis; its version is looked at before its fields, which another version may have changed."""
    try:
        record = decode(raw, MAX_RECORD)
    except TapeError as error:
        raise TapeError(f"{_NOT_A_TAPE}: {error.reason}") from None
    version = record.get("version")
    if record.get("kind") != "genesis" or not isinstance(version, int):
        raise TapeError(f"{_NOT_A_TAPE}: the first record is no genesis with a format version")
    if version != VERSION:
        raise TapeError(f"format version {version} is not the {VERSION} that this witbench reads; use a newer witbench")
    return record


def _read(stream: BinaryIO, size: int) -> bytes:
    """Up to `size` bytes; fewer only at the end of the stream."""
    data = stream.read(size)
    while len(data) < size and (more := stream.read(size - len(data))):
        data += more
    return data


def iter_records(stream: BinaryIO, torn_end: bool = False) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield (raw, record) of each record of a tape. Raises TapeError; see TapeReader."""
    yield from TapeReader(stream, torn_end)
