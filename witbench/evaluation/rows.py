"""The row of a trial, and the append-only files that hold rows.

A trial is a pure function of its resolved config, its seed and the versions that matter; its key is the hash of these.
Truth is JSON lines: one writer a file, whole lines, flushed to the disk before the next trial starts. To resume is to
run the planned trials whose key is not there yet, whatever stopped the run before.
"""

from __future__ import annotations

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
        return canonical_json(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """Parse one line.

        Raises:
            DataError: not JSON, or not the fields of a row.
        """
        try:
            plain = json.loads(line)
        except ValueError as error:
            raise DataError(f"not a line of JSON: {error}") from error
        if not isinstance(plain, dict):
            raise DataError("a row is a JSON object")
        names = {each.name for each in dataclasses.fields(cls)}
        if plain.keys() != names:
            unknown, missing = sorted(plain.keys() - names), sorted(names - plain.keys())
            raise DataError(f"not a row of this version: unknown fields {unknown}, missing fields {missing}")
        if not isinstance(plain["units"], list) or not isinstance(plain["v"], list):
            raise DataError("units and v are lists")
        return cls(**(plain | {"units": tuple(plain["units"]), "v": tuple(plain["v"])}))


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
        self.write_all([row])

    def write_all(self, rows: Iterable[Row]) -> None:
        """Append rows, all of them or none, and wait once until they are on the disk.

        Raises:
            OSError: see `write`.
        """
        start = self._file.seek(0, os.SEEK_END)
        rest = memoryview(b"".join(row.to_json().encode() + b"\n" for row in rows))
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(start)
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


def read_rows(paths: Iterable[Path]) -> dict[str, Row]:
    """Rows of several files by key; a torn last line of a file is skipped, a result supersedes an error.

    Raises:
        DataError: a line that is not a row, or two different results for one key.
    """
    rows: dict[str, Row] = {}
    for path in paths:
        for number, line in enumerate(_whole_lines(path), start=1):
            try:
                row = Row.from_json(line)
            except DataError as error:
                raise DataError(f"{path}, line {number}: {error}") from error
            present = rows.get(row.key)
            if present is not None and None is present.error and None is row.error:
                if present.outcome() != row.outcome():
                    raise DataError(
                        f"{path}, line {number}: another result than before for trial {row.key}; "
                        "a trial is not a function of its key, remove one of the two files and find out why"
                    )
                continue
            if present is None or row.error is None or present.error is not None:
                rows[row.key] = row
    return rows


def missing(planned: Sequence[str], rows: Mapping[str, Row], *, retry_errors: bool = False) -> list[str]:
    """Keys that are planned and not present, in the planned order; with `retry_errors` also those that failed."""
    return [key for key in planned if key not in rows or (retry_errors and rows[key].error is not None)]


def _whole_lines(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


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
