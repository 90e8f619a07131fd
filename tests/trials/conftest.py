"""Real text for trials."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

TEXTS = Path(pytest.__file__).parent.parent / "_pytest"


@pytest.fixture(scope="session")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("texts")
    for path in sorted(TEXTS.glob("*.py"))[:12]:
        (folder / path.name).write_bytes(path.read_bytes())
    os.environ.setdefault("WITBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
    return ["data=folder", f"data.path={folder}"]


def silent(done: int, total: int) -> None:
    """Show nothing."""
