"""The work behind trials, in processes of its own: branched units of one training run, or one run from end to end."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from witbench.attacks.base import Outcome, Scene, drawn, lenient
from witbench.attacks.branches import Judged, Trajectory
from witbench.config import NO_ATTACK, RunConfig
from witbench.protocol.certify import WitnessedRun, ended
from witbench.protocol.prover import Home
from witbench.protocol.sandbox import Sandbox
from witbench.protocol.verifier import verify
from witbench.registry import ATTACKS, build
from witbench.trials.artifacts import Artifacts, content_key
from witbench.trials.study import HONEST, Variant


@dataclass(frozen=True)
class Branch:
    """One lie in one unit of an honest run.

    Attributes:
        variant: the attack; None for an honest unit.
        boundary: unit boundary it starts from.
        size: places touched, all in the unit's first update; 0 for an honest unit.
    """

    variant: Variant | None
    boundary: int
    size: int

    def plain(self) -> dict[str, Any]:
        """JSON values that say which branch it is."""
        params = dict(self.variant.params) if self.variant else {}
        attack = self.variant.attack if self.variant else HONEST
        return {"attack": attack, "params": params, "boundary": self.boundary, "size": self.size}

    def judged(self, trajectory: Trajectory, shape: tuple[int, int]) -> Judged:
        """What a coin on its unit would show; `shape` is (sequences, context)."""
        seed = int.from_bytes(content_key(self.plain()).encode()[:16], "big")
        random = np.random.default_rng(seed)
        attack = (self.variant or Variant("substitution")).make(max(1, self.size))
        update = trajectory.plan.updates_of(self.boundary + 1).start
        positions = {}
        if self.size:
            drawn = random.choice(attack.places(*shape), self.size, replace=False)
            positions = {update: tuple(sorted(drawn.tolist()))}
        return trajectory.judge(attack, self.boundary + 1, positions, random)


@dataclass(frozen=True)
class TrajectoryWork:
    """Measure what coins on the units of one training run would show, as far as it is not known yet.

    Attributes:
        config: the honest configuration.
        run: which training run.
        branches: what to measure.
        folder: of the artifacts.
        version: of everything a measurement depends on beside the configuration.
    """

    config: RunConfig
    run: int
    branches: tuple[Branch, ...]
    folder: Path
    version: Mapping[str, Any]

    @cached_property
    def artifacts(self) -> Artifacts:
        """Where its parts are."""
        return Artifacts(self.folder, content_key({"trajectory": self._trained(), "run": self.run}))

    def _trained(self) -> dict[str, Any]:
        """What the states of an honest run depend on."""
        return {name: self.version[name] for name in ("model", "data", "optimizer", "training", "versions")}

    def keys(self) -> dict[Branch, str]:
        """Branch -> key of its measurement: all that it depends on but p and the placement."""
        judged = {name: self.version[name] for name in ("protocol", "sketch", "tolerance")}
        judged["protocol"] = {name: judged["protocol"][name] for name in ("unit", "opening", "switches")}
        shared = content_key({"run": self.artifacts.key, **judged})
        return {branch: content_key({"shared": shared, **branch.plain()}) for branch in self.branches}

    def missing(self) -> list[Branch]:
        """Branches that were not measured yet."""
        known = self.artifacts.branches()
        return [branch for branch, key in self.keys().items() if key not in known]

    def found(self) -> dict[Branch, dict[str, Any]]:
        """Branch -> its measurement, of all of them."""
        known = self.artifacts.branches()
        return {branch: known[key] for branch, key in self.keys().items()}

    def __call__(self) -> None:
        """Measure what is missing; each measurement is on the disk before the next one begins."""
        with self.artifacts.held():
            left, keys = self.missing(), self.keys()
            if not left:
                return
            seeds = _digest(f"init/{self.run}"), _digest(f"order/{self.run}")
            boundaries = sorted({branch.boundary for branch in left})
            drawn = int.from_bytes(seeds[0][:7], "big"), seeds[1]
            trajectory = Trajectory(self.config, drawn, boundaries, kept=self.artifacts)
            shape = self.config.training.sequences, self.config.model.context
            for branch in left:
                judged = branch.judged(trajectory, shape)
                self.artifacts.add({"key": keys[branch], **branch.plain(), **asdict(judged)})


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


def look_up(found: Iterable[Branch], boundary: int, size: int) -> Branch:
    """The branch that speaks for a touched unit: the nearest boundary, and the largest size that is not above its own.

    Args:
        found: branches of one variant.
        boundary: of the unit.
        size: places touched in it.
    """
    branches = list(found)
    nearest = min((abs(branch.boundary - boundary), branch.boundary) for branch in branches)[1]
    fitting = [branch for branch in branches if branch.boundary == nearest and branch.size <= size]
    return max(fitting, key=lambda branch: branch.size)


def _digest(label: str) -> bytes:
    return hashlib.sha256(f"witbench/trials/v0\n{label}".encode()).digest()
