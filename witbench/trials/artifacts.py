"""What trials share, cached by content: states of honest training runs, and what coins on branched units would show.

A state is a file named by everything it depends on; a branch is a line of its training run's file, with a key of the
same kind. One process works on a training run at a time, others wait, and whatever was measured once is read. Files
appear whole or not at all, and of lines only whole ones count.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from witbench.evaluation.rows import canonical_json
from witbench.protocol.snapshots import write_durably


def content_key(what: Mapping[str, Any]) -> str:
    """BLAKE2b-128 of canonical JSON, in hex."""
    return hashlib.blake2b(canonical_json(what).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Artifacts:
    """The cached parts of one training run.

    Attributes:
        folder: of all artifacts.
        key: content key of the training run.
    """

    folder: Path
    key: str

    @property
    def _home(self) -> Path:
        return self.folder / self.key

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait until nobody else works on this training run, and keep it."""
        self._home.mkdir(parents=True, exist_ok=True)
        with (self._home / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def states(self) -> list[int]:
        """Updates before which the state is kept, ascending."""
        return sorted(int(path.stem) for path in self._home.glob("*.state"))

    def load(self, t: int) -> bytes:
        """The serialised state before update t. Raises FileNotFoundError when it is not kept."""
        return (self._home / f"{t}.state").read_bytes()

    def save(self, t: int, data: bytes | memoryview) -> None:
        """Keep the state before update t."""
        write_durably(self._home / f"{t}.state", data)

    def branches(self) -> dict[str, dict[str, Any]]:
        """Key -> measurement, of all whole lines."""
        try:
            lines = (self._home / "branches.jsonl").read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return {}
        found = filter(None, map(_parsed, lines))
        return {each["key"]: each for each in found}

    def add(self, measured: Mapping[str, Any]) -> None:
        """Append one measurement; call it only while the training run is held."""
        path = self._home / "branches.jsonl"
        line = canonical_json(measured).encode() + b"\n"
        with path.open("ab") as file:
            # A kill may have left a torn line: what follows it must not become part of it.
            if file.tell() and not _ends_a_line(path):
                line = b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A measurement, or None for what a kill left of one."""
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return found if line.endswith(b"\n") else None


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
