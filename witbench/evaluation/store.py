"""A trial store: a folder of shards, its Parquet file, and questions to either.

A store is a folder with `shards/*.jsonl`, one writer a file (a single `rows.jsonl` is a store too). The shards are the
truth. `collect` folds them into `rows.parquet`, which is derived and read only where there are no shards, or by name.

In Parquet and data frames `units` and `v` are lists, `payload`, `clusters` and `versions` maps from text, sorted by
their keys; all other fields are scalars, null where a row has None. Floats keep their bits. The same rows give the same
bytes under the same version of pyarrow.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from witbench.errors import ConfigError, DataError
from witbench.evaluation.rows import FIELDS, Found, Row, find_rows, merge_rows

# Reading shards alone needs none of them, and each takes a while to import.
if TYPE_CHECKING:
    import duckdb
    import pandas
    import pyarrow

PARQUET = "rows.parquet"
SHARDS = "shards"
_ROW_GROUP = 65536
_SEALED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",
    "lock_configuration": "true",
}


def shards(folder: Path) -> list[Path]:
    """The files of JSON lines of a store's folder, in the order of their names; none when it has none."""
    single = folder / "rows.jsonl"
    return [*sorted((folder / SHARDS).glob("*.jsonl")), *([single] if single.is_file() else [])]


def store_files(path: Path) -> list[Path]:
    """The files that hold the rows of a store, in the order of their names.

    Args:
        path: a store's folder, or one file of rows, .jsonl or .parquet.

    Raises:
        ConfigError: there is no such thing, or it holds no rows.
    """
    if path.is_dir():
        found = shards(path)
        if not found and (path / PARQUET).is_file():
            return [path / PARQUET]
        if not found:
            raise ConfigError(f"{path}: no rows in this folder; a store has shards/*.jsonl, rows.jsonl or {PARQUET}")
        return found
    if not path.exists():
        raise ConfigError(f"{path}: no such file or folder")
    if path.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"{path}: no file of rows; give a store's folder, a .jsonl or a .parquet file")
    return [path]


def read_store(paths: Iterable[Path]) -> dict[str, Row]:
    """Rows of several stores or files by key; the same result in two places is one row.

    Raises:
        ConfigError: a path that is no store.
        DataError: a line that is no row, a Parquet file of something else, two different results for one key.
    """
    return merge_rows(found for path in paths for file in store_files(path) for found in _find(file))


def read_study(path: Path) -> list[Row]:
    """Rows of one store in the order of their keys; raises as `read_store`."""
    return sorted(read_store([path]).values(), key=lambda row: row.key)


def collect(folder: Path) -> Path:
    """Fold the shards of a store into its Parquet file, which is replaced whole; returns its path.

    Raises:
        ConfigError: there are no shards.
        DataError: as `read_store`; or the Parquet file there is has rows that no shard has, and would lose them.
    """
    found = shards(folder)
    if not found:
        raise ConfigError(f"{folder}: nothing to collect; a store's folder has shards/*.jsonl or rows.jsonl")
    rows = read_store(found)
    target = folder / PARQUET
    if target.exists():
        lost = {str(key) for key in _read(target, ["key"])["key"].to_pylist()} - rows.keys()
        if lost:
            raise DataError(
                f"{target}: holds {len(lost)} rows that no shard has, such as {min(lost)}; "
                "put their shards back, or move the file away if they are not wanted"
            )
    _write(rows.values(), target)
    return target


def rows_from_parquet(path: Path) -> list[Row]:
    """Rows of a Parquet file, equal to those that `collect` was given.

    Raises:
        DataError: not a Parquet file, or one of something else.
    """
    return [row for _, _, _, row in _find_parquet(path)]


def load_rows(path: str | Path) -> pandas.DataFrame:
    """Rows as a data frame, one row a trial, one column a field of `witbench.evaluation.rows.Row`.

    Args:
        path: a store's folder, or one file of rows, .jsonl or .parquet.

    Raises:
        ConfigError: no such store.
        DataError: its files hold something else, or two different results for one trial.
    """
    import pandas
    import pyarrow

    def nullable(kind: pyarrow.DataType) -> pandas.BooleanDtype | None:
        return pandas.BooleanDtype() if kind == pyarrow.bool_() else None

    frame: pandas.DataFrame = _table(path).to_pandas(types_mapper=nullable, maps_as_pydicts="strict")
    return frame


def query(path: str | Path, sql: str) -> pandas.DataFrame:
    """Answer of DuckDB to a question about the table `rows`, in memory: it reads and writes no other file.

    Args:
        path: as of `load_rows`.
        sql: such as "SELECT placement, avg(probability) FROM rows WHERE p = 0.01 GROUP BY placement". The column check
            has the name of a word of SQL: write "check", with the quotes.

    Raises:
        ConfigError: DuckDB does not accept the SQL.
    """
    with _answer(_table(path), sql) as answer:
        frame: pandas.DataFrame = answer.df()
    return frame


