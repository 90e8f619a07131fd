"""Honest tapes without training: made-up digests and sketches, real beacon, coins, signatures and Merkle log."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from witbench.protocol.beacon import Beacon, reveals_needed
from witbench.protocol.encoding import decode, encode, f64
from witbench.protocol.genesis import run_origin
from witbench.protocol.merkle import leaf_hash
from witbench.protocol.notes import Checkpoint, SigningKey, VerifyKey, add_signature, sign_note
from witbench.protocol.records import FIRST_PREV, chunks
from witbench.protocol.statement import build_statement, sign_statement
from witbench.protocol.switches import WITNESS, Switches, coin_threshold, threshold_to_bytes
from witbench.protocol.tape import TapeWriter, iter_records
from witbench.protocol.tau import warmup_units

BROKER = SigningKey.from_seed("witbench/broker", b"b" * 32)
TRAINER = SigningKey.from_seed("trainer", b"t" * 32)
WEIGHTS = b"not really a safetensors file"

Fields = dict[str, Any]
Tamper = Callable[[str, Fields], Fields | None]


def digest(*parts: object) -> bytes:
    """A made-up 32-byte value."""
    return hashlib.sha256(repr(parts).encode()).digest()


def honest(kind: str, fields: Fields) -> Fields:
    """Tamper with nothing."""
    return fields


@dataclass(frozen=True)
class Certificate:
    """The three files of a certificate, in memory."""

    tape: bytes
    checkpoint: str | None = None
    statement: str | None = None

    def write(self, folder: Path) -> Path:
        """Write the folder; returns it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tape").write_bytes(self.tape)
        if self.checkpoint is not None:
            (folder / "checkpoint").write_text(self.checkpoint, encoding="utf-8")
        if self.statement is not None:
            (folder / "statement.json").write_text(self.statement, encoding="utf-8")
        return folder

    @property
    def records(self) -> list[Fields]:
        """The tape's records."""
        return [record for _, record in iter_records(io.BytesIO(self.tape))]


