"""The broker: randomness, tape and verdict records of one run, in this process behind the remote interface.

Its secrets are the signing key and the beacon seed; both stay in this object and its private folder, never in the
sandbox. Challenges are settled on a thread of their own while training goes on, and their REPLAY records are placed
at a fixed lag, so that timing steers nothing.
"""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from witbench.errors import ProtocolError, StateError, TapeError
from witbench.protocol.commitments import commit_state
from witbench.protocol.comparator import Checks, Verdict, sketch_from_bytes
from witbench.protocol.encoding import f64
from witbench.protocol.messages import (
    Broker,
    CoinReply,
    FinalOpening,
    HeadReply,
    KeyReply,
    Opening,
    Resumption,
    RunRejected,
)
from witbench.protocol.records import COMPLETE, FAILED, PASSED, REJECTED, chunks
from witbench.protocol.replayer import Challenge, Settlement
from witbench.protocol.sandbox import Job, SandboxFailure, read_values
from witbench.training.serialize import state_from_bytes, state_to_bytes, weights_to_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from witbench.protocol.commitments import BatchCommitment
    from witbench.protocol.ledger import Ledger
    from witbench.protocol.runfiles import RunFiles
    from witbench.protocol.terms import Terms
    from witbench.training.state import State


class LocalBroker(Broker):
    """A broker in the trainer's process.

    Args:
        terms: what the run was granted: switches, p, tau, plan, comparator, replayer.
        files: its tape, beacon and counter.
        ledger: what the tape has so far; fresh for a new run.
    """

    def __init__(self, terms: Terms, files: RunFiles, ledger: Ledger) -> None:
        self.terms = terms
        self.files = files
        self.ledger = ledger
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="replay")
        self._settling: dict[int, Future[Settlement]] = {}
        self._asked: dict[int, float] = {unit: time.monotonic() for unit in ledger.open}
        self._new: list[bytes] = []
        # What every sketch of this run looks like; the key does not matter.
        self._form = terms.comparator.sketch(state_from_bytes(terms.replayer.initial), bytes(32))

    def close(self) -> None:
        """Wait for running replays and let the thread go."""
        self._pool.shutdown(cancel_futures=True)

    def resumption(self) -> Resumption:
        """Where the run stands, for a worker that takes it up again."""
        if self.ledger.phase == "init":
            self._check_initial()
        awaits_head = self.ledger.phase in ("cosign", "seal")
        head = self.files.signed_head() if awaits_head else None
        return Resumption(self.ledger.phase, self.ledger.current, tuple(self.ledger.open), head, self._flush())

    # -- the worker's messages, in the order of a run

    def begin(self, state: bytes, exact: bytes) -> tuple[bytes, ...]:
        self._expect("begin")
        self._append("commit", boundary=0, state=state, exact=exact)
        self._check_initial()
        return self._flush()

    def start(self, unit: int, state: bytes, exact: bytes) -> tuple[bytes, ...]:
        self._expect("declare", unit)
        if not self.terms.switches.chain.own_start or unit in self.ledger.units:
            raise ProtocolError("message.order", f"unit {unit} does not await a START")
        self._append("start", unit=unit, state=state, exact=exact)
        return self._flush()

    def declare(self, unit: int, t: int, batch: BatchCommitment) -> tuple[bytes, ...]:
        self._expect("declare", unit)
        if self.terms.switches.chain.own_start and unit not in self.ledger.units:
            raise ProtocolError("message.order", f"unit {unit} awaits the START of its own start state")
        due = self.terms.plan.updates_of(unit)
        done = len(self.ledger.units[unit].declared) if unit in self.ledger.units else 0
        if done >= len(due) or t != due[done]:
            raise ProtocolError("message.order", f"unit {unit} does not await a DECLARE of update {t}")
        if done == 0:
            self._settle_up_to(unit - 1 - self.terms.lag)
        self._append(
            "declare",
            unit=unit,
            t=t,
            root=batch.root,
            sequences=batch.sequences,
            tokens=batch.tokens,
            fields=batch.fields,
        )
        return self._flush()

    def commit(self, unit: int, state: bytes, exact: bytes) -> KeyReply:
        self._expect("declare", unit)
        if unit not in self.ledger.units or len(self.ledger.units[unit].declared) != len(
            self.terms.plan.updates_of(unit)
        ):
            raise ProtocolError("message.order", f"unit {unit} has updates that were not declared")
        self._append("commit", boundary=unit, state=state, exact=exact)
        number, reveal = self.files.reveal()
        self._append("key", unit=unit, number=number, reveal=reveal)
        return KeyReply(self.ledger.units[unit].key, self._flush())

    def sketch(self, unit: int, data: bytes) -> CoinReply:
        self._expect("sketch", unit)
        sketch_from_bytes(data, self._form)
        parts = chunks(data)
        for part, piece in enumerate(parts):
            self._append("sketch", unit=unit, part=part, parts=len(parts), data=piece)
        number, reveal = self.files.reveal()
        last = unit == self.terms.plan.units
        challenged = last or self.terms.switches.coin.challenged(reveal, *self.ledger.head, self.terms.threshold)
        self._append("coin", unit=unit, number=number, reveal=reveal, challenged=challenged)
        if challenged:
            self._asked[unit] = time.monotonic()
        return CoinReply(challenged, self.files.signed_head(), self._flush())

    def cosign(self, note: str) -> tuple[bytes, ...]:
        self._expect("cosign")
        self.files.check_cosigned(note)
        self._append("checkpoint", note=note)
        return self._flush()

    def open(self, unit: int, opening: Opening | None) -> None:
        if unit not in self.ledger.open or unit in self._settling:
            raise ProtocolError("message.order", f"unit {unit} has no challenge to answer")
        if time.monotonic() - self._asked[unit] > self.terms.deadline:
            opening = None
        self._settling[unit] = self._pool.submit(self.terms.replayer.settle, self._challenge(unit), opening)

    def settled(self, unit: int) -> bool:
        return unit < self.ledger.current and unit not in self.ledger.open

    def rewind(self, boundary: int) -> tuple[bytes, ...]:
        if self.ledger.phase in ("begin", "init", "cosign", "seal", "ended") or not 0 <= boundary < self.ledger.current:
            raise ProtocolError("message.order", f"there is no boundary {boundary} to go back to")
        self._settle_up_to(self.ledger.current)
        if boundary and boundary not in self.ledger.units:
            self.ledger.units[boundary] = self.files.recall(self.ledger.switches, boundary)
        self._append("rewind", boundary=boundary)
        return self._flush()

    def finish(self, opening: FinalOpening) -> HeadReply:
        units = self.terms.plan.units
        self._expect("declare", units + 1)
        self._settle_up_to(units)
        committed = self.ledger.units[units].committed()
        checks, weights, parameters = Checks(), bytes(32), bytes(32)
        try:
            try:
                state = state_from_bytes(opening.state)
            except StateError as error:
                raise ProtocolError("final.digest", str(error)) from None
            self.terms.comparator.check_opened(checks, "final", state, committed, self.terms.switches.sealing.checks)
            parameters = commit_state(state, self.terms.comparator.manifest).parameters
            weights = hashlib.sha256(weights_to_bytes(state)).digest()
            checks.require("final.weights", weights == opening.weights, "the published file is not the final state's")
            self._append_evaluation(checks, state, opening.evaluation)
        except ProtocolError as error:
            self._append_final(REJECTED, checks.verdict(error), parameters, weights)
            self._end(error)
        self._append_final(COMPLETE, checks.verdict(), parameters, weights)
        return HeadReply(self.files.signed_head(), self._flush())

    def seal(self, note: str) -> None:
        self._expect("seal")
        self.files.check_cosigned(note)
        self.files.seal(note, complete=True)
        self.ledger.phase = "ended"

    # -- inside

    def _check_initial(self) -> None:
        """`init.digest`: the committed S_0 is the prover's own."""
        committed, own = self.ledger.units[0], self.terms.initial
        checks = Checks()
        try:
            same = (committed.state, committed.exact) == (own.state, own.exact)
            checks.require("init.digest", same, "S_0 is not init(seed)")
        except ProtocolError as error:
            self._append_replay(0, Settlement(checks.verdict(error), attempts=1))
            self._reject(error)
        self._append_replay(0, Settlement(checks.verdict(), attempts=1))

    def _expect(self, phase: str, unit: int | None = None) -> None:
        if self.ledger.phase != phase or unit not in (None, self.ledger.current):
            awaited = f"{self.ledger.phase} of unit {self.ledger.current}"
            raise ProtocolError("message.order", f"a message for {phase} came where {awaited} is awaited")

    def _append(self, kind: str, **fields: Any) -> None:
        try:
            raw = self.files.tape.append(kind, **fields)
        except TapeError as error:
            raise ProtocolError("message.form", error.reason) from None
        self._new.append(raw)
        self.ledger.feed({"kind": kind, **fields}, self.files.head())

    def _flush(self) -> tuple[bytes, ...]:
        new, self._new = tuple(self._new), []
        return new

    def _challenge(self, unit: int) -> Challenge:
        entry = self.ledger.units[unit]
        start = entry.start or (self.ledger.units[unit - 1].committed() if unit > 1 else None)
        updates = self.terms.plan.updates_of(unit)
        return Challenge(unit, updates, start, entry.committed(), tuple(entry.declared), entry.draw)

    def _settle_up_to(self, unit: int) -> None:
        """Put the REPLAY records of all challenged units up to `unit` on the tape; a failure ends the run."""
        for due in [u for u in self.ledger.open if u <= unit]:
            future = self._settling.pop(due, None)
            settlement = future.result() if future else self.terms.replayer.settle(self._challenge(due), None)
            self._append_replay(due, settlement)
            verdict = settlement.verdict
            if verdict.failed is not None:
                self._reject(ProtocolError(verdict.failed, f"unit {due}: {verdict.detail}"))

    def _append_replay(self, unit: int, settlement: Settlement) -> None:
        verdict = settlement.verdict
        self._append(
            "replay",
            unit=unit,
            verdict=PASSED if verdict.passed else FAILED,
            failed=verdict.failed,
            checks=dict(verdict.checks),
            distances={group: f64(value) for group, value in verdict.distances.items()},
            yardstick={group: f64(value) for group, value in settlement.yardstick.items()},
            attempts=settlement.attempts,
            isolation=self.terms.replayer.sandbox.isolation,
        )

    def _append_evaluation(self, checks: Checks, state: State, claimed: Mapping[str, float]) -> None:
        if not all(type(value) is float for value in claimed.values()):
            raise ProtocolError("evaluation.value", "the shown evaluation is not floats by name")
        # Serialised anew: the worker's own bytes could carry the answer into the sandbox.
        job = Job.evaluate(self.terms.replayer.procedure, state_to_bytes(state), self.terms.evaluation_set)
        try:
            values = read_values(self.terms.replayer.sandbox.run(job))
        except SandboxFailure as error:
            raise ProtocolError("evaluation.value", f"{error.kind}: {error.detail}") from None
        shown, own = ({name: f64(value) for name, value in each.items()} for each in (claimed, values))
        tau = self.terms.comparator.tau.evaluation
        same = shown.keys() == own.keys() and all(
            shown[name] == own[name] or (name in tau and abs(claimed[name] - values[name]) <= tau[name]) for name in own
        )
        self._append(
            "evaluation",
            boundary=self.terms.plan.units,
            set=self.terms.evaluation_set.root,
            values=own if same else shown,
            checks={"evaluation.value": same},
        )
        checks.require("evaluation.value", same, "the shown evaluation is not what the final state gives")

    def _append_final(self, status: str, verdict: Verdict, parameters: bytes, weights: bytes) -> None:
        last = self.ledger.units.get(self.ledger.current - 1)
        self._append(
            "final",
            status=status,
            boundary=self.ledger.current - 1,
            state=last.state if last else bytes(32),
            exact=last.exact if last else bytes(32),
            parameters=parameters,
            weights=weights,
            checks=dict(verdict.checks),
            failed=verdict.failed,
            units=self.ledger.current - 1,
            rewinds=self.ledger.rewinds,
        )

    def _reject(self, error: ProtocolError) -> None:
        verdict = Verdict({error.check: False}, error.check, error.reason)
        self._append_final(REJECTED, verdict, bytes(32), bytes(32))
        self._end(error)

    def _end(self, error: ProtocolError) -> None:
        self._flush()
        self.files.seal(self.files.signed_head(), complete=False)
        raise RunRejected(error.check, error.reason)
