"""Every byte, cut, swap, duplicate and drop of a short certificate: each is rejected with a record number and a reason.

The forger here has no keys and repairs nothing; test_forgeries.py has forgers who do.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from tests.protocol.synthetic import Certificate, Synthetic, frames, joined, pinned
from witbench.errors import TapeError
from witbench.protocol.genesis import Genesis
from witbench.protocol.merkle import root
from witbench.protocol.notes import VerifyKey
from witbench.protocol.parts import Parts
from witbench.protocol.policy import Policy
from witbench.protocol.records import KINDS
from witbench.protocol.report import Report
from witbench.protocol.tape import TapeReader
from witbench.protocol.verifier import verify
from witbench.protocol.walk import Walk


@pytest.fixture(autouse=True)
def remembered_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify each (key, message, signature) once: thousands of these tapes share their first heads."""
    monkeypatch.setattr(VerifyKey, "verify", lru_cache(1024)(VerifyKey.verify))


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    """Two units and one that a rewind dropped; every kind of record that the reference protocol has."""
    made = Synthetic(updates=2, rewinds={1: 0}, spare=2, p=0.9).build()
    assert len(made.tape) < 12_000
    assert {record["kind"] for record in made.records} == KINDS.keys() - {"start"}
    return made


@pytest.fixture
def folder(certificate: Certificate, tmp_path: Path) -> Path:
    """The certificate on disk, accepted as it is."""
    folder = certificate.write(tmp_path / "cert")
    assert verify(folder, pinned()).accepted
    return folder


def _rejected(folder: Path, tape: bytes) -> Report:
    (folder / "tape").write_bytes(tape)
    report = verify(folder, pinned())
    assert not report.accepted
    assert not report.self_certified
    assert report.reason
    assert report.record is not None
    return report


def _index_of_each_byte(tape: bytes) -> list[int]:
    """Number of the record that each byte of the tape belongs to."""
    return [index for index, raw in enumerate(frames(tape)) for _ in range(len(raw) + 2)]


def test_every_byte(certificate: Certificate, folder: Path) -> None:
    """A changed byte is noticed in its own record or by the link of the next one; the closing head guards the last."""
    tape = certificate.tape
    for at, index in enumerate(_index_of_each_byte(tape)):
        changed = tape[:at] + bytes([tape[at] ^ 1 << at % 8]) + tape[at + 1 :]
        report = _rejected(folder, changed)
        assert report.record in (index, index + 1), (at, report.reason)


@pytest.mark.slow
def test_every_value_of_every_byte(certificate: Certificate) -> None:
    """All 255 other values of each byte, verified from the record before on: the walk up to there is the same."""
    raws = frames(certificate.tape)
    for (reader, walk), index in zip(_states(certificate.tape), range(1, len(raws)), strict=True):
        window = joined(raws[index : index + 2])
        for at in range(len(raws[index]) + 2):
            for value in range(256):
                if value == window[at]:
                    continue
                changed = window[:at] + bytes([value]) + window[at + 1 :]
                again = TapeReader(io.BytesIO(changed), frontier=reader.frontier.copy(), last_leaf=reader.last_leaf)
                if index + 1 == len(raws):
                    assert _root(again, walk) != _whole_root(certificate), (index, at, value)
                    continue
                with pytest.raises(TapeError) as caught:
                    _walk(again, walk)
                assert caught.value.record in (index, index + 1), (index, at, value)


def _states(tape: bytes) -> Iterator[tuple[TapeReader, Walk]]:
    """Reader and walk before each record after genesis."""
    reader = TapeReader(io.BytesIO(tape))
    records = iter(reader)
    walk = Walk.begin(Genesis.read(next(records)[1]), Policy(), reader.frontier)
    for index in range(1, len(frames(tape))):
        yield reader, walk
        walk.feed(next(records)[1])
        assert reader.size == index + 1


def _copied(walk: Walk, reader: TapeReader) -> Walk:
    """A walk that can go on by itself, on another reader's tree."""
    twin = copy.copy(walk)
    twin.frontier = reader.frontier
    for name in ("tally", "reveals", "challenges", "isolations"):
        setattr(twin, name, copy.deepcopy(getattr(walk, name)))
    twin._unit = replace(walk._unit, sketch=_copied_parts(walk._unit.sketch))
    twin._blob_parts = _copied_parts(walk._blob_parts)
    return twin


def _copied_parts(parts: Parts) -> Parts:
    twin = copy.copy(parts)
    twin._data, twin._hash = bytearray(parts._data), parts._hash.copy()
    return twin


def _walk(reader: TapeReader, walk: Walk) -> None:
    twin = None
    for _, record in reader:
        twin = twin or _copied(walk, reader)
        twin.feed(record)


def _root(reader: TapeReader, walk: Walk) -> bytes | None:
    try:
        _walk(reader, walk)
    except TapeError:
        return None
    return reader.frontier.root()


def _whole_root(certificate: Certificate) -> bytes:
    """The root that the closing head is signed over."""
    return root(frames(certificate.tape))


def test_every_cut(certificate: Certificate, folder: Path) -> None:
    tape = certificate.tape
    owner = _index_of_each_byte(tape)
    starts = {owner.index(index) for index in set(owner)}
    for at in range(len(tape)):
        report = _rejected(folder, tape[:at])
        if at in starts and at:
            assert report.record == owner[at] - 1
            assert report.status == "incomplete"
        else:
            assert (report.record == owner[at] and "cut" in (report.reason or "")) or at == 0


def test_every_swap(certificate: Certificate, folder: Path) -> None:
    raws = frames(certificate.tape)
    for one, two in combinations(range(len(raws)), 2):
        swapped = list(raws)
        swapped[one], swapped[two] = swapped[two], swapped[one]
        assert _rejected(folder, joined(swapped)).record == one


def test_every_duplicate(certificate: Certificate, folder: Path) -> None:
    """A copy of each record at each later place."""
    raws = frames(certificate.tape)
    for index, raw in enumerate(raws):
        for place in range(index + 1, len(raws) + 1):
            assert _rejected(folder, joined([*raws[:place], raw, *raws[place:]])).record == place


def test_every_drop(certificate: Certificate, folder: Path) -> None:
    raws = frames(certificate.tape)
    for index in range(len(raws)):
        report = _rejected(folder, joined([*raws[:index], *raws[index + 1 :]]))
        # Without its last record the tape is a sound beginning, and says so.
        assert report.record == (index if index + 1 < len(raws) else index - 1)


def test_every_move(certificate: Certificate, folder: Path) -> None:
    """Each record, taken out and put back one place on: a swap of neighbours, links broken on both sides."""
    raws = frames(certificate.tape)
    for one, two in pairwise(range(len(raws))):
        moved = [*raws[:one], raws[two], raws[one], *raws[two + 1 :]]
        assert _rejected(folder, joined(moved)).record == one


def test_a_splice_of_two_runs(certificate: Certificate, folder: Path) -> None:
    """The beginning of one honest run and the end of another, at every record."""
    other = Synthetic(updates=2, rewinds={1: 0}, spare=2, p=0.9, genesis={"init_seed": 8}).build()
    ours, theirs = frames(certificate.tape), frames(other.tape)
    for place in range(1, min(len(ours), len(theirs))):
        if ours[place] != theirs[place]:
            assert _rejected(folder, joined([*ours[:place], *theirs[place:]])).record == place
