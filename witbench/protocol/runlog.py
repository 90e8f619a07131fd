"""The registry of runs: an append-only log in which every run is entered before anything is drawn for it.

A folder with `log` (length-prefixed canonical CBOR entries, chained by leaf hashes) and `head` (a checkpoint over all
of them, signed by the broker). Runs that are rejected or never closed stay in it and count as attempts.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from witbench.errors import ProtocolError, TapeError
from witbench.protocol.encoding import decode, encode
from witbench.protocol.merkle import Frontier
from witbench.protocol.notes import Checkpoint, Note, sign_note, verify_note
from witbench.protocol.records import HASH, MAX_RECORD, VERSION, Bytes, Fields, Number, Text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from witbench.protocol.notes import SigningKey, VerifyKey

STATUSES = ("complete", "rejected", "incomplete")

_COMMON = {"i": Number(), "kind": Text(16), "prev": HASH, "version": Number(), "run": Text(64)}
_ENTRIES = {
    "register": Fields(
        {
            **_COMMON,
            "dataset": HASH,
            "procedure": HASH,
            "trainer": Text(256),
            "attempt": Number(1),
            "trainer_attempt": Number(1),
        }
    ),
    "close": Fields({**_COMMON, "status": Text(among=STATUSES), "size": Number(), "root": Bytes(32)}),
}
_FIRST_PREV = bytes(32)


@dataclass(frozen=True)
class Attempts:
    """Which attempt a run is.

    Attributes:
        attempt: among the runs with its dataset root and procedure digest, from 1.
        trainer_attempt: among the runs of its trainer key, from 1.
    """

    attempt: int
    trainer_attempt: int


def log_origin(key: VerifyKey) -> str:
    """Origin line of the heads of a broker's registry."""
    return f"witbench/registry/{key.label}"


class RunLog:
    """A broker's registry. Safe to use from several processes: a file lock is held while an entry is made.

    Args:
        folder: made when missing.
        key: the broker's signing key.
    """

    def __init__(self, folder: Path, key: SigningKey) -> None:
        self.folder = folder
        self._key = key
        folder.mkdir(parents=True, exist_ok=True)

    def register(self, run: str, dataset: bytes, procedure: bytes, trainer: str) -> Attempts:
        """Enter a run before it begins; says which attempt it is.

        Args:
            run: run id, never used before.
            dataset: dataset root.
            procedure: procedure digest.
            trainer: the trainer's vkey.

        Raises:
            ProtocolError: the run id was used before (`registry.run`).
        """
        with self._locked():
            entries = self._recovered()
            past = [entry for entry in entries if entry["kind"] == "register"]
            if any(entry["run"] == run for entry in past):
                raise ProtocolError("registry.run", f"run {run} is registered already")
            same_job = [entry for entry in past if (entry["dataset"], entry["procedure"]) == (dataset, procedure)]
            same_trainer = [entry for entry in past if entry["trainer"] == trainer]
            attempts = Attempts(len(same_job) + 1, len(same_trainer) + 1)
            fields = {"dataset": dataset, "procedure": procedure, "trainer": trainer}
            self._enter(entries, "register", run, {**fields, **vars(attempts)})
        return attempts

    def close(self, run: str, status: str, size: int, root: bytes) -> None:
        """Enter how a run ended, with the last head of its tape.

        Raises:
            ProtocolError: the run is not registered, or was closed before (`registry.run`).
        """
        with self._locked():
            entries = self._recovered()
            kinds = [entry["kind"] for entry in entries if entry["run"] == run]
            if kinds != ["register"]:
                raise ProtocolError("registry.run", f"run {run} is {'closed already' if kinds else 'not registered'}")
            self._enter(entries, "close", run, {"status": status, "size": size, "root": root})

    def entries(self) -> list[dict[str, Any]]:
        """All entries, checked against the signed head. Raises TapeError."""
        with self._locked():
            self._recovered()
            return read_run_log(self.folder, self._key.public_key)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _recovered(self) -> list[dict[str, Any]]:
        """The entries, after a stop between an entry and its head was mended."""
        log = self.folder / "log"
        if not log.exists():
            return []
        entries, frontier, whole = _parse(log.read_bytes())
        os.truncate(log, whole)
        signed = _signed_head(self.folder, self._key.public_key)
        covered = signed.size if signed else 0
        if signed and (covered > len(entries) or _frontier_of(entries[:covered])[0].root() != signed.root):
            raise TapeError("the registry's log is not the one its head was signed over; restore it")
        if len(entries) - covered > 1:
            raise TapeError("the registry holds more than one entry beyond its signed head; restore it")
        if len(entries) > covered:
            self._sign(frontier)
        return entries

    def _enter(self, entries: list[dict[str, Any]], kind: str, run: str, fields: dict[str, Any]) -> None:
        frontier, prev = _frontier_of(entries)
        entry = {"i": frontier.size, "kind": kind, "prev": prev, "version": VERSION, "run": run, **fields}
        if trouble := _ENTRIES[kind].problem(entry):
            raise ProtocolError("registry.entry", trouble)
        raw = encode(entry)
        with (self.folder / "log").open("ab") as log:
            log.write(len(raw).to_bytes(2, "big") + raw)
            log.flush()
            os.fsync(log.fileno())
        frontier.append(raw)
        self._sign(frontier)

    def _sign(self, frontier: Frontier) -> None:
        body = Checkpoint(log_origin(self._key.public_key), frontier.size, frontier.root()).body
        temporary = self.folder / "head.part"
        with temporary.open("w", encoding="utf-8") as file:
            file.write(sign_note(body, self._key))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.folder / "head")


