"""Messages between worker and broker, and the interface that every broker has, in this process or in another.

All fields are plain data (bytes, integers, text), so that a remote broker only has to carry them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from witbench.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from witbench.protocol.commitments import BatchCommitment


@dataclass(frozen=True)
class Registration:
    """What the trainer registers before anything is drawn.

    Attributes:
        dataset_root: root of the training data.
        dataset_tokens: its number of tokens.
        dataset_dtype: its token dtype, such as `uint8`.
        evaluation_root: root of the evaluation set.
        procedure: serialised ProcedureSpec.
        config: resolved configuration, canonical JSON.
        trainer_key: vkey that signs the heads.
    """

    dataset_root: bytes
    dataset_tokens: int
    dataset_dtype: str
    evaluation_root: bytes
    procedure: bytes
    config: bytes
    trainer_key: str


@dataclass(frozen=True)
class Grant:
    """A registered run: what the broker drew for it, and the records that open its tape.

    Attributes:
        run: run id.
        init_seed: seed of `init`.
        order_seed: 32-byte seed of the data order.
        manifest: serialised manifest, from the broker's own S_0.
        records: raw records appended to the tape so far.
    """

    run: str
    init_seed: int
    order_seed: bytes
    manifest: bytes
    records: tuple[bytes, ...]


@dataclass(frozen=True)
class Resumption:
    """Where a stopped run stands.

    Attributes:
        phase: what the broker awaits.
        current: the unit that the next worker record would belong to.
        open: units whose challenge was not settled.
        head: a head that still has to be cosigned, if any.
        records: raw records appended on taking the run up.
    """

    phase: str
    current: int
    open: tuple[int, ...]
    head: str | None
    records: tuple[bytes, ...]


@dataclass(frozen=True)
class KeyReply:
    """kappa for the unit whose state was just committed."""

    key: bytes
    records: tuple[bytes, ...]


@dataclass(frozen=True)
class CoinReply:
    """Whether the unit is challenged, and the broker-signed head to cosign."""

    challenged: bool
    head: str
    records: tuple[bytes, ...]


@dataclass(frozen=True)
class HeadReply:
    """A broker-signed head to cosign."""

    head: str
    records: tuple[bytes, ...]


@dataclass(frozen=True)
class Opening:
    """What a challenged worker opens.

    Attributes:
        start: serialised state the unit started from.
        batches: serialised batch of each update.
        step_keys: step key of each update, from which the salts follow.
        end: serialised end state, with `open: both` only.
    """

    start: bytes
    batches: tuple[bytes, ...]
    step_keys: tuple[bytes, ...]
    end: bytes | None = None


@dataclass(frozen=True)
class FinalOpening:
    """The final state, the hash of the weights file to be published, and the evaluation to be shown."""

    state: bytes
    weights: bytes
    evaluation: Mapping[str, float]


class RunRejected(ProtocolError):
    """The run failed a check: its tape says so, is signed, and takes no more records."""


class Broker(ABC):
    """One run at the prover, as the worker sees it. Calls return the raw records they appended, for it to follow.

    A message out of turn raises ProtocolError; a run that fails a check raises RunRejected.
    """

    @abstractmethod
    def resumption(self) -> Resumption:
        """Where the run stands, for a worker that takes it up again."""

    @abstractmethod
    def begin(self, state: bytes, exact: bytes) -> tuple[bytes, ...]:
        """COMMIT of S_0."""

    @abstractmethod
    def start(self, unit: int, state: bytes, exact: bytes) -> tuple[bytes, ...]:
        """START: commits the state a unit starts from, before its first DECLARE; only where the chain has it so."""

    @abstractmethod
    def declare(self, unit: int, t: int, batch: BatchCommitment) -> tuple[bytes, ...]:
        """DECLARE of one update."""

    @abstractmethod
    def commit(self, unit: int, state: bytes, exact: bytes) -> KeyReply:
        """COMMIT of the state at the unit's end; answers with the key."""

    @abstractmethod
    def sketch(self, unit: int, data: bytes) -> CoinReply:
        """SKETCH of that state; answers with the coin and a head."""

    @abstractmethod
    def cosign(self, note: str) -> tuple[bytes, ...]:
        """The head, signed by the worker too."""

    @abstractmethod
    def open(self, unit: int, opening: Opening | None) -> None:
        """OPEN of a challenged unit; None is a refusal. The verdict follows on the tape at the fixed lag."""

    @abstractmethod
    def settled(self, unit: int) -> bool:
        """Whether nothing more can be asked about the unit: no challenge, or its REPLAY record is on the tape."""

    @abstractmethod
    def rewind(self, boundary: int) -> tuple[bytes, ...]:
        """Go back to a unit boundary; legal only when no challenge is open."""

    @abstractmethod
    def finish(self, opening: FinalOpening) -> HeadReply:
        """Open the final state: evaluation, `final`; answers with the closing head to cosign."""

    @abstractmethod
    def seal(self, note: str) -> None:
        """The closing head, signed by the worker too; the certificate is complete after it."""


class Prover(ABC):
    """Where runs are registered."""

    @abstractmethod
    def register(self, registration: Registration) -> tuple[Grant, Broker]:
        """Log a run, draw its seeds, compute S_0 and open its tape."""

    @abstractmethod
    def resume(self) -> tuple[Grant, Broker]:
        """Take up the run that was registered here and stopped; its grant holds every record so far."""