@dataclass
class Synthetic:
    """One made-up run. `tamper` sees each record's fields before they are taped and may change or drop them.

    Everything that follows a tampered record (coins, heads, signatures of both parties) is formed anew, so that only
    the lie itself can be at fault.

    Attributes:
        rewinds: unit -> boundary to go back to once that unit is done; each is done once.
        shows_evaluation: whether an evaluation is shown at the end.
        fails: (unit, check) of a replay that fails and ends the run.
        switched: other choices of switches than those of the reference.
        ends: `sealed`, or `cut`: nothing after the last unit's checkpoint.
    """

    updates: int = 3
    unit: int = 1
    lag: int = 1
    p: float = 0.5
    tolerance: str = "exact"
    opening: str = "start"
    sketch_size: int = 16
    groups: tuple[str, ...] = ("blocks.0/parameter", "head/parameter")
    rewinds: dict[int, int] = field(default_factory=dict)
    shows_evaluation: bool = True
    fails: tuple[int, str] | None = None
    ends: str = "sealed"
    spare: int = 0
    tamper: Tamper = honest
    genesis: Fields = field(default_factory=dict)
    switched: dict[str, str] = field(default_factory=dict)
    broker: SigningKey = BROKER
    trainer: SigningKey = TRAINER

    def build_raw(self) -> Certificate:
        """Only a genesis, written without looking at its fields: for versions and fields that the writer refuses."""
        (raw,) = frames(replace(self, genesis={}, tamper=honest).build().tape)[:1]
        return Certificate(joined([encode({**decode(raw), **self.genesis})]))

    def build(self) -> Certificate:
        """Run it."""
        self.switches = Switches.from_names(
            {**WITNESS, "tolerance": self.tolerance, "opening": self.opening, **self.switched}
        )
        self.units = -(-self.updates // self.unit)
        count = reveals_needed(self.units + self.spare, 1)
        self.beacon, self.drawn = Beacon(b"s" * 32, count), 0
        self.tape, self.head = TapeWriter(), (0, b"")
        self.open: list[int] = []
        self.count_rewinds = 0
        self._begin(count)
        done = 0
        left = dict(self.rewinds)
        while done < self.units:
            if not self._unit(done + 1):
                return self._finish("rejected")
            done += 1
            if done in left:
                self._settle(done)
                done = left.pop(done)
                self._append("rewind", boundary=done)
                self.count_rewinds += 1
        return Certificate(self.tape.getvalue()) if self.ends == "cut" else self._finish("complete")

    # -- parts of a run

    def _append(self, kind: str, **fields: Any) -> None:
        tampered = self.tamper(kind, fields)
        if tampered is not None:
            self.tape.append(kind, **tampered)
        if kind in ("start", "commit", "sketch"):
            self.head = self.tape.size, self.tape.root()

    def _begin(self, reveals: int) -> None:
        blobs = {"config": b'{"model":"none"}', "manifest": encode({}), "procedure": b"def update(): ..."}
        tolerance = self.switches.tolerance
        after = {group: f64(0.5) for group in self.groups} if tolerance.uses_tau else {}
        warmup = {group: f64(1.0) for group in self.groups} if tolerance.calibrated else {}
        fields: Fields = {
            "version": 0,
            "run": "test-run",
            "attempt": 1,
            "trainer_attempt": 1,
            "dataset": {"root": digest("data"), "tokens": 4096, "dtype": "uint8"},
            "order": {"rule": "feistel", "seed": digest("order")},
            "init_seed": 7,
            "updates": self.updates,
            "unit": self.unit,
            "evaluation_root": digest("evaluation"),
            "tokenizer": digest("bytes"),
            "sketch": {"name": "rht", "config": '{"k":256}', "exact": True, "tolerance": f64(0.0)},
            "groups": list(self.groups),
            "switches": self.switches.names(),
            "p": threshold_to_bytes(coin_threshold(self.p)),
            "tau": {"warmup": warmup, "after": after},
            "warmup": warmup_units(self.updates, self.unit) if warmup else 0,
            "evaluation_tau": {"loss": f64(1e-6)} if tolerance.calibrated else {},
            "calibration": digest("calibration") if tolerance.calibrated else None,
            "anchor": self.beacon.anchor,
            "reveals": reveals,
            "lag": self.lag,
            "deadline": 60,
            "broker_key": self.broker.vkey,
            "trainer_key": self.trainer.vkey,
            "threads": 1,
            "libraries": {"torch": "2.13.0"},
            "procedure_policy": "published",
            "isolation": "namespaces",
            **{name: hashlib.sha256(data).digest() for name, data in blobs.items()},
            **self.genesis,
        }
        self._append("genesis", **fields)
        for name, data in blobs.items():
            parts = chunks(data)
            for part, piece in enumerate(parts):
                self._append("blob", name=name, part=part, parts=len(parts), data=piece)
        self._append("commit", boundary=0, state=digest("state", 0), exact=digest("exact", 0))
        self._replay(0)

    def _unit(self, unit: int) -> bool:
        """One unit; False when a replay failed before it."""
        if not self._settle(unit - 1 - self.lag):
            return False
        if self.switches.chain.own_start:
            self._append("start", unit=unit, state=digest("start", unit), exact=digest("exact start", unit))
        for t in range((unit - 1) * self.unit, min(unit * self.unit, self.updates)):
            self._append(
                "declare", unit=unit, t=t, root=digest("batch", t), sequences=8, tokens=1024, fields=digest("fields", t)
            )
        self._append("commit", boundary=unit, state=digest("state", unit), exact=digest("exact", unit))
        self._append("key", unit=unit, **self._reveal())
        values = {group: ["int64", digest(unit, group) * (self.sketch_size // 32 or 1)] for group in self.groups}
        parts = chunks(encode(values))
        for part, piece in enumerate(parts):
            self._append("sketch", unit=unit, part=part, parts=len(parts), data=piece)
        draw = self._reveal()
        falls = self.switches.coin.challenged(draw["reveal"], *self.head, coin_threshold(self.p))
        challenged = falls or unit == self.units
        self._append("coin", unit=unit, **draw, challenged=challenged)
        if challenged:
            self.open.append(unit)
        self._append("checkpoint", note=sign_note(self._head().body, self.broker, self.trainer))
        return True

    def _reveal(self) -> Fields:
        self.drawn += 1
        return {"number": self.drawn, "reveal": self.beacon.reveal(self.drawn)}

    def _settle(self, unit: int) -> bool:
        for due in [u for u in self.open if u <= unit]:
            self.open.remove(due)
            if not self._replay(due):
                return False
        return True

    def _replay(self, unit: int) -> bool:
        failed = self.fails[1] if self.fails and self.fails[0] == unit else None
        checks = dict.fromkeys(self.switches.replay_checks(unit) if unit else ("init.digest",), True)
        reals = {group: f64(0.01 * number) for number, group in enumerate(self.groups)} if unit else {}
        yardstick = {group: f64(10.0) for group in self.groups} if unit else {}
        self._append(
            "replay",
            unit=unit,
            verdict="failed" if failed else "passed",
            failed=failed,
            checks={**checks, failed: False} if failed else checks,
            distances=reals,
            yardstick={} if failed else yardstick,
            attempts=1,
            isolation="namespaces",
        )
        return failed is None

    def _finish(self, status: str) -> Certificate:
        units = self.units
        if status == "complete":
            if not self._settle(units):
                return self._finish("rejected")
            if self.shows_evaluation:
                checks = {"evaluation.value": True}
                self._append(
                    "evaluation", boundary=units, set=digest("evaluation"), values={"loss": f64(2.5)}, checks=checks
                )
        done = max((r["unit"] for r in self._taped("coin")), default=0)
        failed = self.fails[1] if self.fails and status == "rejected" else None
        self._append(
            "final",
            status=status,
            boundary=done,
            state=digest("state", done),
            exact=digest("exact", done),
            parameters=digest("parameters") if not failed else bytes(32),
            weights=hashlib.sha256(WEIGHTS).digest() if not failed else bytes(32),
            checks={failed: False} if failed else dict.fromkeys(self.switches.sealing.checks, True),
            failed=failed,
            units=done,
            rewinds=self.count_rewinds,
        )
        return self._closed(status)

    def _taped(self, kind: str) -> Iterator[Fields]:
        return (record for _, record in iter_records(io.BytesIO(self.tape.getvalue())) if record["kind"] == kind)

    def _head(self) -> Checkpoint:
        return Checkpoint(run_origin("test-run"), self.tape.size, self.tape.root())

    def _closed(self, status: str) -> Certificate:
        tape, head = self.tape.getvalue(), self._head()
        if status == "rejected":
            return Certificate(tape, sign_note(head.body, self.broker))
        records = Certificate(tape).records
        statement = sign_statement(build_statement(records[0], records[-1], head), self.broker)
        return Certificate(tape, sign_note(head.body, self.broker, self.trainer), statement)


def edit(kind: str, where: Fields | None = None, **changes: Any) -> Tamper:
    """Change the records of a kind that have the given fields; a callable change is given the record's fields."""

    def tamper(of: str, fields: Fields) -> Fields:
        if of != kind or any(fields[name] != value for name, value in (where or {}).items()):
            return fields
        return {**fields, **{name: new(fields) if callable(new) else new for name, new in changes.items()}}

    return tamper


def drop(kind: str, **where: Any) -> Tamper:
    """Leave out the records of a kind that have the given fields."""

    def tamper(of: str, fields: Fields) -> Fields | None:
        return None if of == kind and all(fields[name] == value for name, value in where.items()) else fields

    return tamper


def without(name: str, key: str) -> Callable[[Fields], Fields]:
    """The map field `name` without one key."""
    return lambda fields: {k: v for k, v in fields[name].items() if k != key}


def plus(name: str, **items: Any) -> Callable[[Fields], Fields]:
    """The map field `name` with more items."""
    return lambda fields: {**fields[name], **items}


def frames(tape: bytes) -> list[bytes]:
    """The raw records of a tape, without their length prefixes."""
    found, at = [], 0
    while at < len(tape):
        size = int.from_bytes(tape[at : at + 2], "big")
        found.append(tape[at + 2 : at + 2 + size])
        at += 2 + size
    return found


def joined(raws: list[bytes]) -> bytes:
    """A tape of raw records."""
    return b"".join(len(raw).to_bytes(2, "big") + raw for raw in raws)


def rechained(records: list[Fields], resign: SigningKey | None = None) -> bytes:
    """A tape of edited records with numbers and links patched: what a forger can always do.

    Args:
        records: the records, in the order to be taped.
        resign: a key whose line is made anew on every head; the other lines are left as they were.
    """
    writer, prev = TapeWriter(), FIRST_PREV
    raws = []
    for index, record in enumerate(records):
        fields = {name: value for name, value in record.items() if name not in ("i", "kind", "prev")}
        if record["kind"] == "checkpoint" and resign is not None:
            body = Checkpoint(run_origin("test-run"), writer.size, writer.root()).body
            lines = record["note"].rpartition("\n\n")[2].splitlines(keepends=True)
            others = "".join(line for line in lines if f" {resign.name} " not in line)
            fields["note"] = add_signature(body + "\n" + others, resign)
        raw = encode({**fields, "i": index, "kind": record["kind"], "prev": prev})
        writer.append(record["kind"], **fields)
        prev = leaf_hash(raw)
        raws.append(raw)
    return joined(raws)


def pinned() -> VerifyKey:
    """The broker key that a verifier pins."""
    return BROKER.public_key
