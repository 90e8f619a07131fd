"""The worker: digests, sketches, keeps snapshots and follows the tape, on the trainer's side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from witbench.errors import ProtocolError
from witbench.kernels.manifest import full_view, manifest_from_bytes
from witbench.protocol import merkle, notes
from witbench.protocol.commitments import commit_batch, commit_state, step_key
from witbench.protocol.comparator import sketch_to_bytes
from witbench.protocol.genesis import run_origin
from witbench.protocol.messages import FinalOpening, Opening
from witbench.training.serialize import batch_to_bytes, state_from_bytes, state_to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from witbench.kernels.base import SketchDesign
    from witbench.protocol.messages import Broker, Grant, Resumption
    from witbench.protocol.snapshots import SnapshotStore
    from witbench.protocol.switches import Switches
    from witbench.training.state import Batch, State


@dataclass
class Held:
    """What the worker keeps of a unit until nothing more can be asked about it."""

    start: State
    batches: list[Batch] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)
    end: State | None = None


class Worker:
    """Trainer-side agent of one run.

    Args:
        broker: the prover's end of the protocol.
        grant: what it granted.
        design: the sketch design.
        run_key: root of the salt ladder, 32 secret bytes.
        signer: the trainer's signing key.
        snapshots: where start states are made durable.
        switches: of the run; they say what is committed and opened.
    """

    def __init__(
        self,
        broker: Broker,
        grant: Grant,
        design: SketchDesign,
        run_key: bytes,
        signer: notes.SigningKey,
        snapshots: SnapshotStore,
        switches: Switches,
    ) -> None:
        self.broker = broker
        self.manifest = manifest_from_bytes(grant.manifest)
        self.design = design
        self.run_key = run_key
        self.signer = signer
        self.snapshots = snapshots
        self.switches = switches
        self.held: dict[int, Held] = {}
        self._frontier = merkle.Frontier()
        self._origin = run_origin(grant.run)
        self._follow(grant.records)

    def begin(self, state: State) -> None:
        """COMMIT S_0."""
        commitment = commit_state(state, self.manifest)
        self.snapshots.save(0, state_to_bytes(state))
        self._follow(self.broker.begin(commitment.state, commitment.exact))

    def hold(self, unit: int, start: State) -> None:
        """Keep the unit's start state; it is durable before anything of the unit is committed."""
        self.held[unit] = Held(start)
        if unit - 1 not in self.snapshots.boundaries():
            self.snapshots.save(unit - 1, state_to_bytes(start))
        self._release(unit)
        if self.switches.chain.own_start:
            commitment = commit_state(start, self.manifest)
            self._follow(self.broker.start(unit, commitment.state, commitment.exact))

    def hold_again(self, unit: int, batches: list[Batch], updates: range) -> Held | None:
        """After a stop: what is still known of a challenged unit, or None when its start state was not kept."""
        if unit - 1 not in self.snapshots.boundaries():
            return None
        held = self.held[unit] = Held(state_from_bytes(self.snapshots.load(unit - 1)), batches, list(updates))
        return held

    def declare(self, unit: int, t: int, batch: Batch) -> None:
        """DECLARE one update's batch."""
        held = self.held[unit]
        held.batches.append(batch)
        held.updates.append(t)
        self._follow(self.broker.declare(unit, t, commit_batch(batch, step_key(self.run_key, t))))

    def commit(self, unit: int, state: State) -> bytes:
        """COMMIT the state at the unit's end; returns kappa."""
        if self.switches.opening.end:
            self.held[unit].end = state
        commitment = commit_state(state, self.manifest)
        reply = self.broker.commit(unit, commitment.state, commitment.exact)
        self._follow(reply.records)
        return reply.key

    def sketch(self, unit: int, state: State, key: bytes) -> bool:
        """SKETCH a state under kappa; returns whether the unit is challenged. Raises StateError if it is not finite."""
        sketch = self.design.sketch(full_view(self.manifest, state.real), key)
        reply = self.broker.sketch(unit, sketch_to_bytes(sketch))
        self._follow(reply.records)
        self.cosign(reply.head)
        return reply.challenged

    def cosign(self, head: str) -> None:
        """Sign the broker's head over the records seen."""
        self._follow(self.broker.cosign(self._cosigned(head)))

    def open(self, unit: int, opened: tuple[State, Sequence[Batch]] | None) -> None:
        """OPEN a challenged unit; None refuses."""
        if opened is None:
            self.broker.open(unit, None)
            return
        start, batches = opened
        held = self.held[unit]
        keys = tuple(step_key(self.run_key, t) for t in held.updates)
        data = tuple(batch_to_bytes(batch) for batch in batches)
        end = state_to_bytes(held.end) if self.switches.opening.end and held.end is not None else None
        self.broker.open(unit, Opening(state_to_bytes(start), data, keys, end))

    def resumption(self) -> Resumption:
        """Where a stopped run stands."""
        at = self.broker.resumption()
        self._follow(at.records)
        return at

    def rewind(self, boundary: int) -> State:
        """Go back to a boundary that is kept; returns its state."""
        self._follow(self.broker.rewind(boundary))
        self.held = {}
        return state_from_bytes(self.snapshots.load(boundary))

    def finish(self, state: State, weights: bytes, evaluation: Mapping[str, float]) -> None:
        """Open the final state and seal the certificate; `weights` is the SHA-256 of the file to be published."""
        reply = self.broker.finish(FinalOpening(state_to_bytes(state), weights, evaluation))
        self._follow(reply.records)
        self.seal(reply.head)

    def seal(self, head: str) -> None:
        """Sign the closing head; nothing can be asked after it."""
        self.broker.seal(self._cosigned(head))
        for boundary in self.snapshots.boundaries():
            self.snapshots.drop(boundary)

    def _follow(self, records: Iterable[bytes]) -> None:
        for raw in records:
            self._frontier.append(raw)

    def _cosigned(self, head: str) -> str:
        """Sign a head, but only one over exactly the records that were seen."""
        body = notes.checkpoint_body(self._origin, self._frontier.size, self._frontier.root())
        if notes.body_of(head) != body:
            raise ProtocolError("head.follow", "the broker's head is not over the records it sent")
        return notes.add_signature(head, self.signer)

    def _release(self, unit: int) -> None:
        """Drop what no challenge can ask for any more; the newest boundary stays, to resume from."""
        for settled in [u for u in self.held if u < unit and self.broker.settled(u)]:
            del self.held[settled]
        needed = {u - 1 for u in self.held} | {unit - 1}
        for boundary in self.snapshots.boundaries():
            if boundary not in needed:
                self.snapshots.drop(boundary)
