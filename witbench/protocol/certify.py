"""One witnessed run from its configuration to its certificate; taken up where it stopped when it is run again."""

from __future__ import annotations

import fcntl
import hashlib
import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from witbench.config import AttackConfig, PlacementConfig, RunConfig
from witbench.errors import ConfigError, ProtocolError
from witbench.protocol import notes
from witbench.protocol.ledger import Plan
from witbench.protocol.messages import Registration, RunRejected
from witbench.protocol.prover import Home, LocalProver
from witbench.protocol.run import no_progress, run_units, take_up
from witbench.protocol.snapshots import SnapshotStore, write_durably
from witbench.protocol.switches import Switches
from witbench.protocol.tape import iter_records
from witbench.protocol.trainer import Trainer
from witbench.protocol.worker import Worker
from witbench.registry import SKETCHES, build
from witbench.training.data import load_data
from witbench.training.determinism import set_deterministic
from witbench.training.serialize import weights_to_bytes
from witbench.training.source import ProcedureSpec, builtin_spec, procedure_from

if TYPE_CHECKING:
    from pathlib import Path

    from witbench.protocol.messages import Grant
    from witbench.protocol.sandbox import Sandbox
    from witbench.training.state import State

WEIGHTS = "weights.safetensors"
"""The published file, beside the certificate."""

TrainerFactory = Callable[..., Trainer]


@dataclass(frozen=True)
class Certified:
    """What a witnessed run left behind.

    Attributes:
        folder: the run's folder: `cert/`, and beside it, private, `openings/`, `prover/` and `weights.safetensors`.
        failed: the check that the run failed, or None.
        detail: why.
        resumed: whether it had been stopped before.
    """

    folder: Path
    failed: str | None = None
    detail: str = ""
    resumed: bool = False

    @property
    def cert(self) -> Path:
        """The certificate's folder."""
        return self.folder / "cert"

    @property
    def weights(self) -> Path:
        """The published weights file."""
        return self.folder / WEIGHTS


def declared_config(config: RunConfig) -> RunConfig:
    """The configuration as the trainer declares it: that of the honest run."""
    return replace(config, attack=AttackConfig(), placement=PlacementConfig())


def config_bytes(config: RunConfig) -> bytes:
    """Canonical JSON of a configuration."""
    return json.dumps(config.to_plain(), sort_keys=True, separators=(",", ":")).encode()


def run_key(config: RunConfig) -> str:
    """Name of a run's folder: a hash of its configuration."""
    return hashlib.sha256(config_bytes(config)).hexdigest()[:16]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a run's folder; a second process at the same run would double its records."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ProtocolError("run.lock", f"another process is at the run in {folder}; let it end first") from None
        yield


def ended(folder: Path) -> Certified | None:
    """How the run in a folder ended; None when it has not, or there is none."""
    tape, checkpoint = folder / "cert" / "tape", folder / "cert" / "checkpoint"
    if not checkpoint.exists():
        return None
    failed: str | None = None
    with tape.open("rb") as stream:
        for _, record in iter_records(stream):
            failed = record.get("failed")
    return Certified(folder, failed, "as its tape says" if failed else "")


@dataclass
class WitnessedRun:
    """A run between its configuration and its certificate.

    Args:
        config: the run's configuration.
        folder: where it goes; made when missing.
        home: the prover's home.
        sandbox: an open sandbox with the run's thread count.
        spec: the procedure; the built-in one when not given.
        trainer: makes the trainer from procedure, data, evaluation set and order seed; the honest one when not given.
        draw: the prover's randomness; see LocalProver.
        secret: the trainer's 64 secret bytes: signing key and root of its salts. Only simulations replace either.
    """

    config: RunConfig
    folder: Path
    home: Home
    sandbox: Sandbox
    spec: ProcedureSpec | None = None
    trainer: TrainerFactory = Trainer
    draw: Callable[[str], bytes] = lambda label: secrets.token_bytes(32)
    secret: Callable[[], bytes] = lambda: secrets.token_bytes(64)

    def __call__(self, progress: Callable[[int, int], None] = no_progress) -> Certified:
        """Train, or go on training, under the witness.

        Raises:
            WitbenchError: the user's mistakes, among them a state that no sketch covers (StateError); what was
                written before stands.
        """
        with _locked(self.folder):
            return self._certify(progress)

    def _certify(self, progress: Callable[[int, int], None]) -> Certified:
        config = self.config
        set_deterministic(config.training.threads)
        spec = self.spec or builtin_spec(config.procedure_plain())
        training, evaluation = load_data(config.data, config.model.vocab)
        prover = LocalProver(self.home, self.folder, self.sandbox, self.draw)
        signer, run_secret = self._secrets()
        resumed = (self.folder / "prover" / "run.cbor").exists()
        if resumed:
            grant, broker = prover.resume()
        else:
            grant, broker = prover.register(
                Registration(
                    training.root,
                    len(training),
                    training.dtype,
                    evaluation.root,
                    spec.to_bytes(),
                    config_bytes(declared_config(config)),
                    signer.vkey,
                )
            )
        trainer = self.trainer(procedure_from(spec), training, evaluation, grant.order_seed)
        design = build(SKETCHES, config.sketch.name, config.sketch.params)
        snapshots = SnapshotStore(self.folder / "openings" / "snapshots")
        switches = Switches.from_names(config.switch_names())
        worker = Worker(broker, grant, design, run_secret, signer, snapshots, switches)
        try:
            self._run(trainer, worker, grant, progress)
        except RunRejected as error:
            return Certified(self.folder, error.check, error.reason, resumed)
        finally:
            broker.close()
        return Certified(self.folder, resumed=resumed)

    def _run(self, trainer: Trainer, worker: Worker, grant: Grant, progress: Callable[[int, int], None]) -> None:
        plan = Plan(self.config.training.updates, self.config.protocol.unit)
        at = worker.resumption()
        if at.phase == "seal":
            worker.seal(at.head or "")
            return
        if at.phase == "begin":
            state, first = trainer.start(grant.init_seed), 1
            worker.begin(state)
        else:
            state, first = take_up(trainer, worker, plan, at)
        state = run_units(trainer, worker, plan, state, first, progress)
        self._publish(trainer, worker, state)

    def _publish(self, trainer: Trainer, worker: Worker, state: State) -> None:
        published = trainer.publish(state)
        weights = weights_to_bytes(published)
        write_durably(self.folder / WEIGHTS, weights)
        worker.finish(trainer.open_final(state), hashlib.sha256(weights).digest(), trainer.evaluate(published))

    def _secrets(self) -> tuple[notes.SigningKey, bytes]:
        """The trainer's signing key and the root of its salt ladder, made once a run."""
        openings = self.folder / "openings"
        openings.mkdir(parents=True, exist_ok=True)
        path = openings / "secrets"
        if not path.exists():
            write_durably(path, self.secret(), private=True)
        data = path.read_bytes()
        if len(data) != 64:
            raise ConfigError(f"{path}: not the secrets of a run; a run without them cannot go on")
        return notes.SigningKey.from_seed("witbench-trainer", data[:32]), data[32:]
