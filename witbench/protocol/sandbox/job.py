"""What the sandbox runs: four kinds of job over one procedure, and how a job travels to the process that runs it.

A job is everything that process gets to know. It is packed into one sealed anonymous file: a u32 little-endian
length, a JSON header of that length, then the parts (procedure first) on 64-byte boundaries. A dataset is too large
to be packed: its file travels as an open read-only descriptor.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from witbench.protocol.sandbox.linux import memfd, seal, write_all

if TYPE_CHECKING:
    from witbench.training.data import Dataset

Data = bytes | memoryview

KINDS = ("init", "batch", "update", "evaluate")
FAILURES = ("timeout", "crash", "memory", "output", "error")
_ALIGNMENT = 64
_DETAIL_LENGTH = 200


@dataclass(frozen=True)
class Limits:
    """What one job may use.

    Attributes:
        seconds: wall-clock time.
        memory_bytes: address space beyond the interpreter's own, per process of the job; also bounds its scratch
            files.
        output_bytes: size of the result.
    """

    seconds: float = 120.0
    memory_bytes: int = 8 << 30
    output_bytes: int = 4 << 30

    def __post_init__(self) -> None:
        """Refuse limits that no job could keep, or that are none."""
        if not (0 < self.seconds < math.inf and self.memory_bytes > 0 and self.output_bytes > 0):
            raise ValueError(f"limits must be positive and finite, got {self}")


class SandboxFailure(Exception):
    """A job gave no result. The fault is the procedure's.

    Attributes:
        kind: `timeout`, `crash`, `memory`, `output` or `error`.
        detail: one printable line; it may be the procedure's own words, so it proves nothing.
    """

    def __init__(self, kind: str, detail: str) -> None:
        self.kind = kind
        self.detail = detail
        super().__init__(f"{kind}: {detail}")


@dataclass(frozen=True)
class Job:
    """One call of the procedure. Build it with the constructor of its kind.

    Attributes:
        kind: one of `KINDS`.
        parts: serialised ProcedureSpec, then the byte arguments of the kind.
        scalars: integer and text arguments.
        dataset: token file whose descriptor the job receives.
    """

    kind: str
    parts: tuple[Data, ...]
    scalars: Mapping[str, int | str] = field(default_factory=dict)
    dataset: Path | None = None

    @classmethod
    def init(cls, procedure: Data, seed: int) -> Job:
        """`init(seed)`; the result is a serialised State."""
        return cls("init", (procedure,), {"seed": seed})

    @classmethod
    def batch(cls, procedure: Data, dataset: Dataset, order_seed: bytes, t: int) -> Job:
        """`batch(dataset, order_seed, t)`; the result is a serialised Batch."""
        return cls("batch", (procedure, order_seed), {"t": t, **_format(dataset)}, Path(dataset.path))

    @classmethod
    def update(cls, procedure: Data, start: Data, batches: Sequence[Data]) -> Job:
        """One `update` after the other, from serialised State and Batches; the result is the end State."""
        return cls("update", (procedure, start, *batches))

    @classmethod
    def evaluate(cls, procedure: Data, state: Data, dataset: Dataset) -> Job:
        """`evaluate(state, dataset)`; read the result with `read_values`."""
        return cls("evaluate", (procedure, state), _format(dataset), Path(dataset.path))

    def pack(self) -> int:
        """Descriptor of a new sealed anonymous file that holds the job; the caller closes it."""
        sizes = [memoryview(part).nbytes for part in self.parts]
        text = json.dumps({"kind": self.kind, "scalars": dict(self.scalars), "parts": sizes}).encode()
        fd = memfd("job")
        try:
            write_all(fd, struct.pack("<I", len(text)) + text)
            for start, part in zip(_starts(4 + len(text), sizes), self.parts, strict=True):
                os.lseek(fd, start, os.SEEK_SET)
                write_all(fd, part)
            seal(fd)
        except OSError:
            os.close(fd)
            raise
        return fd


def unpack(data: memoryview) -> Job:
    """The job packed in `data`, its parts as views; the dataset descriptor travels apart."""
    (length,) = struct.unpack_from("<I", data)
    header = json.loads(bytes(data[4 : 4 + length]))
    sizes = header["parts"]
    parts = tuple(data[start : start + size] for start, size in zip(_starts(4 + length, sizes), sizes, strict=True))
    return Job(header["kind"], parts, header["scalars"])


def write_values(values: Mapping[str, float]) -> bytes:
    """Result of an `evaluate` job: a JSON object of numbers, bit for bit (NaN and infinities included)."""
    return json.dumps({str(name): float(value) for name, value in values.items()}, sort_keys=True).encode()


def read_values(result: Data) -> dict[str, float]:
    """The numbers of an `evaluate` job, in the order of their names. SandboxFailure `error` when it holds none."""
    try:
        values = json.loads(bytes(result))
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or not all(type(value) is float for value in values.values()):
        raise SandboxFailure("error", "evaluate did not return numbers by name")
    return dict(sorted(values.items()))


def printable(detail: str) -> str:
    """One short line of printable ASCII: procedures must not write escape sequences to terminals or tapes."""
    text = "".join(c if c.isascii() and c.isprintable() else " " for c in detail[:_DETAIL_LENGTH])
    return " ".join(text.split())


def _format(dataset: Dataset) -> dict[str, int | str]:
    return {"dtype": str(dataset.dtype), "vocab": int(dataset.vocab)}


def _starts(header_end: int, sizes: Iterable[int]) -> Iterable[int]:
    end = header_end
    for size in sizes:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        yield start
        end = start + size
