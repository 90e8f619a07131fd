"""Stores: shards folded into Parquet and back without a bit lost, data frames, and questions in SQL."""

from __future__ import annotations

import dataclasses
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import witbench
from tests.evaluation.samples import row
from witbench.errors import ConfigError, DataError
from witbench.evaluation import store
from witbench.evaluation.rows import FIELDS, Row, RowWriter, missing, trial_key
from witbench.evaluation.store import (
    collect,
    load_rows,
    query,
    read_store,
    read_study,
    rows_from_parquet,
    select,
    store_files,
)
from witbench.evaluation.summary import summarise

CONDITIONAL: dict[str, Any] = {"estimator": "conditional", "detected": None, "check": None}


def shard(folder: Path, name: str, *rows: Row) -> Path:
    with RowWriter(folder / "shards" / name) as writer:
        writer.write_all(rows)
    return folder


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A store with a row of every kind."""
    shard(tmp_path, "a.jsonl", row(0), row(1, detected=False, check=None, payload={}))
    shard(tmp_path, "b.jsonl", row(2, **CONDITIONAL, probability=0.19, units=(3, 64), v=(1.0, 0.5), tau=1e-4, p=0.2))
    shard(tmp_path, "c.jsonl", row(3, detected=None, check=None, error="DataError: none\nsecond line"))
    return tmp_path


def test_collected_rows_come_back_equal_in_the_order_of_their_keys(kept: Path) -> None:
    path = collect(kept)
    assert path == kept / "rows.parquet"
    assert rows_from_parquet(path) == read_study(kept)
    assert [each.to_json() for each in rows_from_parquet(path)] == [each.to_json() for each in read_study(kept)]


number = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    st.lists(number, max_size=5),
    st.dictionaries(text, number),
    st.dictionaries(text, text),
    number,
    st.none() | text,
    st.integers(-(2**63), 2**63 - 1),
)
def test_every_bit_and_every_none_survives(
    v: list[float],
    payload: dict[str, float],
    clusters: dict[str, str],
    probability: float,
    check: str | None,
    seed: int,
) -> None:
    changes = {**CONDITIONAL, "check": check, "probability": probability, "payload": payload, "clusters": clusters}
    first = row(0, **changes, units=tuple(range(1, len(v) + 1)), v=tuple(v))
    first = dataclasses.replace(first, key="b", seed=seed, tau=probability)
    other = dataclasses.replace(first, key="a", tau=None)
    # In memory, because hypothesis forbids a folder a test; the same two steps as to a file.
    sink = pyarrow.BufferOutputStream()
    pq.write_table(store._to_table([other, first]), sink)
    table = pq.read_table(sink.getvalue())
    columns = [store._plain(name, table[name].to_pylist()) for name in FIELDS]
    back = [Row(*values) for values in zip(*columns, strict=True)]
    assert back == [other, first]
    assert back[0].tau is None
    for mine, theirs in zip((*back[1].v, back[1].probability), (*v, probability), strict=True):
        assert struct.pack("d", mine) == struct.pack("d", theirs)


def test_the_same_rows_give_the_same_bytes_whatever_their_shards(tmp_path: Path) -> None:
    rows = [row(seed) for seed in range(40)]
    one = collect(shard(tmp_path / "one", "a.jsonl", *rows))
    shard(tmp_path / "two", "x.jsonl", *reversed(rows[:25]))
    two = collect(shard(tmp_path / "two", "y.jsonl", *rows[20:]))
    assert one.read_bytes() == two.read_bytes()
    before = two.read_bytes()
    assert collect(tmp_path / "two").read_bytes() == before


def test_the_file_is_zstandard_with_lists_and_maps_and_says_what_may_be_null(kept: Path) -> None:
    with pq.ParquetFile(collect(kept)) as file:
        schema = file.schema_arrow
        assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert schema.names == [field.name for field in dataclasses.fields(Row)]
    assert pyarrow.types.is_list(schema.field("v").type)
    assert pyarrow.types.is_map(schema.field("payload").type)
    nullable = {field.name for field in schema if field.nullable}
    assert nullable == {"tau", "detected", "probability", "check", "error"}


def test_a_collect_cut_short_leaves_the_old_file_and_nothing_else(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = collect(kept)
    before = path.read_bytes()
    shard(kept, "d.jsonl", row(9))

    def full(table: object, file: Any, **settings: object) -> None:
        file.write(b"PAR1")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", full)
        with pytest.raises(OSError, match="No space"):
            collect(kept)
    assert path.read_bytes() == before
    assert sorted(each.name for each in kept.iterdir()) == ["rows.parquet", "shards"]
    assert len(rows_from_parquet(collect(kept))) == 5


def test_collect_never_drops_rows_whose_shard_is_gone(kept: Path) -> None:
    path = collect(kept)
    before = path.read_bytes()
    (kept / "shards" / "b.jsonl").unlink()
    with pytest.raises(DataError, match=r"rows\.parquet: holds 1 rows that no shard has, such as \w{32}; put"):
        collect(kept)
    assert path.read_bytes() == before
    path.unlink()
    assert len(rows_from_parquet(collect(kept))) == 3


def test_shards_are_the_truth_and_parquet_stands_in_where_there_are_none(kept: Path) -> None:
    path = collect(kept)
    shard(kept, "d.jsonl", row(9))
    assert len(load_rows(kept)) == 5
    assert len(load_rows(path)) == 4
    for each in (kept / "shards").iterdir():
        each.unlink()
    assert store_files(kept) == [path]
    assert len(load_rows(kept)) == 4


def test_a_folder_with_rows_jsonl_is_a_store_and_stores_are_merged(kept: Path, tmp_path: Path) -> None:
    bench = tmp_path / "bench"
    with RowWriter(bench / "rows.jsonl") as writer:
        writer.write_all([row(0), row(50)])
    path = collect(kept)
    assert sorted(each.seed for each in read_store([kept, bench, path]).values()) == [0, 1, 2, 3, 50]
    with RowWriter(bench / "rows.jsonl") as writer:
        writer.write(row(2, **CONDITIONAL, probability=0.2))
    with pytest.raises(DataError, match=r"rows\.parquet, row \d: another result than \S*bench/rows\.jsonl, line 3"):
        read_store([bench, path])


def test_frames_of_every_source_are_the_same(kept: Path) -> None:
    path = collect(kept)
    frame = load_rows(path)
    from_shards = load_rows(str(kept)).sort_values("key", ignore_index=True)
    pandas.testing.assert_frame_equal(frame, from_shards)
    (kept / "all.jsonl").write_bytes(b"".join(each.read_bytes() for each in (kept / "shards").iterdir()))
    assert len(load_rows(kept / "all.jsonl")) == 4
    assert list(frame.columns) == list(FIELDS)
    frame = frame.set_index("seed")
    assert frame["detected"].dtype == "boolean"
    assert frame["detected"].sum() == 1
    assert frame["probability"].sum() == 0.19
    assert frame.loc[0, "payload"] == {"loss": 0.25}
    assert list(frame.loc[2, "v"]) == [1.0, 0.5]
    assert pandas.isna(frame.loc[0, "tau"])


def test_witbench_load_rows_costs_nothing_until_it_is_called(kept: Path) -> None:
    assert len(witbench.load_rows(str(kept))) == 4
    code = (
        "import sys, witbench; heavy = ('pandas', 'pyarrow', 'duckdb', 'numpy', 'torch')\n"
        "assert not [name for name in heavy if name in sys.modules]\n"
        "assert len(witbench.load_rows(sys.argv[1])) == 4\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(kept)], check=True)


def test_reading_shards_alone_needs_neither_pandas_nor_pyarrow(kept: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from witbench.evaluation.store import read_store\n"
        "assert len(read_store([Path(sys.argv[1])])) == 4\n"
        "assert not [name for name in ('pandas', 'pyarrow', 'duckdb', 'torch') if name in sys.modules]"
    )
    subprocess.run([sys.executable, "-c", code, str(kept)], check=True)


def test_a_query_sees_lists_maps_and_nulls(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = kept / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    for path in (kept, collect(kept)):
        sql = "SELECT seed, payload['loss'] AS loss, list_sum(v) AS v FROM rows WHERE \"check\" IS NOT NULL OR p > 0.1"
        got = query(path, sql + " ORDER BY seed")
        assert got["seed"].tolist() == [0, 2]
        assert got["loss"].tolist() == [0.25, 0.25]
        assert query(path, "SELECT count(*) AS n FROM rows WHERE error IS NULL")["n"].tolist() == [3]
    assert list(work.iterdir()) == [], "no database file"


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT nope FROM rows", "nope.*columns: key, attack"),
        ("SELEC 1", "syntax error"),
        ("SELECT CAST(attack AS INTEGER) FROM rows", "Conversion"),
        ("COPY rows TO 'stolen.csv'", "Permission"),
        ("SELECT * FROM read_csv('/etc/passwd')", "Permission"),
        ("ATTACH 'new.db'", "Permission"),
        ("SELECT * FROM kept", "does not exist"),
        ("SET enable_external_access = true", "locked|Cannot change"),
        ("", "must be a SELECT"),
    ],
)
def test_a_query_that_fails_or_reaches_out_is_refused(sql: str, says: str, kept: Path) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        query(kept, sql)
    assert "\n" not in str(caught.value)


def test_select_keeps_the_order(kept: Path) -> None:
    rows = read_store([kept])
    assert [each.seed for each in select(rows, "seed <> 1").values()] == [0, 2, 3]
    assert select(rows, "payload['loss'] > 1") == {}
    with pytest.raises(ConfigError, match="nope"):
        select(rows, "nope = 1")


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "rows.jsonl").mkdir()
    for path, says in (
        (tmp_path, "no rows in this folder; a store has shards"),
        (tmp_path / "nothing", "no such file or folder"),
        (tmp_path / "notes.txt", "no file of rows; give"),
    ):
        with pytest.raises(ConfigError, match=says):
            store_files(path)
        with pytest.raises(ConfigError, match=r"nothing to collect"):
            collect(path)


@pytest.mark.parametrize("kind", ["text", "cut", "spoiled", "foreign"])
def test_a_parquet_file_of_something_else_is_a_data_error(kind: str, kept: Path) -> None:
    path = collect(kept)
    data = path.read_bytes()
    if kind == "foreign":
        pq.write_table(pyarrow.table({"key": ["a"], "score": [1.0]}), path)
    else:
        path.write_bytes({"text": b"hello", "cut": data[:-9], "spoiled": data[:4] + b"\xff" * 400 + data[404:]}[kind])
    for read in (rows_from_parquet, load_rows, lambda each: read_store([each])):
        with pytest.raises(DataError, match=r"rows\.parquet: not .*collect its store again"):
            read(path)


def test_a_number_that_no_column_holds_is_a_data_error(tmp_path: Path) -> None:
    shard(tmp_path, "a.jsonl", row(2**70))
    with pytest.raises(DataError, match="seed: a row's value does not fit int64"):
        collect(tmp_path)
    assert not (tmp_path / "rows.parquet").exists()


@pytest.mark.slow
def test_ten_thousand_rows_are_planned_read_folded_and_summarised_in_seconds(tmp_path: Path) -> None:
    config = {"attack": {"name": "substitution", "params": {f"knob{i}": i / 7 for i in range(60)}}}
    keys = [trial_key(config, seed, {"torch": "2", "numpy": "2"}) for seed in range(10_000)]
    rows = [
        row(
            seed,
            **CONDITIONAL,
            key=key,
            amount=1 + seed % 50,
            p=0.01 * (1 + seed % 4),
            probability=seed % 97 / 97,
            units=tuple(range(1, 60)),
            v=(1.0,) * 59,
            clusters={"run": str(seed % 300)},
        )
        for seed, key in enumerate(keys)
    ]
    shard(tmp_path, "a.jsonl", *rows)
    # Processor time: how busy the machine is otherwise does not count.
    start = time.process_time()
    planned = [trial_key(config, seed, {"torch": "2", "numpy": "2"}) for seed in range(10_000)]
    present = read_store([tmp_path])
    assert missing(planned, present) == []
    assert len(summarise(present.values())) == 100
    assert time.process_time() - start < 5
    start = time.process_time()
    assert len(load_rows(collect(tmp_path))) == 10_000
    assert time.process_time() - start < 5