def read_run_log(folder: Path, key: VerifyKey) -> list[dict[str, Any]]:
    """The entries of a registry, as anyone can check them with the broker's public key.

    Raises:
        TapeError: the log is torn, its entries are not chained, or its head does not cover them.
    """
    data = (folder / "log").read_bytes() if (folder / "log").exists() else b""
    entries, frontier, whole = _parse(data)
    if whole != len(data):
        raise TapeError("the registry's log is cut inside an entry", frontier.size)
    signed = _signed_head(folder, key)
    if entries and (signed is None or (signed.size, signed.root) != (frontier.size, frontier.root())):
        raise TapeError("the registry's head is not over its entries")
    return entries


def _signed_head(folder: Path, key: VerifyKey) -> Checkpoint | None:
    path = folder / "head"
    if not path.exists():
        return None
    text = path.read_text(encoding="utf-8")
    if verify_note(text, [key]) != (key,):
        raise TapeError("the registry's head is not signed by the broker")
    head = Checkpoint.parse(Note.parse(text).body)
    if head.origin != log_origin(key):
        raise TapeError("the registry's head is of another log")
    return head


def _frontier_of(entries: list[dict[str, Any]]) -> tuple[Frontier, bytes]:
    frontier, prev = Frontier(), _FIRST_PREV
    for entry in entries:
        prev = frontier.append(encode(entry))
    return frontier, prev


def _parse(data: bytes) -> tuple[list[dict[str, Any]], Frontier, int]:
    """Entries, their frontier, and the bytes they take; a torn last entry is left out."""
    entries: list[dict[str, Any]] = []
    frontier, prev, at = Frontier(), _FIRST_PREV, 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        raw = data[at + 2 : at + 2 + size]
        if len(raw) < size:
            break
        entry = _checked(raw, len(entries), prev)
        prev = frontier.append(raw)
        entries.append(entry)
        at += 2 + size
    return entries, frontier, at


def _checked(raw: bytes, index: int, prev: bytes) -> dict[str, Any]:
    try:
        entry = decode(raw, MAX_RECORD)
    except TapeError as error:
        raise TapeError(f"registry: {error.reason}", index) from None
    kind = entry.get("kind")
    schema = _ENTRIES.get(kind) if isinstance(kind, str) else None
    trouble = schema.problem(entry) if schema else "unknown kind"
    if trouble is None and (entry["i"], entry["prev"]) != (index, prev):
        trouble = "not chained to the entry before it"
    if trouble:
        raise TapeError(f"registry: {trouble}", index)
    return entry
