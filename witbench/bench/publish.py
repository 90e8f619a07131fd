"""Publishing results: files and a manifest into results/, from a clean working copy alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from witbench.errors import ConfigError
from witbench.trials.stamp import Stamp


def publish(files: Sequence[Path], target: Path, command: str) -> Path:
    """Copy files into a folder, with a manifest that says by what command, where and of which commit.

    Raises:
        ConfigError: the working tree has changes, or this is no working copy.
    """
    stamp = Stamp.take()
    if not stamp.commit or stamp.dirty:
        raise ConfigError("publish=true: only from a clean working copy, so that the commit says what was run")
    target.mkdir(parents=True, exist_ok=True)
    for path in files:
        shutil.copyfile(path, target / path.name)
    manifest = {"command": command, **vars(stamp)}
    (target / "manifest.json").write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    return target
