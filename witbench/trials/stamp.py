"""Where and of what results are: commit, machine, versions."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

from witbench.trials.plan import versions


@dataclass(frozen=True)
class Stamp:
    """Goes with every row.

    Attributes:
        versions: of what a result may depend on.
        commit: of the working copy, empty outside one.
        dirty: whether it has changes.
        machine: system, processor and cores.
    """

    versions: dict[str, str]
    commit: str
    dirty: bool
    machine: str

    @classmethod
    def take(cls) -> Stamp:
        """Of this machine and this working copy, now."""
        commit, dirty = git_state()
        machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
        return cls(versions(), commit, dirty, machine)


def git_state() -> tuple[str, bool]:
    """Commit and whether there are changes; empty outside a working copy of this project."""
    here = Path(__file__).resolve().parent
    try:
        top = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, check=True, text=True)
        status = subprocess.run(["git", "status", "--porcelain"], cwd=here, capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "", False
    return top.stdout.strip(), bool(status.stdout.strip())
