"""The verifier's state machine: one record after another, from the first blob to `final`.

It holds a record to what the records before it allow, and recomputes whatever follows from them: blob digests, reveals,
coins, heads, verdicts. Memory does not grow with the tape but for one byte a unit in the tally.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from witbench.errors import TapeError
from witbench.protocol.encoding import reals
from witbench.protocol.notes import Checkpoint, check_head
from witbench.protocol.numbers import Tally
from witbench.protocol.parts import Parts, SketchForm, sketch_form
from witbench.protocol.records import COMPLETE, PASSED
from witbench.protocol.schedule import Challenges, Reveals
from witbench.protocol.verdicts import check_distances, require_failed, require_passed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from witbench.protocol.genesis import Genesis
    from witbench.protocol.merkle import Frontier
    from witbench.protocol.policy import Policy

_BREAKS = ("replay", "rewind")
"""What may break off a unit: verdicts ahead of a rewind, or a failed one that ends the run."""

NEXT: Mapping[str, tuple[str, ...]] = {
    "blob": ("blob",),
    "start": ("commit",),
    "init": ("replay",),
    "unit": ("start", "declare", "replay", "rewind", "evaluation", "final"),
    "declare": ("declare", *_BREAKS),
    "commit": ("commit", *_BREAKS),
    "key": ("key", *_BREAKS),
    "sketch": ("sketch", *_BREAKS),
    "coin": ("coin", *_BREAKS),
    "checkpoint": ("checkpoint",),
    "failed": ("final",),
    "end": (),
}
"""Phase -> kinds of record that may come next."""

_WITHIN_A_UNIT = ("declare", "commit", "key", "sketch", "coin")


@dataclass
class Unit:
    """The unit under way."""

    started: bool = False
    declared: int = 0
    tokens: int = 0
    end: tuple[bytes, bytes] | None = None
    sketch: Parts = field(default_factory=lambda: Parts(keep=True))


@dataclass
class Walk:
    """Where a tape stands after the records fed so far.

    Attributes:
        genesis: what the tape binds.
        policy: what the verifier asks for.
        frontier: the reader's Merkle tree; it holds the record being fed.
        reveals: the beacon so far.
        challenges: what is still to be settled.
        tally: units that count.
        phase: a key of NEXT.
        sealed: the last unit under a signed head that counts.
        failed: the failed check, if any.
        shown: values of the last evaluation that counts, and its boundary.
        isolations: how replays were isolated, as taped; of the few values that ISOLATIONS allows.
        final: the final record, once it came.
    """

    genesis: Genesis
    policy: Policy
    frontier: Frontier
    reveals: Reveals
    challenges: Challenges
    tally: Tally = field(default_factory=Tally)
    phase: str = "blob"
    sealed: int = 0
    failed: str | None = None
    shown: tuple[int, Mapping[str, float]] | None = None
    isolations: set[str] = field(default_factory=set)
    final: Mapping[str, Any] | None = None

    _blob: int = 0
    _blob_parts: Parts = field(default_factory=lambda: Parts(keep=False))
    _unit: Unit = field(default_factory=Unit)
    _committed: tuple[bytes, bytes] | None = None
    _form: SketchForm | None = None
    _head: tuple[int, bytes] = (0, b"")

    @classmethod
    def begin(cls, genesis: Genesis, policy: Policy, frontier: Frontier) -> Walk:
        """A walk that has seen genesis. Raises TapeError when the policy refuses its terms."""
        policy.check_terms(genesis.switches, genesis.threshold)
        reveals = Reveals(genesis.record["anchor"], genesis.record["reveals"])
        return cls(genesis, policy, frontier, reveals, Challenges(genesis.record["lag"]))

    @property
    def current(self) -> int:
        """The unit that comes next or is under way, 1-based."""
        return self.tally.units + 1

    def feed(self, record: Mapping[str, Any]) -> None:
        """Take the next record. Raises TapeError with its number when it may not follow."""
        kind = record["kind"]
        try:
            if kind not in NEXT[self.phase]:
                due = " or ".join(NEXT[self.phase]) or "nothing"
                raise TapeError(f"comes where {due} is due")
            if self.phase in _WITHIN_A_UNIT and kind not in _BREAKS:
                self.challenges.go_on()
            _HANDLERS[kind](self, record)
        except TapeError as error:
            if error.record is not None:
                raise
            raise TapeError(f"{kind}: {error.reason}", record["i"]) from None

    def _on_blob(self, record: Mapping[str, Any]) -> None:
        name, digest = self.genesis.blobs[self._blob]
        _equal("blob", record["name"], name)
        if self._blob_parts.add(record):
            if self._blob_parts.digest() != digest:
                raise TapeError(f"the {name} is not the one that genesis names")
            self._blob_parts = Parts(keep=False)
            self._blob += 1
            self.phase = "start" if self._blob == len(self.genesis.blobs) else "blob"

    def _on_start(self, record: Mapping[str, Any]) -> None:
        if not self.genesis.switches.chain.own_start or self._unit.started:
            raise TapeError("comes where no unit commits its start state")
        _equal("unit", record["unit"], self.current)
        self._unit.started = True

    def _on_declare(self, record: Mapping[str, Any]) -> None:
        unit = self._unit
        due = self.genesis.updates_of(self.current)
        if not due:
            raise TapeError("comes after the last unit")
        if self.genesis.switches.chain.own_start and not self._unit.started:
            raise TapeError("comes before the unit's start state")
        if unit.declared == 0:
            self.challenges.begin(self.current)
        _equal("unit", record["unit"], self.current)
        _equal("update", record["t"], due[unit.declared])
        unit.declared += 1
        unit.tokens += record["tokens"]
        self.phase = "commit" if unit.declared == len(due) else "declare"

    def _on_commit(self, record: Mapping[str, Any]) -> None:
        initial = self.phase == "start"
        _equal("boundary", record["boundary"], 0 if initial else self.current)
        self._unit.end = record["state"], record["exact"]
        self.phase = "init" if initial else "key"

    def _on_key(self, record: Mapping[str, Any]) -> None:
        _equal("unit", record["unit"], self.current)
        self.reveals.take(record["number"], record["reveal"])
        self.phase = "sketch"

    def _on_sketch(self, record: Mapping[str, Any]) -> None:
        _equal("unit", record["unit"], self.current)
        if self._unit.sketch.add(record):
            form = sketch_form(self._unit.sketch.data())
            if form.keys() != set(self.genesis.record["groups"]):
                raise TapeError("the sketch's groups are not those of genesis")
            if form != (self._form or form):
                raise TapeError("the sketch has another form than the first one")
            self._form = form
            self._remember_head()
            self.phase = "coin"

    def _on_coin(self, record: Mapping[str, Any]) -> None:
        unit = self.current
        _equal("unit", record["unit"], unit)
        self.reveals.take(record["number"], record["reveal"])
        last = unit == self.genesis.units
        falls = self.genesis.switches.coin.challenged(record["reveal"], *self._head, self.genesis.threshold)
        if record["challenged"] != (falls or last):
            raise TapeError(f"unit {unit} is {'' if falls or last else 'not '}challenged; the record says otherwise")
        if record["challenged"]:
            self.challenges.open.append(unit)
        self.tally.add(self._unit.tokens, record["challenged"])
        self._committed, self._unit = self._unit.end, Unit()
        self._remember_head()
        self.phase = "checkpoint"

    def _on_checkpoint(self, record: Mapping[str, Any]) -> None:
        expected = Checkpoint(self.genesis.origin, *self._head)
        check_head(record["note"], expected, (self.genesis.broker, self.genesis.trainer))
        self.sealed = self.tally.units
        self.phase = "unit"

    def _on_replay(self, record: Mapping[str, Any]) -> None:
        unit = record["unit"]
        initial = self.phase == "init"
        if initial:
            _equal("unit", unit, 0)
            self._committed, self._unit = self._unit.end, Unit()
        else:
            self.challenges.settle(unit)
        self.isolations.add(record["isolation"])
        if record["verdict"] != PASSED:
            require_failed(record)
            self.failed, self.phase = record["failed"], "failed"
            return
        require_passed(record, ("init.digest",) if initial else self.genesis.switches.replay_checks(unit))
        if initial:
            _equal("distances", record["distances"], {})
            _equal("yardstick", record["yardstick"], {})
            self.phase = "unit"
        else:
            check_distances(record, self.genesis, self.policy)
            self.tally.passed(unit)

    def _on_rewind(self, record: Mapping[str, Any]) -> None:
        self.challenges.close()
        boundary = record["boundary"]
        if boundary > self.tally.units:
            raise TapeError(f"boundary {boundary} was not reached")
        if boundary < self.tally.units:
            # What was committed there is not remembered: memory would grow with the tape.
            self._committed = None
        self.tally.rewind(boundary)
        self.sealed = min(self.sealed, boundary)
        if self.shown and self.shown[0] > boundary:
            self.shown = None
        self._unit = Unit()
        self.reveals.may_skip = True
        self.phase = "unit"

    def _on_evaluation(self, record: Mapping[str, Any]) -> None:
        self.challenges.close()
        _equal("boundary", record["boundary"], self.tally.units)
        _equal("evaluation set", record["set"], self.genesis.record["evaluation_root"])
        if record["checks"] == {"evaluation.value": False}:
            self.failed, self.phase = "evaluation.value", "failed"
            return
        require_passed(record, ("evaluation.value",))
        self.shown = record["boundary"], reals(record["values"])

    def _on_final(self, record: Mapping[str, Any]) -> None:
        _equal("boundary", record["boundary"], self.tally.units)
        _equal("units", record["units"], self.tally.units)
        _equal("rewinds", record["rewinds"], self.tally.rewinds)
        if self._committed not in (None, (record["state"], record["exact"])):
            raise TapeError("its state is not the one committed at its boundary")
        if record["status"] == COMPLETE:
            if self.failed:
                raise TapeError(f"the run is called complete, but {self.failed} failed")
            self.challenges.close()
            _equal("boundary", record["boundary"], self.genesis.units)
            require_passed(record, self.genesis.switches.sealing.checks)
        else:
            require_failed(record)
            _equal("failed check", record["failed"], self.failed or record["failed"])
            self.failed = record["failed"]
        self.final, self.phase = record, "end"

    def _remember_head(self) -> None:
        self._head = self.frontier.size, self.frontier.root()


_HANDLERS = {
    "blob": Walk._on_blob,
    "start": Walk._on_start,
    "declare": Walk._on_declare,
    "commit": Walk._on_commit,
    "key": Walk._on_key,
    "sketch": Walk._on_sketch,
    "coin": Walk._on_coin,
    "checkpoint": Walk._on_checkpoint,
    "replay": Walk._on_replay,
    "rewind": Walk._on_rewind,
    "evaluation": Walk._on_evaluation,
    "final": Walk._on_final,
}


def _equal(what: str, found: object, due: object) -> None:
    if found != due:
        raise TapeError(f"{what} {_short(found)} where {_short(due)} is due")


def _short(value: object) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else str(value)[:60]
