"""Measurements of the conditional estimator: units branched off an honest run, each judged as if it were challenged.

A check is local to one unit, so an attack that ignores the coins need not be run end to end to know what a coin would
have shown: the unit is run once from an honest start state with the lie in it, and settled by the very code that
settles challenges. Trials then draw placements, look the touched units up and average over all coins.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from witbench.kernels.manifest import build_manifest
from witbench.protocol.commitments import commit_batch, commit_state, step_key
from witbench.protocol.comparator import Committed, Comparator, sketch_to_bytes
from witbench.protocol.ledger import Plan
from witbench.protocol.messages import Opening
from witbench.protocol.replayer import Challenge, Replayer
from witbench.protocol.switches import Switches
from witbench.protocol.tolerances import tolerances
from witbench.protocol.trainer import Trainer
from witbench.registry import SKETCHES, build
from witbench.training.data import load_data
from witbench.training.determinism import set_deterministic
from witbench.training.serialize import batch_from_bytes, batch_to_bytes, state_from_bytes, state_to_bytes
from witbench.training.source import builtin_spec, procedure_from

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from witbench.attacks.base import MaliciousTrainer
    from witbench.attacks.placement import Positions
    from witbench.config import RunConfig
    from witbench.kernels.base import Manifest
    from witbench.protocol.sandbox import Job
    from witbench.training.procedure import Procedure
    from witbench.training.source import ProcedureSpec
    from witbench.training.state import State


class DirectReplay:
    """Stands where the sandbox stands, and runs an honest procedure in this process.

    Only for measurements in which the procedure is known to be honest; no isolation at all.
    """

    def __init__(self, procedure: Procedure, trainer: Trainer) -> None:
        self._procedure = procedure
        self._trainer = trainer

    @property
    def isolation(self) -> str:
        """None at all."""
        return "process only"

    def run(self, job: Job) -> bytes:
        """Run a `batch` or `update` job."""
        if job.kind == "batch":
            return batch_to_bytes(self._trainer.declare(int(job.scalars["t"])))
        state = state_from_bytes(job.parts[1])
        for part in job.parts[2:]:
            state = self._procedure.update(state, batch_from_bytes(part))
        return state_to_bytes(state)


class StateCache(Protocol):
    """Keeps serialised states of one training run."""

    def states(self) -> list[int]:
        """Updates before which the state is kept, ascending."""
        ...

    def load(self, t: int) -> bytes:
        """The state before update t."""
        ...

    def save(self, t: int, data: bytes | memoryview) -> None:
        """Keep the state before update t."""
        ...


class _NoCache:
    """Keeps nothing."""

    def states(self) -> list[int]:
        return []

    def load(self, t: int) -> bytes:
        raise KeyError(t)

    def save(self, t: int, data: bytes | memoryview) -> None:
        pass


@dataclass(frozen=True)
class Judged:
    """What a coin on a branched unit would have shown.

    Attributes:
        detected: whether a check failed.
        tokens: tokens that the lie really concerned; 0 when it had no effect.
        check: the first failing check, or None.
        distances: group -> sketch distance of the replayed state; empty when that check was not reached.
        seconds: wall time of the branch, replay included.
    """

    detected: bool
    tokens: int
    check: str | None
    distances: Mapping[str, float]
    seconds: float


class Trajectory:
    """One honest run, kept at the unit boundaries that branches start from.

    Args:
        config: the honest configuration.
        seeds: (init seed, order seed) as a prover would have drawn them.
        boundaries: unit boundaries to keep.
        spec: the procedure; the built-in one when None.
        kept: where states of this very run are kept between processes; nowhere when None.
    """

    def __init__(
        self,
        config: RunConfig,
        seeds: tuple[int, bytes],
        boundaries: Sequence[int],
        spec: ProcedureSpec | None = None,
        kept: StateCache | None = None,
    ) -> None:
        set_deterministic(config.training.threads)
        self.config = config
        self.plan = Plan(config.training.updates, config.protocol.unit)
        self._seed, self._order = seeds
        self._spec = spec or builtin_spec(config.procedure_plain())
        self._procedure = procedure_from(self._spec)
        self._data = (*load_data(config.data, config.model.vocab), self._order)
        self._honest = Trainer(self._procedure, *self._data)
        self._switches = Switches.from_names(config.switch_names())
        self._design = build(SKETCHES, config.sketch.name, config.sketch.params)
        self._kept: dict[int, State] = {}
        self._manifest = self._walk(sorted(set(boundaries)), kept or _NoCache())
        tau, _ = tolerances(config, self._manifest)
        self._comparator = Comparator(self._design, self._manifest, self._switches.tolerance, tau)

    def _walk(self, boundaries: Sequence[int], cache: StateCache) -> Manifest:
        """Train from boundary to boundary, from the last state before each that is kept."""
        state, t = self._honest.start(self._seed), 0
        manifest = build_manifest(state.real, self.config.sketch.groups)
        for boundary in boundaries:
            due = boundary * self.plan.unit
            known = [each for each in cache.states() if t < each <= due]
            if known:
                t = known[-1]
                state = state_from_bytes(cache.load(t))
            for update in range(t, due):
                state = self._honest.train(update, state, self._honest.declare(update))
            if due and due not in known:
                cache.save(due, state_to_bytes(state))
            self._kept[boundary], t = state, due
        return manifest

    @property
    def boundaries(self) -> list[int]:
        """The boundaries kept, ascending."""
        return sorted(self._kept)

    def state(self, boundary: int) -> State:
        """The honest state at a boundary that was kept."""
        return self._kept[boundary]

    def judge(self, attack: MaliciousTrainer, unit: int, positions: Positions, random: np.random.Generator) -> Judged:
        """Run one unit with the attack in it, from the honest state before it, and settle it as a challenge."""
        began = time.monotonic()
        boundary = self._kept[unit - 1]
        trainer = attack.bind(positions, self.plan, random, self._procedure, *self._data)
        start = trainer.enter(unit, boundary)
        run_key, key_before, key = random.bytes(32), random.bytes(32), random.bytes(32)
        updates = self.plan.updates_of(unit)
        batches = [trainer.declare(t) for t in updates]
        state = start
        for t, batch in zip(updates, batches, strict=True):
            state = trainer.train(t, state, batch)
        committed = trainer.commit(unit, state)
        end = self._committed(committed, trainer.sketch(unit, state, key), key)
        before = self._committed(boundary, boundary, key_before) if unit > 1 else None
        if self._switches.chain.own_start:
            before = self._committed(start, start, key_before)
        keys = [step_key(run_key, t) for t in updates]
        declared = tuple(commit_batch(batch, k) for batch, k in zip(batches, keys, strict=True))
        opened = trainer.open(unit, start, batches)
        opening = None
        if opened is not None:
            data = tuple(batch_to_bytes(batch) for batch in opened[1])
            opening = Opening(state_to_bytes(opened[0]), data, tuple(keys), state_to_bytes(committed))
        replayer = Replayer(
            DirectReplay(self._procedure, self._honest),
            self._spec.to_bytes(),
            self._comparator,
            self._data[0],
            self._order,
            state_to_bytes(boundary),
            self._switches,
        )
        challenge = Challenge(unit, updates, before, end, declared, random.bytes(32))
        verdict = replayer.settle(challenge, opening).verdict
        tokens = sum(trainer.achieved.values())
        return Judged(not verdict.passed, tokens, verdict.failed, verdict.distances, time.monotonic() - began)

    def _committed(self, committed: State, sketched: State, key: bytes) -> Committed:
        commitment = commit_state(committed, self._manifest)
        return Committed(
            commitment.state, commitment.exact, key, sketch_to_bytes(self._comparator.sketch(sketched, key))
        )
