"""Durable start snapshots: a unit's start state is on disk before the unit is committed."""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(path: Path, data: bytes | memoryview, private: bool = False) -> None:
    """Write a file whole: it is on disk under its name, or the name still holds what it held."""
    temporary = path.with_name(path.name + ".part")
    try:
        with open(
            temporary, "wb", opener=lambda name, flags: os.open(name, flags, 0o600 if private else 0o644)
        ) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class SnapshotStore:
    """Serialised states of one run, by unit boundary, in one private folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, boundary: int) -> Path:
        return self.folder / f"boundary-{boundary:09d}.safetensors"

    def save(self, boundary: int, data: bytes | memoryview) -> None:
        """Make the state at a boundary durable."""
        write_durably(self._path(boundary), data)

    def load(self, boundary: int) -> bytes:
        """The serialised state at a boundary. Raises FileNotFoundError when it is not kept."""
        return self._path(boundary).read_bytes()

    def boundaries(self) -> list[int]:
        """The boundaries that are kept, ascending."""
        return sorted(int(path.stem.removeprefix("boundary-")) for path in self.folder.glob("boundary-*.safetensors"))

    def drop(self, boundary: int) -> None:
        """Forget a boundary; it may be gone already."""
        self._path(boundary).unlink(missing_ok=True)