def select(rows: Mapping[str, Row], where: str) -> dict[str, Row]:
    """Those of the rows for which a condition in SQL holds, in their order.

    Raises:
        ConfigError: DuckDB does not accept the condition.
    """
    sql = f"SELECT key FROM rows WHERE ({where})"  # noqa: S608 - it can only read
    with _answer(_to_table(rows.values()), sql) as answer:
        keys = {key for (key,) in answer.fetchall()}
    return {key: row for key, row in rows.items() if key in keys}


def _find(file: Path) -> Iterator[Found]:
    return _find_parquet(file) if file.suffix == ".parquet" else find_rows(file)


def _find_parquet(path: Path) -> Iterator[Found]:
    table = _read(path)
    columns = [_plain(name, table[name].to_pylist()) for name in FIELDS]
    for number, values in enumerate(zip(*columns, strict=True), start=1):
        try:
            yield path, "row", number, Row(*values)
        except DataError as error:
            raise DataError(f"{path}, row {number}: {error}") from error


def _plain(name: str, values: list[Any]) -> list[Any]:
    """A column's values as a row holds them."""
    if FIELDS[name].startswith("tuple"):
        return [tuple(each) for each in values]
    return [dict(each) for each in values] if FIELDS[name].startswith("Mapping") else values


def _schema() -> pyarrow.Schema:
    import pyarrow as pa

    text, whole, number = pa.string(), pa.int64(), pa.float64()
    kinds = {
        "str": text,
        "Estimator": text,
        "int": whole,
        "float": number,
        "bool": pa.bool_(),
        "tuple[int, ...]": pa.list_(whole),
        "tuple[float, ...]": pa.list_(number),
        "Mapping[str, float]": pa.map_(text, number),
        "Mapping[str, str]": pa.map_(text, text),
    }
    fields = [(name, kind.removesuffix(" | None"), kind.endswith(" | None")) for name, kind in FIELDS.items()]
    return pa.schema([pa.field(name, kinds[kind], nullable=nullable) for name, kind, nullable in fields])


def _to_table(rows: Collection[Row]) -> pyarrow.Table:
    import pyarrow as pa

    arrays = []
    for field in _schema():
        values = [getattr(row, field.name) for row in rows]
        if pa.types.is_map(field.type):
            values = [sorted(each.items()) for each in values]
        try:
            arrays.append(pa.array(values, type=field.type))
        except (pa.ArrowException, OverflowError) as error:
            raise DataError(f"{field.name}: a row's value does not fit {field.type}: {error}") from error
    return pa.table(arrays, schema=_schema())


def _write(rows: Collection[Row], target: Path) -> None:
    """Write sorted rows beside the target and put them in its place at once, so that no reader sees half a file."""
    import pyarrow.parquet as pq

    table = _to_table(sorted(rows, key=lambda row: row.key))
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with open(aside, "wb") as file:
            pq.write_table(table, file, compression="zstd", row_group_size=_ROW_GROUP)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def _read(path: Path, columns: Sequence[str] | None = None) -> pyarrow.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open(path, "rb") as raw:
        try:
            with pq.ParquetFile(raw) as file:
                same = file.schema_arrow.equals(_schema())
                table = file.read(None if columns is None else list(columns)) if same else None
        except (pa.ArrowException, OSError) as error:  # a page that cannot be unpacked is an OSError of pyarrow
            raise DataError(f"{path}: not a Parquet file that can be read; collect its store again") from error
    if table is None:
        raise DataError(f"{path}: not rows of this version; collect its store again")
    return table


def _table(path: str | Path) -> pyarrow.Table:
    files = store_files(Path(path).expanduser())
    if len(files) == 1 and files[0].suffix == ".parquet":
        return _read(files[0])
    return _to_table(read_store(files).values())


@contextmanager
def _answer(table: pyarrow.Table, sql: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """An answer to fetch, of a database in memory that knows the rows and no files, variables or network."""
    import duckdb

    with duckdb.connect(":memory:", config=_SEALED) as connection:
        connection.register("rows", table)
        try:
            answer = connection.execute(sql)
            if answer is None or answer.description is None:
                raise ConfigError(f"{sql or 'the SQL'}: asks for nothing; it must be a SELECT")
            yield answer
        except duckdb.Error as error:
            reason = " ".join(str(error).partition("LINE 1:")[0].split())
            raise ConfigError(f"{sql}: {reason} (columns: {', '.join(FIELDS)})") from None
