"""Re-execution of challenged units: what was opened is checked, replayed in the sandbox, and handed to the comparator.

The sandbox runs code that the trainer wrote and receives the start state and the batches alone; this module and the
comparator run none of that code and never tell it what was committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from witbench.errors import DataError, ProtocolError, StateError
from witbench.protocol.commitments import KEY_BYTES, BatchCommitment, check_batch, commit_batch, same_batch
from witbench.protocol.comparator import Checks, Committed, Comparator, Verdict
from witbench.protocol.sandbox import Job, SandboxFailure
from witbench.training.serialize import batch_from_bytes, batch_to_bytes, state_from_bytes, state_to_bytes

if TYPE_CHECKING:
    from witbench.protocol.messages import Opening
    from witbench.protocol.switches import Switches
    from witbench.training.data import Dataset
    from witbench.training.state import Batch, State

DISTANCE_REPEATS = 2
"""A `replay.distance` failure is repeated this often in fresh processes; only if all fail is it one."""


class Runner(Protocol):
    """What runs a job: the sandbox, or in simulations something that stands in its place."""

    @property
    def isolation(self) -> str:
        """`namespaces` or `process only`."""
        ...

    def run(self, job: Job) -> bytes | memoryview:
        """The job's result. Raises SandboxFailure."""
        ...


@dataclass(frozen=True)
class Challenge:
    """One challenged unit, as the tape has it.

    Attributes:
        unit: 1-based.
        updates: the updates t of the unit.
        start: what the tape holds of the start state; None where the unit starts from the prover's own S_0.
        end: what it holds of the end state.
        declared: the declaration of each update.
        draw: 32 bytes from the coin's reveal, for the yardstick's token.
    """

    unit: int
    updates: range
    start: Committed | None
    end: Committed
    declared: tuple[BatchCommitment, ...]
    draw: bytes


@dataclass(frozen=True)
class Settlement:
    """What goes on the tape about a challenge.

    Attributes:
        verdict: the checks.
        attempts: replays run for the verdict.
        yardstick: group -> distance that one changed token makes; empty unless the verdict passed.
    """

    verdict: Verdict
    attempts: int = 0
    yardstick: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Replayer:
    """Settles challenges of one run.

    Attributes:
        sandbox: where the procedure runs.
        procedure: serialised ProcedureSpec.
        comparator: gives the verdicts.
        dataset: the prover's own copy of the training data.
        order_seed: seed of the bound data order.
        initial: the prover's own serialised S_0.
        switches: what is opened and which checks it has to pass.
    """

    sandbox: Runner
    procedure: bytes
    comparator: Comparator
    dataset: Dataset
    order_seed: bytes
    initial: bytes
    switches: Switches

    def settle(self, challenge: Challenge, opening: Opening | None) -> Settlement:
        """Run every check of a challenged unit; the yardstick follows an honest replay."""
        checks, attempts = Checks(), 0
        try:
            if opening is None:
                raise ProtocolError("challenge.refused", "the worker opened nothing")
            start = self._opened_start(checks, challenge, opening)
            batches = self._opened_batches(checks, challenge, opening)
            while True:
                attempts += 1
                replayed = self._replay(start, batches)
                try:
                    self.comparator.check_replayed(checks, replayed, challenge.end, challenge.unit)
                    break
                except ProtocolError as error:
                    if error.check != "replay.distance" or attempts > DISTANCE_REPEATS:
                        raise
            if self.switches.opening.end:
                end = _state(opening.end or b"", "open.end.digest")
                self.comparator.check_exact_distances(checks, replayed, end, challenge.end, challenge.unit)
            yardstick = self._yardstick(challenge, start, batches, replayed)
        except ProtocolError as error:
            return Settlement(checks.verdict(error), attempts)
        return Settlement(checks.verdict(), attempts, yardstick)

    def _opened_start(self, checks: Checks, challenge: Challenge, opening: Opening) -> bytes:
        if challenge.start is None:
            return self.initial
        state = _state(opening.start, "open.digest")
        self.comparator.check_opened(checks, "open", state, challenge.start, self.switches.start_checks(challenge.unit))
        # Never the worker's own bytes: beside the committed values they could carry the answer into the sandbox.
        return state_to_bytes(state)

    def _opened_batches(self, checks: Checks, challenge: Challenge, opening: Opening) -> list[Batch]:
        counts = {len(opening.batches), len(opening.step_keys), len(challenge.updates)}
        counted = len(counts) == 1 and all(len(key) == KEY_BYTES for key in opening.step_keys)
        checks.require("open.leaf", counted, "not one batch and one step key per update of the unit")
        try:
            batches = [batch_from_bytes(data) for data in opening.batches]
        except DataError as error:
            raise ProtocolError("open.leaf", str(error)) from None
        for batch, key, declared in zip(batches, opening.step_keys, challenge.declared, strict=True):
            check_batch(batch)
            checks.require(
                "open.root", commit_batch(batch, key) == declared, "the opened batch is not the declared one"
            )
        for name in self.switches.order.checks:
            for t, batch in zip(challenge.updates, batches, strict=True):
                checks.require(name, same_batch(batch, self._due(t)), f"update {t} declares another batch")
        return batches

    def _due(self, t: int) -> Batch:
        job = Job.batch(self.procedure, self.dataset, self.order_seed, t)
        try:
            batch = batch_from_bytes(self.sandbox.run(job))
            check_batch(batch)
            return batch
        except (SandboxFailure, DataError, ProtocolError) as error:
            raise ProtocolError("declare.order", f"the procedure gave no batch for update {t}: {error}") from None

    def _yardstick(self, challenge: Challenge, start: bytes, batches: list[Batch], replayed: State) -> dict[str, float]:
        changed = self._replay(start, change_one_token(batches, challenge.draw, self.dataset.vocab))
        try:
            return self.comparator.yardstick(replayed, changed, challenge.end.key)
        except StateError as error:
            raise ProtocolError("replay.yardstick", f"with one token changed: {error}") from None

    def _replay(self, start: bytes, batches: list[Batch]) -> State:
        job = Job.update(self.procedure, start, [batch_to_bytes(batch) for batch in batches])
        try:
            return _state(self.sandbox.run(job), "replay.output")
        except SandboxFailure as error:
            raise ProtocolError(f"replay.{error.kind}", error.detail) from None


def _state(data: bytes | memoryview, check: str) -> State:
    try:
        return state_from_bytes(data)
    except StateError as error:
        raise ProtocolError(check, str(error)) from None


def change_one_token(batches: list[Batch], draw: bytes, vocab: int) -> list[Batch]:
    """The unit's batches with one counted target token replaced by another one, both picked by 32 drawn bytes."""
    picks = [int.from_bytes(draw[i : i + 8], "big") for i in range(0, 32, 8)]
    which = picks[0] % len(batches)
    batch = batches[which]
    mask = batch.sequence_fields["loss_mask"]
    counted = (mask if mask.any() else mask.logical_not()).nonzero()
    row, column = (int(x) for x in counted[picks[1] % len(counted)])
    tokens = batch.tokens.clone()
    old = int(tokens[row, column + 1])
    tokens[row, column + 1] = (old + 1 + picks[2] % (vocab - 1)) % vocab
    return [*batches[:which], replace(batch, tokens=tokens), *batches[which + 1 :]]
