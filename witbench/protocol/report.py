"""The outcome of a verification, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from witbench.protocol.numbers import Numbers

ACCEPTED = "accepted"
SELF_CERTIFIED = "self-certified"
FAILED_RUN = "rejected run"
INCOMPLETE = "incomplete"
INVALID = "invalid"


@dataclass(frozen=True)
class Facts:
    """What a readable tape says of its run, whether or not it is accepted; hashes in hex.

    Attributes:
        run, attempt, trainer_attempt: run id, and which attempt it is.
        dataset, dataset_tokens, order, tokenizer: the data.
        procedure, procedure_policy, config: what was run.
        updates, unit, units: the plan.
        sketch, groups, tolerance, p, lag, switches: the protocol.
        warmup, calibration: units of the warm-up phase, and the calibration that tau is from (empty without one).
        broker, trainer: names and ids of the signing keys.
        threads, libraries: what `exact` tolerance needs.
        isolation: the weakest isolation of a replay on the tape, or the one genesis announces.
    """

    run: str
    attempt: int
    trainer_attempt: int
    dataset: str
    dataset_tokens: int
    order: str
    tokenizer: str
    procedure: str
    procedure_policy: str
    config: str
    updates: int
    unit: int
    units: int
    sketch: str
    groups: int
    tolerance: str
    warmup: int
    calibration: str
    p: float
    lag: int
    switches: Mapping[str, str]
    broker: str
    trainer: str
    threads: int
    libraries: Mapping[str, str]
    isolation: str


@dataclass(frozen=True)
class Report:
    """What a verification found.

    Attributes:
        status: `accepted`, `self-certified` (sound, but no broker key was pinned), `rejected run` (the tape is sound
            and says that a check failed), `incomplete` (sound up to where it ends), or `invalid`.
        reason: why it is not accepted; None when it is.
        record: number of the record at fault, or at which the tape ends.
        check: name of the failed check or policy rule, if it has one.
        records: records read.
        verified_units: units under signed heads that verify.
        head: Merkle root over all records read, hex.
        facts: None when genesis cannot be read.
        numbers: what the certificate proves; only for complete runs that verify.
        evaluation: name -> value of the evaluation re-run by the prover.
        weights: SHA-256 of the published weights file, hex.
        parameters: Merkle root over the published parameters, hex.
        weights_checked: whether a weights file was compared.
    """

    status: str
    reason: str | None
    record: int | None
    check: str | None
    records: int
    verified_units: int
    head: str
    facts: Facts | None = None
    numbers: Numbers | None = None
    evaluation: Mapping[str, float] = field(default_factory=dict)
    weights: str | None = None
    parameters: str | None = None
    weights_checked: bool = False

    @property
    def accepted(self) -> bool:
        """Whether the verdict is positive."""
        return self.status == ACCEPTED

    @property
    def self_certified(self) -> bool:
        """Whether only a pinned broker key is missing."""
        return self.status == SELF_CERTIFIED

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        plain = {**vars(self), "accepted": self.accepted, "evaluation": dict(self.evaluation)}
        plain["facts"] = vars(self.facts) if self.facts else None
        plain["numbers"] = self.numbers.to_plain() if self.numbers else None
        return plain
