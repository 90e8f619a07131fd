"""Writing and reading tapes: chaining, torn ends, full disks, hostile files."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.synthetic import Synthetic, frames, joined
from witbench.errors import TapeError
from witbench.protocol.encoding import decode, encode
from witbench.protocol.merkle import leaf_hash, root
from witbench.protocol.records import FIRST_PREV
from witbench.protocol.tape import TapeReader, TapeWriter, iter_records

GENESIS = {k: v for k, v in Synthetic().build().records[0].items() if k not in ("i", "kind", "prev")}


def _written(writer: TapeWriter, rewinds: int = 3) -> TapeWriter:
    writer.append("genesis", **GENESIS)
    for boundary in range(rewinds):
        writer.append("rewind", boundary=boundary)
    return writer


def test_records_are_chained_and_logged() -> None:
    writer = _written(TapeWriter())
    raws = frames(writer.getvalue())
    assert writer.size == len(raws) == 4
    assert writer.root() == root(raws)
    assert writer.last_leaf == leaf_hash(raws[-1])
    previous = FIRST_PREV
    for index, raw in enumerate(raws):
        record = decode(raw)
        assert (record["i"], record["prev"]) == (index, previous)
        previous = leaf_hash(raw)


def test_reading_gives_back_what_was_written() -> None:
    writer = _written(TapeWriter())
    reader = TapeReader(io.BytesIO(writer.getvalue()))
    assert [record["kind"] for _, record in reader] == ["genesis", "rewind", "rewind", "rewind"]
    assert (reader.size, reader.frontier.root(), reader.last_leaf) == (4, writer.root(), writer.last_leaf)
    assert reader.length == len(writer.getvalue())


def test_a_record_must_fit_its_schema_and_size() -> None:
    writer = _written(TapeWriter(), 0)
    with pytest.raises(TapeError, match="boundary"):
        writer.append("rewind", boundary=-1)
    with pytest.raises(TapeError, match="more than the 65535"):
        writer.append(
            "evaluation", boundary=0, set=bytes(32), checks={}, values={f"{n:0900}": bytes(8) for n in range(80)}
        )
    assert writer.size == 1
    assert len(frames(writer.getvalue())) == 1


def test_a_tape_file_is_never_overwritten(tmp_path: Path) -> None:
    _written(TapeWriter(tmp_path / "tape")).close()
    with pytest.raises(FileExistsError):
        TapeWriter(tmp_path / "tape")


@pytest.mark.parametrize("torn", [0, 1, 2, 3, 40])
def test_reopening_cuts_a_torn_record(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "tape"
    writer = _written(TapeWriter(path, fsync=True))
    whole = path.read_bytes()
    raw = encode({"i": 4, "kind": "rewind", "prev": writer.last_leaf, "boundary": 9})
    writer.close()
    path.write_bytes(whole + (len(raw).to_bytes(2, "big") + raw)[:torn])
    again = TapeWriter.reopen(path)
    assert (again.size, again.root()) == (writer.size, writer.root())
    assert again.append("rewind", boundary=9) == raw
    again.close()
    assert path.read_bytes() == whole + len(raw).to_bytes(2, "big") + raw


def test_reopening_cuts_all_of_a_torn_record(tmp_path: Path) -> None:
    """Also what is longer than the record that is written in its place."""
    path = tmp_path / "tape"
    _written(TapeWriter(path)).close()
    whole = path.read_bytes()
    path.write_bytes(whole + b"\x02\x58" + bytes(500))
    again = TapeWriter.reopen(path)
    assert path.read_bytes() == whole
    again.append("rewind", boundary=9)
    again.close()
    assert len(frames(path.read_bytes())) == 5


def test_closing_makes_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    writer = _written(TapeWriter(tmp_path / "tape"))
    assert synced == []
    writer.close()
    assert len(synced) == 1
    with pytest.raises(ValueError, match="closed file"):
        writer.append("rewind", boundary=0)
    TapeWriter().close()


def test_only_a_tape_in_memory_has_its_bytes_at_hand(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="in memory"):
        TapeWriter(tmp_path / "tape").getvalue()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "index"}, "unknown kind 'index'"),
        ({"boundary": True}, "rewind: boundary"),
        ({"extra": 1}, "has unknown extra"),
        ({"prev": bytes(31)}, "prev: must have 32 bytes"),
        ({"i": 2}, "carries number 2"),
        ({"prev": bytes(32)}, "`prev` is not the hash"),
    ],
)
def test_records_are_held_to_their_schema_when_read(changes: dict[str, Any], reason: str) -> None:
    writer = _written(TapeWriter(), 0)
    record = {"i": 1, "kind": "rewind", "prev": writer.last_leaf, "boundary": 0}
    data = joined([*frames(writer.getvalue()), encode({**record, **changes})])
    with pytest.raises(TapeError, match=reason) as caught:
        list(iter_records(io.BytesIO(data)))
    assert caught.value.record == 1
    assert len(list(iter_records(io.BytesIO(joined([*frames(writer.getvalue()), encode(record)]))))) == 2


def test_reopening_refuses_a_damaged_tape(tmp_path: Path) -> None:
    path = tmp_path / "tape"
    _written(TapeWriter(path)).close()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    raws = frames(bytes(data))
    path.write_bytes(joined([*raws[:2], raws[3]]))
    with pytest.raises(TapeError) as caught:
        TapeWriter.reopen(path)
    assert caught.value.record == 2


class FullDisk(io.FileIO):
    """A file on a disk with little room left: writes part of the data, then fails."""

    room = 10**9

    def write(self, data: Any) -> int:
        size = min(len(data), self.room - self.tell())
        if size <= 0:
            raise OSError(28, "No space left on device")
        return super().write(data[:size])


@pytest.mark.parametrize("room", [0, 1, 2, 50])
def test_a_full_disk_leaves_a_valid_tape(tmp_path: Path, room: int) -> None:
    path = tmp_path / "tape"
    writer = _written(TapeWriter(path))
    whole = path.read_bytes()
    writer._file = disk = FullDisk(path, "r+b")
    disk.seek(len(whole))
    disk.room = len(whole) + room
    with pytest.raises(OSError, match="No space"):
        writer.append("rewind", boundary=0)
    assert path.read_bytes() == whole
    disk.room = 10**9
    writer.append("rewind", boundary=0)
    assert [record["i"] for _, record in iter_records(io.BytesIO(path.read_bytes()))] == [0, 1, 2, 3, 4]


def test_durable_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    writer = TapeWriter(tmp_path / "tape", fsync=True)
    writer.append("genesis", **GENESIS)
    assert len(synced) == 1


def _record(**changes: Any) -> bytes:
    return encode({"i": 0, "kind": "genesis", "prev": FIRST_PREV, **GENESIS, **changes})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"# Notes\nThis is a text file, and a longish one.\n" * 1000, "not a witbench tape"),
        (b"x", "not a witbench tape"),
        (bytes(64), "not a witbench tape"),
        (joined([encode({"i": 0, "kind": "rewind", "prev": FIRST_PREV, "boundary": 0})]), "no genesis"),
        (joined([_record(version=1)]), "format version 1 is not the 0 .* use a newer witbench"),
        (joined([_record(version=1, new_field=2)]), "format version 1"),
        (joined([_record(version="0")]), "no genesis with a format version"),
        (joined([_record(prev=bytes(32))]), "`prev`"),
        (joined([_record(i=1)]), "number 1"),
    ],
)
def test_what_is_not_a_tape(data: bytes, reason: str) -> None:
    with pytest.raises(TapeError, match=reason) as caught:
        list(iter_records(io.BytesIO(data)))
    assert caught.value.record == 0


class Trickle(io.RawIOBase):
    """A stream that gives one byte at a time, as a pipe may."""

    def __init__(self, data: bytes) -> None:
        self.inner = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self.inner.read(min(size, 1))


def test_short_reads_of_a_pipe() -> None:
    data = _written(TapeWriter()).getvalue()
    assert len(list(iter_records(Trickle(data)))) == 4
