"""Rows of a study at rest: shards of JSON lines while it runs, one Parquet file once they are collected.

Shards are the truth, one writer each; a Parquet file is folded from them and can be made again at any time. Queries run
in memory, so that no database file is ever shared.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from witbench.errors import DataError
from witbench.evaluation.rows import Row, read_rows

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

PARQUET = "rows.parquet"
SHARDS = "shards"
_MAPS = {"payload": float, "clusters": str, "versions": str}
_LISTS = {"units": int, "v": float}
_PLAIN = {
    "key": str,
    "attack": str,
    "placement": str,
    "amount": int,
    "protocol": str,
    "sketch": str,
    "model": str,
    "p": float,
    "L": int,
    "tau": float,
    "updates": int,
    "tokens": int,
    "seed": int,
    "estimator": str,
    "detected": bool,
    "probability": float,
    "check": str,
    "cost_gradients": float,
    "cost_seconds": float,
    "commit": str,
    "dirty": bool,
    "machine": str,
    "error": str,
    "key_scheme": int,
}


def shards(folder: Path) -> list[Path]:
    """The row files of a study's folder."""
    return sorted((folder / SHARDS).glob("*.jsonl"))


def read_study(path: Path) -> list[Row]:
    """Rows of a study's folder, of one shard or of one Parquet file, by key.

    A folder's shards are read where it has any, its Parquet file otherwise.

    Raises:
        DataError: nothing there, a file that holds no rows, or two different results for one trial.
    """
    if path.is_dir():
        found = shards(path)
        if found:
            return _sorted(read_rows(found).values())
        if (path / PARQUET).is_file():
            return _from_parquet(path / PARQUET)
        raise DataError(f"{path}: holds no rows; give the folder of a study, or its {PARQUET}")
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder")
    return _from_parquet(path) if path.suffix == ".parquet" else _sorted(read_rows([path]).values())


def read_studies(paths: Sequence[Path]) -> list[Row]:
    """Rows of several studies together; the same trial may stand in more than one of them.

    Raises:
        DataError: see `read_study`.
    """
    rows: dict[str, Row] = {}
    for path in paths:
        for row in read_study(path):
            known = rows.setdefault(row.key, row)
            if known.error is None and row.error is None and known.outcome() != row.outcome():
                raise DataError(f"{path}: another result than before for trial {row.key}; find out why")
            if known.error is not None:
                rows[row.key] = row
    return _sorted(rows.values())


def collect(folder: Path) -> Path:
    """Fold the shards of a study into one Parquet file beside them; it appears whole, and the same for the same rows.

    Raises:
        DataError: there are no shards, or they contradict each other.
    """
    import pyarrow.parquet as pq

    found = shards(folder)
    if not found:
        raise DataError(f"{folder}: holds no shards to collect")
    path = folder / PARQUET
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        pq.write_table(_table(_sorted(read_rows(found).values())), temporary, compression="zstd")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def load_rows(path: str | Path) -> pd.DataFrame:
    """Rows as a data frame, one line a trial: of a study's folder, a shard or a Parquet file.

    Raises:
        DataError: see `read_study`.
    """
    import pandas as pd

    frame: pd.DataFrame = _table(read_study(Path(path))).to_pandas()
    for name in _MAPS:
        frame[name] = pd.Series([dict(pairs) for pairs in frame[name]], index=frame.index, dtype=object)
    return frame


def query(path: str | Path, sql: str) -> pd.DataFrame:
    """The answer of DuckDB to a query on the table `rows`; maps and lists are columns of those types.

    Raises:
        DataError: see `read_study`; or the query is wrong.
    """
    import duckdb

    with duckdb.connect(":memory:") as connection:
        connection.register("rows", _table(read_study(Path(path))))
        try:
            return connection.execute(sql).df()
        except duckdb.Error as error:
            raise DataError(f"query: {str(error).partition(chr(10))[0]}") from None


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.key)


def _table(rows: Sequence[Row]) -> pa.Table:
    import pyarrow as pa

    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    fields = []
    for each in dataclasses.fields(Row):
        if each.name in _MAPS:
            kind: Any = pa.map_(pa.string(), types[_MAPS[each.name]])
        elif each.name in _LISTS:
            kind = pa.list_(types[_LISTS[each.name]])
        else:
            kind = types[_PLAIN[each.name]]
        fields.append(pa.field(each.name, kind))
    columns: dict[str, list[Any]] = {}
    for each in dataclasses.fields(Row):
        values: list[Any] = [getattr(row, each.name) for row in rows]
        if each.name in _MAPS:
            values = [sorted(value.items()) for value in values]
        columns[each.name] = values
    return pa.table(columns, schema=pa.schema(fields))


def _from_parquet(path: Path) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        plain: Sequence[Mapping[str, Any]] = pq.read_table(path).to_pylist()
        rows = [_row(each) for each in plain]
    except (pa.ArrowException, OSError, TypeError, KeyError, ValueError) as error:
        raise DataError(f"{path}: holds no rows of this version ({str(error).partition(chr(10))[0]})") from None
    return _sorted(rows)


def _row(plain: Mapping[str, Any]) -> Row:
    maps = {name: dict(plain[name]) for name in _MAPS}
    lists = {name: tuple(plain[name]) for name in _LISTS}
    return Row(**{**plain, **maps, **lists})
