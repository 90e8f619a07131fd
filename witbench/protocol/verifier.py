"""The public verifier: from a certificate and a pinned broker key to a verdict, in one pass and constant memory.

Imports neither torch nor numpy. A certificate is a folder with `tape`, `checkpoint` and `statement.json`; a tape alone
can be read too, but nothing signs its end, so it is never accepted.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from witbench.errors import ConfigError, DataError, TapeError
from witbench.protocol import report as outcome
from witbench.protocol.genesis import Genesis
from witbench.protocol.notes import MAX_NOTE, Checkpoint, Note, check_head
from witbench.protocol.policy import Policy, PolicyError
from witbench.protocol.records import COMPLETE, ISOLATIONS
from witbench.protocol.report import Facts, Report
from witbench.protocol.statement import MAX_STATEMENT, build_statement, open_statement
from witbench.protocol.tape import TapeReader
from witbench.protocol.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from witbench.protocol.notes import VerifyKey
    from witbench.protocol.numbers import Numbers

TAPE, CHECKPOINT, STATEMENT = "tape", "checkpoint", "statement.json"
"""Files of a certificate."""

NO_SECURITY = "self-certified: no security against the trainer (pin the broker's key with trust=FILE)"


def verify(
    cert: Path | BinaryIO, trust: VerifyKey | None = None, policy: Policy | None = None, weights: Path | None = None
) -> Report:
    """Check a certificate.

    Args:
        cert: a certificate's folder, or a tape alone as a file or a binary stream.
        trust: the broker key that is pinned; without it nothing is accepted.
        policy: the verifier's terms; the default ones when None.
        weights: a weights file that must be the published one.

    Raises:
        ConfigError: there is no such path.
        DataError: a file that is there cannot be read.
    """
    verification = _Verification(trust, policy or Policy())
    if not isinstance(cert, Path):
        return verification.run(cert, None, weights)
    if not cert.exists():
        raise ConfigError(f"{cert}: no such certificate")
    tape, folder = (cert / TAPE, cert) if cert.is_dir() else (cert, None)
    if not tape.is_file():
        return verification.refused(f"there is no certificate here: {cert} has no file `{TAPE}`")
    try:
        with tape.open("rb") as stream:
            return verification.run(stream, folder, weights)
    except OSError as error:
        raise DataError(f"{cert}: cannot be read ({error})") from None


class _Verification:
    """One verification; keeps how far it came, so that every outcome can say so."""

    def __init__(self, trust: VerifyKey | None, policy: Policy) -> None:
        self.trust = trust
        self.policy = policy
        self.reader: TapeReader | None = None
        self.genesis: Genesis | None = None
        self.walk: Walk | None = None

    def run(self, stream: BinaryIO, folder: Path | None, weights: Path | None) -> Report:
        """Read the tape, then what closes it."""
        try:
            walk = self._read(stream)
            if walk.final is None:
                return self._incomplete(walk, folder)
            self._check_end(walk, walk.final, folder)
            if walk.failed is None and weights is not None:
                self._check_weights(walk.final["weights"], weights)
        except PolicyError as error:
            return self._report(outcome.INVALID, error.reason, error.record, error.check)
        except TapeError as error:
            return self._report(outcome.INVALID, error.reason, error.record)
        if walk.failed is not None:
            reason = f"the run was rejected: {walk.failed} failed"
            return self._report(outcome.FAILED_RUN, reason, self._last(), walk.failed)
        checked = weights is not None
        if self.trust is None:
            return self._report(outcome.SELF_CERTIFIED, NO_SECURITY, None, "trust.key", checked)
        return self._report(outcome.ACCEPTED, None, None, None, checked)

    def refused(self, reason: str) -> Report:
        """An outcome without a tape."""
        return self._report(outcome.INVALID, reason, None)

    def _read(self, stream: BinaryIO) -> Walk:
        self.reader = TapeReader(stream)
        records = iter(self.reader)
        _, first = next(records, (b"", None))
        if first is None:
            raise TapeError("the tape is empty", 0)
        genesis = self.genesis = Genesis.read(first)
        if self.trust is not None and genesis.broker != self.trust:
            raise PolicyError("trust.key", f"the broker is {genesis.broker.vkey}, not the pinned {self.trust.vkey}", 0)
        walk = self.walk = Walk.begin(genesis, self.policy, self.reader.frontier)
        for _, record in records:
            walk.feed(record)
        return walk

    def _check_end(self, walk: Walk, final: Mapping[str, Any], folder: Path | None) -> None:
        """The closing head and the statement: the tape ends here, and nobody can take its end away."""
        genesis, last = walk.genesis, self._last()
        if folder is None:
            raise TapeError("a tape alone: no closing head signs its end; give the certificate's folder", last)
        head = Checkpoint(genesis.origin, walk.frontier.size, walk.frontier.root())
        try:
            note = _text(folder / CHECKPOINT, MAX_NOTE)
            complete = final["status"] == COMPLETE
            check_head(note, head, _closers(genesis, complete, note))
            if complete:
                payload = open_statement(_text(folder / STATEMENT, MAX_STATEMENT), genesis.broker)
                if payload != build_statement(genesis.record, final, head):
                    raise TapeError(f"{STATEMENT}: does not say what the tape says")
        except TapeError as error:
            raise TapeError(error.reason, last) from None

    def _check_weights(self, certified: bytes, path: Path) -> None:
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise DataError(f"weights {path}: cannot be read ({error})") from None
        if found != certified:
            raise PolicyError("weights.sha256", f"{path.name} is not the certified weights file", self._last())

    def _incomplete(self, walk: Walk, folder: Path | None) -> Report:
        reason = f"incomplete: verifies up to unit {walk.sealed} (record {self._last()}), and there is no `final`"
        if folder is not None and (folder / CHECKPOINT).is_file():
            try:
                size = Checkpoint.parse(Note.parse(_text(folder / CHECKPOINT, MAX_NOTE)).body).size
                reason += f"; its checkpoint is over {size} records, so the tape was cut"
            except TapeError as error:
                reason += f"; {error.reason}"
        if walk.failed is not None:
            reason += f"; {walk.failed} failed before it ended"
        return self._report(outcome.INCOMPLETE, reason, self._last(), walk.failed)

    def _last(self) -> int | None:
        return self.reader.size - 1 if self.reader and self.reader.size else None

    def _report(
        self, status: str, reason: str | None, record: int | None, check: str | None = None, checked: bool = False
    ) -> Report:
        reader, walk = self.reader, self.walk
        sound = status in (outcome.ACCEPTED, outcome.SELF_CERTIFIED)
        final = walk.final if walk and sound else None
        return Report(
            status=status,
            reason=reason,
            record=record,
            check=check,
            records=reader.size if reader else 0,
            verified_units=walk.sealed if walk else 0,
            head=reader.frontier.root().hex() if reader else "",
            facts=_facts(self.genesis, walk) if self.genesis else None,
            numbers=_numbers(walk) if walk and sound else None,
            evaluation=walk.shown[1] if walk and walk.shown and sound else {},
            weights=final["weights"].hex() if final else None,
            parameters=final["parameters"].hex() if final else None,
            weights_checked=checked,
        )


def _closers(genesis: Genesis, complete: bool, note: str) -> tuple[VerifyKey, ...]:
    """Who must have signed the closing head: the trainer of a rejected run may refuse to."""
    both = (genesis.broker, genesis.trainer)
    alone = not complete and len(Note.parse(note).signatures) == 1
    return both[:1] if alone else both


def _text(path: Path, longest: int) -> str:
    if not path.is_file():
        raise TapeError(f"there is no file `{path.name}` in the certificate")
    with path.open("rb") as file:
        data = file.read(longest + 1)
    if len(data) > longest:
        raise TapeError(f"{path.name}: longer than {longest} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise TapeError(f"{path.name}: not UTF-8 text") from None


def _numbers(walk: Walk) -> Numbers:
    genesis = walk.genesis
    return walk.tally.numbers(genesis.record["updates"], genesis.p, genesis.attempts, genesis.switches, genesis.tau)


def _facts(genesis: Genesis, walk: Walk | None) -> Facts:
    record = genesis.record
    replayed = [isolation for isolation in ISOLATIONS if walk and isolation in walk.isolations]
    return Facts(
        run=record["run"],
        attempt=record["attempt"],
        trainer_attempt=record["trainer_attempt"],
        dataset=record["dataset"]["root"].hex(),
        dataset_tokens=record["dataset"]["tokens"],
        order=record["order"]["rule"],
        tokenizer=record["tokenizer"].hex(),
        procedure=record["procedure"].hex(),
        procedure_policy=record["procedure_policy"],
        config=record["config"].hex(),
        updates=record["updates"],
        unit=record["unit"],
        units=genesis.units,
        sketch=f"{record['sketch']['name']} {record['sketch']['config']}",
        groups=len(record["groups"]),
        tolerance=genesis.switches.tolerance.name,
        warmup=genesis.tau.units,
        calibration=(record["calibration"] or b"").hex(),
        p=genesis.p,
        lag=record["lag"],
        switches=genesis.switches.names(),
        broker=genesis.broker.label,
        trainer=genesis.trainer.label,
        threads=record["threads"],
        libraries=dict(record["libraries"]),
        isolation=replayed[0] if replayed else record["isolation"],
    )
