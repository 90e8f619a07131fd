"""The files of one run at the broker: tape, head and statement (the certificate), and the private beacon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from witbench.errors import ProtocolError, TapeError
from witbench.protocol.genesis import run_origin
from witbench.protocol.ledger import Ledger, Unit
from witbench.protocol.notes import Checkpoint, check_head, sign_note
from witbench.protocol.records import COMPLETE, REJECTED
from witbench.protocol.snapshots import write_durably
from witbench.protocol.statement import build_statement, sign_statement
from witbench.protocol.tape import TapeReader, iter_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from witbench.protocol.beacon import Beacon, RevealCounter
    from witbench.protocol.notes import SigningKey, VerifyKey
    from witbench.protocol.runlog import RunLog
    from witbench.protocol.switches import Switches
    from witbench.protocol.tape import TapeWriter


class RunFiles:
    """Tape, certificate and beacon of one run.

    Args:
        cert: the certificate's folder; it holds `tape`, and in the end `checkpoint` and `statement.json`.
        run: run id.
        tape: the open tape.
        beacon: the run's reveals.
        counter: which of them were used.
        key: the broker's signing key.
        trainer: the trainer's key.
        registry: where the run's end is entered.
    """

    def __init__(
        self,
        cert: Path,
        run: str,
        tape: TapeWriter,
        beacon: Beacon,
        counter: RevealCounter,
        key: SigningKey,
        trainer: VerifyKey,
        registry: RunLog,
    ) -> None:
        self.cert = cert
        self.tape = tape
        self._run = run
        self._beacon = beacon
        self._counter = counter
        self._key = key
        self._trainer = trainer
        self._registry = registry

    def head(self) -> tuple[int, bytes]:
        """(size, root) of the tape."""
        return self.tape.size, self.tape.root()

    def reveal(self) -> tuple[int, bytes]:
        """Number and value of the next reveal; it counts as used before anybody sees it."""
        if self._counter.value >= self._beacon.length:
            raise ProtocolError("beacon.exhausted", "no reveal is left for this run; it ends incomplete")
        number = self._counter.next()
        return number, self._beacon.reveal(number)

    def signed_head(self) -> str:
        """The tape's head, signed by the broker."""
        return sign_note(self._checkpoint().body, self._key)

    def check_cosigned(self, note: str) -> None:
        """Raises ProtocolError (`head.signature`) unless the note is the tape's head under both signatures."""
        try:
            check_head(note, self._checkpoint(), (self._key.public_key, self._trainer))
        except TapeError as error:
            raise ProtocolError("head.signature", error.reason) from None

    def seal(self, note: str, complete: bool) -> None:
        """Close the certificate under its closing head and enter the run's end in the registry."""
        if complete:
            payload = build_statement(*self._ends(), self._checkpoint())
            write_durably(self.cert / "statement.json", sign_statement(payload, self._key).encode())
        write_durably(self.cert / "checkpoint", note.encode())
        self._registry.close(self._run, COMPLETE if complete else REJECTED, *self.head())

    def recall(self, switches: Switches, boundary: int) -> Unit:
        """What the tape holds of a boundary that the ledger has forgotten."""
        ledger = Ledger(switches)
        found: Unit | None = None
        for record, head in self.heads():
            ledger.feed(record, head)
            if record["kind"] in ("coin", "replay") and boundary in ledger.units and ledger.current > boundary:
                found = ledger.units[boundary]
        if found is None:
            raise ProtocolError("message.order", f"the tape holds no boundary {boundary}")
        return found

    def heads(self) -> Iterator[tuple[dict[str, object], tuple[int, bytes]]]:
        """Every record on the tape, with the head that it makes."""
        with (self.cert / "tape").open("rb") as stream:
            reader = TapeReader(stream)
            for _, record in reader:
                yield record, (reader.frontier.size, reader.frontier.root())

    def records(self) -> tuple[bytes, ...]:
        """All raw records on the tape."""
        with (self.cert / "tape").open("rb") as stream:
            return tuple(raw for raw, _ in iter_records(stream))

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(run_origin(self._run), *self.head())

    def _ends(self) -> tuple[dict[str, object], dict[str, object]]:
        first: dict[str, object] | None = None
        last: dict[str, object] = {}
        with (self.cert / "tape").open("rb") as stream:
            for _, record in iter_records(stream):
                first, last = first or record, record
        return first or last, last
