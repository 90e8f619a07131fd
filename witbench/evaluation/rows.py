"""The row of a trial, and the append-only files that hold rows.

A trial is a pure function of its resolved config, its seed and the versions that matter; its key is the hash of these.
Truth is JSON lines: one writer a file, whole lines, flushed to the disk before the next trial starts. To resume is to
run the planned trials whose key is not there yet, whatever stopped the run before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from witbench.errors import ConfigError, DataError
from witbench.evaluation.law import Plan, conditional

KEY_SCHEME = 1
"""Version of `trial_key`; raise it when the same trial would get another key."""

Estimator = Literal["conditional", "raw"]


@dataclass(frozen=True)
class Row:
    """One trial.

    Attributes:
        key: `trial_key` of the trial, 32 hex digits.
        attack: name of the attack; `none` for an honest run.
        placement: label of the placement; `none` for an honest run.
        amount: positions touched.
        protocol: preset of the protocol.
        sketch: sketch design.
        model: model preset.
        p: probability of a challenge.
        L: updates of a unit.
        tau: tolerance, the largest of the groups; None in `exact` mode.
        updates: T, updates of the run.
        tokens: target tokens of an update.
        seed: of the trial.
        estimator: `raw` (a whole run with its coins) or `conditional` (all coins averaged).
        detected: raw: whether the run was rejected; None otherwise and after an error.
        probability: conditional: 1 - prod(1 - p_t v_t); None otherwise and after an error.
        check: name of the first failing check, if any.
        units: 1-based units whose v was measured; the v of all others is 0.
        v: detectability of each of `units`.
        payload: what the attack achieved, by measure; empty when nothing was measured.
        cost_gradients: gradient evaluations over those of honest training.
        cost_seconds: seconds of the trial.
        clusters: what trials share, such as the training run and the key; `run` is the statistical cluster.
        versions: library versions the result may depend on.
        commit: of the working tree, empty outside one.
        dirty: whether the tree had changes.
        machine: where it ran.
        error: why there is no result; None when there is one.
        key_scheme: version of the key.
    """

    key: str
    attack: str
    placement: str
    amount: int
    protocol: str
    sketch: str
    model: str
    p: float
    L: int
    tau: float | None
    updates: int
    tokens: int
    seed: int
    estimator: Estimator
    detected: bool | None = None
    probability: float | None = None
    check: str | None = None
    units: tuple[int, ...] = ()
    v: tuple[float, ...] = ()
    payload: Mapping[str, float] = field(default_factory=dict)
    cost_gradients: float = 0.0
    cost_seconds: float = 0.0
    clusters: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    dirty: bool = False
    machine: str = ""
    error: str | None = None
    key_scheme: int = KEY_SCHEME

    def __post_init__(self) -> None:
        if self.estimator not in ("raw", "conditional"):
            raise DataError(f"row {self.key}: estimator={self.estimator!r}, allowed are raw and conditional")
        result = self.detected if self.estimator == "raw" else self.probability
        other = self.probability if self.estimator == "raw" else self.detected
        if (result is None) == (self.error is None) or other is not None:
            raise DataError(f"row {self.key}: a {self.estimator} row holds its result or an error, and only that")
        if len(self.units) != len(self.v):
            raise DataError(f"row {self.key}: {len(self.units)} units but {len(self.v)} values of v")

    @property
    def plan(self) -> Plan:
        """How the run is cut."""
        return Plan(self.updates, self.L, self.tokens)

    @property
    def ideal(self) -> float:
        """Detection probability had every measured unit v = 1; 1 when none was measured."""
        return conditional(self.plan, self.p, self.units, [1.0] * len(self.units)) if self.units else 1.0

    @property
    def cluster(self) -> str:
        """The training run the trial shares with others; the trial itself when it shares none."""
        return self.clusters.get("run", self.key)

    def outcome(self) -> tuple[object, ...]:
        """What two runs of one trial must agree on; costs, machine and commit may differ."""
        return self.detected, self.probability, self.check, self.units, self.v, dict(self.payload)

    def to_json(self) -> str:
        """One line of canonical JSON, without its newline."""
        return canonical_json({name: getattr(self, name) for name in FIELDS})

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """Parse one line.

        Raises:
            DataError: not JSON, or not the fields of a row with values of their types.
        """
        try:
            plain = _DECODER.decode(line if isinstance(line, str) else line.decode())
        except (ValueError, RecursionError) as error:
            raise DataError(f"not a line of JSON: {error}") from error
        if not isinstance(plain, dict):
            raise DataError("a row is a JSON object")
        if plain.keys() != FIELDS.keys():
            unknown, missing = sorted(plain.keys() - FIELDS.keys()), sorted(FIELDS.keys() - plain.keys())
            raise DataError(f"not a row of this version: unknown fields {unknown}, missing fields {missing}")
        for name, kind in FIELDS.items():
            if not _fits(plain[name], kind):
                raise DataError(f"{name}={plain[name]!r}: must be {kind}")
        plain["units"], plain["v"] = tuple(plain["units"]), tuple(plain["v"])
        return cls(**plain)


FIELDS: dict[str, str] = {each.name: str(each.type) for each in dataclasses.fields(Row)}
"""Field -> its type, as it is written in the class."""

# Exact types: True is no number here.
_PLAIN: dict[str, frozenset[type]] = {
    "str": frozenset({str}),
    "Estimator": frozenset({str}),
    "str | None": frozenset({str, type(None)}),
    "int": frozenset({int}),
    "float": frozenset({float, int}),
    "float | None": frozenset({float, int, type(None)}),
    "bool": frozenset({bool}),
    "bool | None": frozenset({bool, type(None)}),
}
_LISTS: dict[str, frozenset[type]] = {
    "tuple[int, ...]": _PLAIN["int"],
    "tuple[float, ...]": _PLAIN["float"],
}
_MAPPINGS: dict[str, frozenset[type]] = {
    "Mapping[str, float]": _PLAIN["float"],
    "Mapping[str, str]": _PLAIN["str"],
}


def _fits(value: Any, kind: str) -> bool:
    """Whether a value out of JSON is of a field's type."""
    if kind in _PLAIN:
        return type(value) in _PLAIN[kind]
    if kind in _LISTS:
        return type(value) is list and all(type(each) in _LISTS[kind] for each in value)
    return type(value) is dict and all(type(each) in _MAPPINGS[kind] for each in value.values())


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no blanks; NaN, infinities and keys that are not text are refused."""
    _check_plain(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def trial_key(config: Mapping[str, Any], seed: int, versions: Mapping[str, str]) -> str:
    """BLAKE2b-128 of the canonical JSON of config, seed, versions and key scheme, in hex.

    Args:
        config: resolved config of the trial, JSON values only; it must not name devices or paths.
        seed: of the trial.
        versions: of the libraries and of witbench, as far as the result depends on them.
    """
    identity = {"config": config, "seed": seed, "versions": versions, "key_scheme": KEY_SCHEME}
    return hashlib.blake2b(canonical_json(identity).encode(), digest_size=16).hexdigest()


class RowWriter:
    """Appends rows to one file, each durable when `write` returns; use as a context manager.

    A torn last line, left by a kill or a full disk, is cut off on opening.

    Raises:
        ConfigError: another process writes the file.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: what a failed write leaves in a buffer would reach the file when it is closed.
        self._file = FileIO(path, "a+")
        _sync_folder(path.parent)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise ConfigError(f"{path}: another process is writing it; give each process its own file") from error
        _cut_torn_line(self._file)

    def write(self, row: Row) -> None:
        """Append one row, whole, and wait until it is on the disk.

        Raises:
            OSError: the disk is full or gone; the file keeps its whole lines.
        """
        self.write_all((row,))

    def write_all(self, rows: Iterable[Row]) -> None:
        """Append rows with one wait for the disk: all of them, or none when anything fails.

        Only a kill or a power cut on the way can leave some of them, whole and in order; none of them was promised.

        Raises:
            OSError: the disk is full or gone; the file is as it was.
        """
        # An error's message may hold what UTF-8 does not: half a character is no reason to lose its row.
        rest = memoryview(b"".join(row.to_json().encode(errors="replace") + b"\n" for row in rows))
        start = self._file.seek(0, os.SEEK_END)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except BaseException:  # Ctrl-C between two parts of a line too
            self._undo(start)
            raise

    def _undo(self, start: int) -> None:
        """Cut off what a failed write left."""
        try:
            self._file.truncate(start)
        except OSError:
            # A line after a torn one would be lost with it: write no more, the next opening cuts it off.
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file; every row is on the disk already."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


