"""Schemas of the records: one wrong field at a time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocol.synthetic import Synthetic
from witbench.errors import TapeError
from witbench.protocol.records import CHUNK, KINDS, check_record, chunks

EXAMPLE = Synthetic(rewinds={3: 2}, spare=4, switched={"chain": "parentless"}).build()
RECORDS = {record["kind"]: record for record in EXAMPLE.records}


def test_every_kind_has_an_example_here() -> None:
    assert RECORDS.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_less_and_none_more(kind: str) -> None:
    record = RECORDS[kind]
    check_record(record)
    for name in record:
        without = {key: value for key, value in record.items() if key != name}
        with pytest.raises(TapeError, match=f"lacks {name}" if name != "kind" else "unknown kind"):
            check_record(without)
    with pytest.raises(TapeError, match="has unknown extra"):
        check_record({**record, "extra": 1})


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_of_another_type(kind: str) -> None:
    record = RECORDS[kind]
    for name, value in record.items():
        if name != "kind":
            # Numbers must not pass as booleans, nor booleans as numbers.
            other: Any = 1 if isinstance(value, bool) else True
            with pytest.raises(TapeError, match=name):
                check_record({**record, name: other})


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("genesis", "run", "../../etc"),
        ("genesis", "run", ""),
        ("genesis", "run", "two\nlines"),
        ("genesis", "attempt", 0),
        ("genesis", "groups", ["a", "a"]),
        ("genesis", "updates", 0),
        ("genesis", "unit", 0),
        ("genesis", "procedure_policy", "secret"),
        ("genesis", "isolation", "none"),
        ("genesis", "dataset", {"root": bytes(32), "tokens": 1}),
        ("blob", "name", "weights"),
        ("blob", "data", bytes(CHUNK + 1)),
        ("declare", "t", -1),
        ("declare", "tokens", 2**63),
        ("declare", "root", bytes(31)),
        ("replay", "verdict", "maybe"),
        ("replay", "distances", {"g": bytes(4)}),
        ("replay", "checks", {"open.leaf": 1}),
        ("final", "status", "done"),
        ("checkpoint", "note", "x" * 20_000),
    ],
)
def test_values_out_of_range(kind: str, name: str, value: object) -> None:
    with pytest.raises(TapeError, match=name):
        check_record({**RECORDS[kind], name: value})


@pytest.mark.parametrize("kind", ["index", "", 7, None])
def test_unknown_kinds(kind: object) -> None:
    with pytest.raises(TapeError, match="unknown kind"):
        check_record({**RECORDS["rewind"], "kind": kind})


def test_chunks() -> None:
    assert chunks(b"") == [b""]
    assert [len(part) for part in chunks(bytes(2 * CHUNK))] == [CHUNK, CHUNK]
    assert [len(part) for part in chunks(bytes(CHUNK + 1))] == [CHUNK, 1]
