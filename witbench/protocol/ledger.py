"""What a broker must remember of a run: fed with the run's own records, live or re-read after a stop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from witbench.protocol.beacon import derive
from witbench.protocol.commitments import BatchCommitment
from witbench.protocol.comparator import Committed
from witbench.protocol.records import COMPLETE, WORKER_KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from witbench.protocol.switches import Switches


@dataclass(frozen=True)
class Plan:
    """The run's length: `updates` in units of `unit` updates, the last of which may be shorter."""

    updates: int
    unit: int

    @property
    def units(self) -> int:
        """Number of units."""
        return -(-self.updates // self.unit)

    def updates_of(self, unit: int) -> range:
        """The updates t (0-based) of a unit (1-based)."""
        return range((unit - 1) * self.unit, min(unit * self.unit, self.updates))


@dataclass
class Unit:
    """One unit as far as the tape has it."""

    start: Committed | None = None
    declared: list[BatchCommitment] = field(default_factory=list)
    state: bytes = b""
    exact: bytes = b""
    key: bytes = b""
    sketch: bytes = b""
    draw: bytes = b""

    def committed(self) -> Committed:
        """What the tape holds of the unit's end."""
        return Committed(self.state, self.exact, self.key, self.sketch)


@dataclass
class Ledger:
    """State of a run: the unit at hand, what is still open, and the head that the next draw hashes.

    Memory is bounded: a unit is forgotten once it and its successor are settled.

    Attributes:
        switches: the run's switches; they turn reveals into keys.
        units: unit (or 0 for S_0) -> what the tape holds of it.
        current: the unit that the next worker record belongs to.
        phase: what is awaited: `begin`, `init`, `declare`, `key`, `sketch`, `coin`, `cosign`, `seal`, `ended`.
        open: challenged units whose REPLAY record is not on the tape, in order.
        draws: reveals used.
        rewinds: rewinds so far.
        head: (size, root) up to and including the last worker record.
    """

    switches: Switches
    units: dict[int, Unit] = field(default_factory=dict)
    current: int = 1
    phase: str = "begin"
    open: list[int] = field(default_factory=list)
    draws: int = 0
    rewinds: int = 0
    head: tuple[int, bytes] = (0, b"")

    def feed(self, record: Mapping[str, Any], head: tuple[int, bytes]) -> None:
        """Take one appended record; `head` is the tape's (size, root) with it."""
        kind = record["kind"]
        if kind in WORKER_KINDS:
            self.head = head
        handler = getattr(self, f"_on_{kind}", None)
        if handler is not None:
            handler(record)

    def _at(self, unit: int) -> Unit:
        return self.units.setdefault(unit, Unit())

    def _on_commit(self, record: Mapping[str, Any]) -> None:
        unit = self._at(record["boundary"])
        unit.state, unit.exact = record["state"], record["exact"]
        self.phase = "init" if record["boundary"] == 0 else "key"

    def _on_start(self, record: Mapping[str, Any]) -> None:
        self._at(record["unit"]).start = Committed(record["state"], record["exact"], b"", b"")

    def _on_declare(self, record: Mapping[str, Any]) -> None:
        commitment = BatchCommitment(record["root"], record["sequences"], record["tokens"], record["fields"])
        self._at(record["unit"]).declared.append(commitment)

    def _on_key(self, record: Mapping[str, Any]) -> None:
        self._at(record["unit"]).key = self.switches.key.key(record["reveal"], *self.head)
        self.draws = record["number"]
        self.phase = "sketch"

    def _on_sketch(self, record: Mapping[str, Any]) -> None:
        self._at(record["unit"]).sketch += record["data"]
        if record["part"] == record["parts"] - 1:
            self.phase = "coin"

    def _on_coin(self, record: Mapping[str, Any]) -> None:
        self._at(record["unit"]).draw = derive("yardstick", record["reveal"], *self.head)
        self.draws = record["number"]
        if record["challenged"]:
            self.open.append(record["unit"])
        self.current = record["unit"] + 1
        self.phase = "cosign"
        self._forget()

    def _on_checkpoint(self, record: Mapping[str, Any]) -> None:
        self.phase = "declare"

    def _on_replay(self, record: Mapping[str, Any]) -> None:
        if record["unit"] == 0:
            self.phase = "declare"
        else:
            self.open.remove(record["unit"])

    def _on_rewind(self, record: Mapping[str, Any]) -> None:
        boundary = record["boundary"]
        self.units = {unit: entry for unit, entry in self.units.items() if unit <= boundary}
        self.current = boundary + 1
        self.rewinds += 1
        self.phase = "declare"

    def _on_final(self, record: Mapping[str, Any]) -> None:
        self.phase = "seal" if record["status"] == COMPLETE else "ended"

    def _forget(self) -> None:
        oldest = min([*self.open, self.current]) - 1
        self.units = {unit: entry for unit, entry in self.units.items() if unit >= oldest}