Found = tuple[Path, str, int, Row]
"""A row and where it is: file, what the file is counted in, number from 1."""


def read_rows(paths: Iterable[Path]) -> dict[str, Row]:
    """Rows of several files by key; a torn last line of a file is skipped, a result supersedes an error.

    Raises:
        DataError: a line that is not a row, or two different results for one key.
    """
    return merge_rows(found for path in paths for found in find_rows(path))


def find_rows(path: Path) -> Iterator[Found]:
    """Rows of one file in their order, a torn last line skipped.

    Raises:
        DataError: a line that is not a row.
    """
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            yield path, "line", number, Row.from_json(line)
        except DataError as error:
            raise DataError(f"{path}, line {number}: {error}") from error


def merge_rows(found: Iterable[Found]) -> dict[str, Row]:
    """Rows by key: the same result twice is one row, the first; a result supersedes an error.

    Raises:
        DataError: two different results for one key; names both places.
    """
    kept: dict[str, Found] = {}
    for each in found:
        row = each[3]
        before = kept.get(row.key)
        if before is None:
            kept[row.key] = each
            continue
        present = before[3]
        if None is present.error and None is row.error:
            if present.outcome() != row.outcome():
                raise DataError(
                    f"{_place(each)}: another result than {_place(before)} for trial {row.key}; a trial is not a "
                    "function of its key, find out why and remove one of the two files"
                )
        elif present.error is not None:
            kept[row.key] = each
    return {key: each[3] for key, each in kept.items()}


def _place(found: Found) -> str:
    path, counted, number, _ = found
    return f"{path}, {counted} {number}"


def missing(planned: Sequence[str], rows: Mapping[str, Row], *, retry_errors: bool = False) -> list[str]:
    """Keys that are planned and not present, in the planned order; with `retry_errors` also those that failed."""
    return [key for key in planned if key not in rows or (retry_errors and rows[key].error is not None)]


def _whole_lines(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def _sync_folder(folder: Path) -> None:
    """Make a new file's name durable, as its lines will be; some network file systems do not offer it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cut_torn_line(file: FileIO) -> None:
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 65536)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    file.truncate(end)


def _check_plain(value: object) -> None:
    if value is None or type(value) in (str, int, bool):  # most values, by the quickest test
        return
    if isinstance(value, Mapping):
        for name, each in value.items():
            if not isinstance(name, str):
                raise ConfigError(f"key {name!r}: keys of a config are text")
            _check_plain(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_plain(each)
    elif not isinstance(value, str | int | float | bool | None):
        raise ConfigError(f"{value!r}: a config holds JSON values only")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{value}: a config holds finite numbers only")
