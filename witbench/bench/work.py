"""The bench's work, in processes of its own: branched units of one training run, or one run from end to end."""

from __future__ import annotations

import atexit
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from witbench.attacks.base import Outcome, Scene, drawn, lenient
from witbench.attacks.branches import Trajectory
from witbench.attacks.substitution import Substitution
from witbench.config import NO_ATTACK, RunConfig
from witbench.protocol.certify import WitnessedRun, ended
from witbench.protocol.prover import Home
from witbench.protocol.sandbox import Sandbox
from witbench.protocol.snapshots import write_durably
from witbench.protocol.verifier import verify
from witbench.registry import ATTACKS, build


@dataclass(frozen=True)
class BranchWork:
    """Measure what coins on the units of one training run would show.

    Attributes:
        config: the honest configuration.
        run: which training run.
        boundaries: unit boundaries to branch from.
        sizes: edit sizes, tokens in one update; 0 is the honest unit.
        path: file for the measurements.
    """

    config: RunConfig
    run: int
    boundaries: tuple[int, ...]
    sizes: tuple[int, ...]
    path: Path

    def __call__(self) -> None:
        """Measure and write; the file appears whole or not at all."""
        began = time.monotonic()
        seeds = _digest(f"init/{self.run}"), _digest(f"order/{self.run}")
        trajectory = Trajectory(self.config, (int.from_bytes(seeds[0][:7], "big"), seeds[1]), self.boundaries)
        tokens = self.config.training.sequences * self.config.model.context
        branches = []
        for boundary in self.boundaries:
            update = trajectory.plan.updates_of(boundary + 1).start
            for size in self.sizes:
                random = np.random.default_rng([self.run, boundary, size])
                positions = {}
                if size:
                    drawn = sorted(random.choice(tokens, size, replace=False).tolist())
                    positions = {update: tuple(drawn)}
                judged = trajectory.judge(Substitution(tokens=max(1, size)), boundary + 1, positions, random)
                branches.append({"unit": boundary + 1, "size": size, **asdict(judged)})
        table = {"run": self.run, "seconds": time.monotonic() - began, "branches": branches}
        write_durably(self.path, json.dumps(table, indent=1).encode())


@dataclass(frozen=True)
class RunWork:
    """One run from end to end, attacked or honest.

    Attributes:
        key: the trial's key.
        config: the whole configuration.
        keep: folder to keep run and prover's home in; a scratch folder is used and removed when None.
    """

    key: str
    config: RunConfig
    keep: Path | None = None

    def __call__(self) -> Outcome:
        """Run and grade."""
        if self.keep is not None:
            if not (self.keep / "run" / "prover" / "run.cbor").exists():
                # Killed between entering the run in the registry and keeping what was drawn for it: nothing to go on
                # from, and a repeatable trial would draw the same run id again.
                shutil.rmtree(self.keep, ignore_errors=True)
            return self._in(self.keep)
        scratch = Path(tempfile.mkdtemp(prefix="witbench-"))
        try:
            return self._in(scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _in(self, folder: Path) -> Outcome:
        scene = Scene(
            self.config,
            folder / "run",
            Home(folder / "broker", drawn(self.config.seed, "broker")),
            shared_sandbox(self.config.training.threads),
        )
        if self.config.attack.name != NO_ATTACK:
            outcome: Outcome = build(ATTACKS, self.config.attack.name, self.config.attack.params)(scene)
            return outcome
        return honest(scene)


def honest(scene: Scene) -> Outcome:
    """An honest run, judged like an attacked one: detected means rejected."""
    began = time.monotonic()
    run = WitnessedRun(
        scene.config, scene.folder, scene.home, scene.sandbox, scene.spec, draw=scene.draw, secret=scene.secret
    )
    # A kept run may have ended just before the process that was to write its row was killed.
    certified = ended(scene.folder) or run()
    check = certified.failed
    if check is None:
        report = verify(certified.cert, scene.home.key.public_key, lenient(scene.config), certified.weights)
        check = None if report.accepted else report.check or report.reason
    updates = scene.config.training.updates
    return Outcome(check is not None, check, {}, updates, updates, time.monotonic() - began)


_sandboxes: dict[int, Sandbox] = {}


def shared_sandbox(threads: int) -> Sandbox:
    """This process's sandbox; it keeps nothing between jobs, and starting one takes seconds."""
    if threads not in _sandboxes:
        sandbox = Sandbox(threads)
        sandbox.__enter__()
        atexit.register(sandbox.close)
        _sandboxes[threads] = sandbox
    return _sandboxes[threads]


def read_branches(path: Path) -> Mapping[str, Any]:
    """The measurements of one training run."""
    table: Mapping[str, Any] = json.loads(path.read_bytes())
    return table


def look_up(branches: Sequence[Mapping[str, Any]], unit: int, size: int) -> Mapping[str, Any]:
    """The branch that speaks for a touched unit: the nearest unit, and the largest edit that is not above its own."""
    sizes = sorted({branch["size"] for branch in branches if 0 < branch["size"] <= size})
    nearest = min((abs(branch["unit"] - unit), branch["unit"]) for branch in branches)[1]
    return next(branch for branch in branches if (branch["unit"], branch["size"]) == (nearest, sizes[-1]))


def _digest(label: str) -> bytes:
    return hashlib.sha256(f"witbench/bench/v0\n{label}".encode()).digest()
