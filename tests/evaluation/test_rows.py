"""Rows: keys, validation, and files read as far as they are whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.samples import row
from witbench.errors import ConfigError, DataError
from witbench.evaluation.rows import Row, RowWriter, canonical_json, missing, read_rows, trial_key


def test_the_key_is_pinned() -> None:
    """Another value means that stored trials would be run again: raise KEY_SCHEME when that is meant."""
    key = trial_key({"p": 0.1, "attack": {"name": "substitution"}}, 7, {"torch": "2.13.0"})
    assert key == "78784761c31b609fd79e3c3de399f3b2"


def test_the_key_depends_on_every_part_and_on_no_order() -> None:
    config = {"a": 1, "b": [1, 2.5, None, True]}
    key = trial_key(config, 1, {"torch": "2", "numpy": "2"})
    assert key == trial_key(dict(reversed(config.items())), 1, {"numpy": "2", "torch": "2"})
    others = {
        trial_key(config, 2, {"torch": "2", "numpy": "2"}),
        trial_key(config, 1, {"torch": "3", "numpy": "2"}),
        trial_key(config | {"a": 2}, 1, {"torch": "2", "numpy": "2"}),
        trial_key(config | {"a": "1"}, 1, {"torch": "2", "numpy": "2"}),
    }
    assert len(others | {key}) == 5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, {"a": {1, 2}}, [object()]])
def test_a_key_needs_plain_finite_values(value: object) -> None:
    with pytest.raises(ConfigError):
        canonical_json(value)


def test_a_row_survives_its_line() -> None:
    conditional = row(estimator="conditional", detected=None, probability=0.19, units=(3, 64), v=(1.0, 0.0))
    for each in (row(), conditional, row(detected=None, error="DataError: none\nsecond line", tau=0.5)):
        line = each.to_json()
        assert "\n" not in line
        assert Row.from_json(line) == each


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("p", "0.1"),
        ("p", True),
        ("seed", 1.0),
        ("detected", 1),
        ("tau", []),
        ("check", 3),
        ("units", [1.5]),
        ("units", {}),
        ("v", ["1"]),
        ("payload", {"loss": "low"}),
        ("clusters", {"run": 1}),
        ("versions", []),
    ],
)
def test_a_value_of_another_type_is_named(name: str, value: object) -> None:
    plain = json.loads(row().to_json())
    with pytest.raises(DataError, match=f"^{name}=.*: must be "):
        Row.from_json(json.dumps(plain | {name: value}))


@pytest.mark.parametrize("line", [b"\xff", b"[1]", b"{", b"[" * 100_000, b'{"p":NaN}', b"null"])
def test_what_is_no_row_is_a_data_error(line: bytes) -> None:
    with pytest.raises(DataError, match=r"not a line of JSON|a row is a JSON object"):
        Row.from_json(line)


@pytest.mark.parametrize(
    "changes",
    [
        {"detected": None},
        {"error": "x"},
        {"probability": 0.1},
        {"estimator": "conditional"},
        {"estimator": "guess"},
        {"units": (1,)},
    ],
)
def test_a_row_holds_one_kind_of_result(changes: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        row(**changes)


def test_the_ideal_takes_every_measured_unit_as_detectable() -> None:
    changes: dict[str, Any] = {"estimator": "conditional", "detected": None, "probability": 0.0}
    assert row(**changes, units=(1, 2), v=(0.0, 0.0)).ideal == pytest.approx(0.19)
    assert row(**changes, units=(1, 64), v=(0.0, 0.0)).ideal == 1.0
    assert row(**changes).ideal == 1.0


def test_written_rows_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.jsonl"
    rows = [row(seed) for seed in range(3)]
    with RowWriter(path) as writer:
        for each in rows[:2]:
            writer.write(each)
            assert len(path.read_bytes().splitlines()) == each.seed + 1
    with RowWriter(path) as writer:
        writer.write(rows[2])
    assert list(read_rows([path]).values()) == rows


@pytest.mark.parametrize("torn", [1, 40, 100_000])
def test_a_torn_last_line_is_skipped_and_then_cut(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "a.jsonl"
    rows = [row(seed) for seed in range(3)]
    with RowWriter(path) as writer:
        writer.write(rows[0])
    whole = path.read_bytes()
    path.write_bytes(whole + b"{" + b"x" * (torn - 1))
    assert list(read_rows([path]).values()) == rows[:1]
    with RowWriter(path) as writer:
        assert path.read_bytes() == whole
        writer.write(rows[1])
    assert list(read_rows([path]).values()) == rows[:2]


def test_every_cut_of_a_file_reads_as_its_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with RowWriter(path) as writer:
        for seed in range(2):
            writer.write(row(seed))
    data = path.read_bytes()
    for end in range(0, len(data) + 1, 7):
        path.write_bytes(data[:end])
        assert len(read_rows([path])) == data[:end].count(b"\n")


def test_a_file_of_one_torn_line_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"no newline")
    with RowWriter(path):
        assert path.read_bytes() == b""


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(row(0).to_json() + "\n{}\n" + row(1).to_json() + "\n")
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: .*missing fields"):
        read_rows([path])


def test_two_results_for_one_key_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, detected in zip(paths, (True, False), strict=True):
        path.write_text(row(detected=detected).to_json() + "\n")
    with pytest.raises(DataError, match=r"b\.jsonl, line 1: another result than \S*a\.jsonl, line 1 for trial"):
        read_rows(paths)


def test_the_same_result_elsewhere_and_slower_is_one_row(tmp_path: Path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    paths[0].write_text(row(cost_seconds=1.0).to_json() + "\n")
    paths[1].write_text(row(cost_seconds=2.0, machine="other").to_json() + "\n")
    assert [each.cost_seconds for each in read_rows(paths).values()] == [1.0]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_result_supersedes_an_error(tmp_path: Path, order: tuple[int, int]) -> None:
    rows = [row(), row(detected=None, check=None, error="killed")]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(rows[i].to_json() + "\n" for i in order))
    assert list(read_rows([path]).values()) == rows[:1]


def test_resume_is_planned_minus_present(tmp_path: Path) -> None:
    good, failed = row(0), row(1, detected=None, error="x")
    planned = [row(seed).key for seed in (2, 1, 0, 3)]
    rows = {each.key: each for each in (good, failed)}
    assert missing(planned, rows) == [row(2).key, row(3).key]
    assert missing(planned, rows, retry_errors=True) == [row(2).key, row(1).key, row(3).key]
