"""The prover in this process: registers runs, draws their seeds, computes S_0 and opens their tapes."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from importlib import metadata
from typing import TYPE_CHECKING, Any

import cbor2

from witbench.config import RunConfig
from witbench.errors import ConfigError, ProtocolError, StateError, TapeError
from witbench.kernels.manifest import build_manifest, group_names, manifest_to_bytes
from witbench.protocol import notes
from witbench.protocol.beacon import Beacon, CounterFile, reveals_needed
from witbench.protocol.broker import LocalBroker
from witbench.protocol.commitments import commit_state
from witbench.protocol.comparator import Comparator
from witbench.protocol.encoding import f64
from witbench.protocol.ledger import Ledger, Plan
from witbench.protocol.messages import Grant, Prover, Registration
from witbench.protocol.records import BLOBS, PUBLISHED, VERSION, chunks
from witbench.protocol.replayer import Replayer
from witbench.protocol.runfiles import RunFiles
from witbench.protocol.runlog import Attempts, RunLog
from witbench.protocol.sandbox import Job, Sandbox, SandboxFailure
from witbench.protocol.snapshots import write_durably
from witbench.protocol.switches import Switches, coin_threshold, threshold_to_bytes
from witbench.protocol.tape import TapeWriter
from witbench.protocol.terms import Terms
from witbench.protocol.tolerances import tolerances
from witbench.registry import SKETCHES, build
from witbench.training.data import BIN, load_data
from witbench.training.serialize import state_from_bytes, state_to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from witbench.kernels.base import Manifest, SketchDesign

LIBRARIES = ("torch", "numpy", "safetensors", "blake3")
"""Packages whose versions genesis records; `exact` replay needs the same."""

BYTE_TOKENIZER = hashlib.sha256(b"witbench/tokenizer/bytes/v0\n").digest()
"""Digest of the tokenizer that takes each byte for a token."""
NO_TOKENIZER = hashlib.sha256(b"witbench/tokenizer/none/v0\n").digest()
"""Stands for the tokenizer of data that came as tokens (`data=bin`): the certificate speaks of tokens alone."""


class Home:
    """The prover's home, which outlives its runs.

    Holds `broker.key` (private), `broker.vkey` (what verifiers pin) and `registry/`, the signed log of runs.

    Args:
        folder: made when missing.
        seed: of the signing key when it is made; random when None. Only simulations give one.
    """

    def __init__(self, folder: Path, seed: bytes | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        secret = folder / "broker.key"
        if not secret.exists():
            write_durably(secret, seed or secrets.token_bytes(32), private=True)
        kept = secret.read_bytes()
        if len(kept) != 32:
            raise ConfigError(f"{secret}: not a signing key of 32 bytes; restore it, or begin with another home")
        self.key = notes.SigningKey.from_seed("witbench-broker", kept)
        self.pinned = folder / "broker.vkey"
        if not self.pinned.exists():
            write_durably(self.pinned, (self.key.vkey + "\n").encode())
        self.registry = RunLog(folder / "registry", self.key)


class LocalProver(Prover):
    """A prover for one run.

    Args:
        home: its keys and registry.
        folder: the run's folder; `cert/` in it becomes the certificate, `prover/` is private.
        sandbox: an open sandbox with the run's thread count.
        draw: 32 secret bytes for a label; replaced only in simulations that must be repeatable.
    """

    def __init__(
        self,
        home: Home,
        folder: Path,
        sandbox: Sandbox,
        draw: Callable[[str], bytes] = lambda label: secrets.token_bytes(32),
    ) -> None:
        self._home = home
        self._sandbox = sandbox
        self._draw = draw
        self._cert = folder / "cert"
        self._private = folder / "prover"

    def register(self, registration: Registration) -> tuple[Grant, LocalBroker]:
        """Log a run, draw its seeds, compute S_0 and open its tape."""
        procedure = hashlib.sha256(registration.procedure).digest()
        run = self._draw("run").hex()[:32]
        attempts = self._home.registry.register(run, registration.dataset_root, procedure, registration.trainer_key)
        self._cert.mkdir(parents=True, exist_ok=True)
        self._private.mkdir(mode=0o700, exist_ok=True)
        drawn = {
            "run": run,
            "init_seed": int.from_bytes(self._draw("init")[:7], "big"),
            "order_seed": self._draw("order"),
            "beacon": self._draw("beacon"),
            "attempts": [attempts.attempt, attempts.trainer_attempt],
            "registration": vars(registration),
        }
        write_durably(self._private / "run.cbor", cbor2.dumps(drawn), private=True)
        return self._open(registration, drawn, TapeWriter(self._cert / "tape", fsync=True))

    def resume(self) -> tuple[Grant, LocalBroker]:
        """Take up the run that was registered here and stopped."""
        path = self._private / "run.cbor"
        if not path.exists():
            raise ProtocolError(
                "run.resume", f"{path.parent.parent} holds no run that was registered; begin another one"
            )
        drawn = cbor2.loads(path.read_bytes())
        tape = self._cert / "tape"
        if (self._cert / "checkpoint").exists():
            raise ProtocolError("run.resume", "this run has ended")
        writer = TapeWriter.reopen(tape, fsync=True) if tape.exists() else TapeWriter(tape, fsync=True)
        return self._open(Registration(**drawn["registration"]), drawn, writer)

    def _open(
        self, registration: Registration, drawn: Mapping[str, Any], tape: TapeWriter
    ) -> tuple[Grant, LocalBroker]:
        config = RunConfig.from_plain(json.loads(registration.config))
        switches = Switches.from_names(config.switch_names())
        plan = Plan(config.training.updates, config.protocol.unit)
        design = build(SKETCHES, config.sketch.name, config.sketch.params)
        initial, manifest = self._initial(registration.procedure, drawn["init_seed"], config)
        tau, calibration = tolerances(config, manifest)
        comparator = Comparator(design, manifest, switches.tolerance, tau)
        training, evaluation = load_data(config.data, config.model.vocab)
        own = (training.root, len(training), training.dtype, evaluation.root)
        if own != (
            registration.dataset_root,
            registration.dataset_tokens,
            registration.dataset_dtype,
            registration.evaluation_root,
        ):
            raise ProtocolError("register.dataset", "the prover's own copy of the data is another one")
        replayer = Replayer(
            self._sandbox,
            registration.procedure,
            comparator,
            training,
            drawn["order_seed"],
            initial,
            switches,
        )
        terms = Terms(
            switches,
            coin_threshold(config.protocol.p),
            plan,
            config.protocol.lag,
            math.ceil(config.protocol.deadline_s),
            comparator,
            replayer,
            evaluation,
            commit_state(state_from_bytes(initial), manifest),
        )
        reveals = 2 * reveals_needed(plan.units, evaluations=1)
        beacon = Beacon(drawn["beacon"], reveals)
        files = RunFiles(
            self._cert,
            drawn["run"],
            tape,
            beacon,
            CounterFile(self._private / "reveals"),
            self._home.key,
            notes.VerifyKey.parse(registration.trainer_key),
            self._home.registry,
        )
        blobs = {
            "config": registration.config,
            "manifest": manifest_to_bytes(manifest),
            "procedure": registration.procedure,
        }
        opening = _opening_records(
            config, registration, drawn, terms, design, blobs, calibration, self._home.key.vkey, beacon
        )
        _complete_opening(tape, opening)
        (taped, _) = next(files.heads())
        if taped["calibration"] != calibration:
            raise ConfigError(
                f"tolerance.calibration={config.tolerance.calibration}: changed since this run began; restore the file"
            )
        ledger = Ledger(switches)
        for record, head in files.heads():
            ledger.feed(record, head)
        broker = LocalBroker(terms, files, ledger)
        grant = Grant(drawn["run"], drawn["init_seed"], drawn["order_seed"], blobs["manifest"], files.records())
        return grant, broker

    def _initial(self, procedure: bytes, seed: int, config: RunConfig) -> tuple[bytes, Manifest]:
        """The prover's own S_0, serialised, and its manifest."""
        try:
            initial = state_from_bytes(self._sandbox.run(Job.init(procedure, seed)))
            manifest = build_manifest(initial.real, config.sketch.groups)
        except SandboxFailure as error:
            raise ProtocolError("init.digest", f"init gave no state ({error.kind}): {error.detail}") from None
        except StateError as error:
            raise ProtocolError("init.digest", f"init gave no state: {error}") from None
        return state_to_bytes(initial), manifest


def _opening_records(
    config: RunConfig,
    registration: Registration,
    drawn: Mapping[str, Any],
    terms: Terms,
    design: SketchDesign,
    blobs: Mapping[str, bytes],
    calibration: bytes | None,
    broker_key: str,
    beacon: Beacon,
) -> list[tuple[str, dict[str, Any]]]:
    """Genesis and the blobs it names."""
    attempts = Attempts(*drawn["attempts"])
    properties = design.describe()
    genesis = {
        "version": VERSION,
        "run": drawn["run"],
        "attempt": attempts.attempt,
        "trainer_attempt": attempts.trainer_attempt,
        "dataset": {
            "root": registration.dataset_root,
            "tokens": registration.dataset_tokens,
            "dtype": registration.dataset_dtype,
        },
        "order": {"rule": terms.switches.order.name, "seed": drawn["order_seed"]},
        "init_seed": drawn["init_seed"],
        "updates": terms.plan.updates,
        "unit": terms.plan.unit,
        "evaluation_root": registration.evaluation_root,
        "tokenizer": NO_TOKENIZER if config.data.name == BIN else BYTE_TOKENIZER,
        "sketch": {
            "name": config.sketch.name,
            "config": json.dumps({**config.sketch.params, "groups": config.sketch.groups}, sort_keys=True),
            "exact": properties.exact,
            "tolerance": f64(design.recompute_tolerance),
        },
        "groups": list(group_names(terms.comparator.manifest)),
        "switches": terms.switches.names(),
        "p": threshold_to_bytes(terms.threshold),
        "tau": {phase: _reals(values) for phase, values in terms.comparator.tau.phases().items()},
        "warmup": terms.comparator.tau.units,
        "evaluation_tau": _reals(terms.comparator.tau.evaluation),
        "calibration": calibration,
        "anchor": beacon.anchor,
        "reveals": beacon.length,
        "lag": terms.lag,
        "deadline": terms.deadline,
        "broker_key": broker_key,
        "trainer_key": registration.trainer_key,
        "threads": config.training.threads,
        "libraries": {name: metadata.version(name) for name in LIBRARIES},
        "procedure_policy": PUBLISHED,
        "isolation": terms.replayer.sandbox.isolation,
        **{name: hashlib.sha256(blobs[name]).digest() for name in BLOBS},
    }
    records: list[tuple[str, dict[str, Any]]] = [("genesis", genesis)]
    for name in BLOBS:
        parts = chunks(blobs[name])
        for part, data in enumerate(parts):
            records.append(("blob", {"name": name, "part": part, "parts": len(parts), "data": data}))
    return records


def _reals(values: Mapping[str, float]) -> dict[str, bytes]:
    return {name: f64(value) for name, value in values.items()}


def _complete_opening(tape: TapeWriter, records: list[tuple[str, dict[str, Any]]]) -> None:
    """Write what a stop left unwritten of genesis and its blobs."""
    for kind, fields in records[tape.size :]:
        try:
            tape.append(kind, **fields)
        except TapeError as error:
            raise ConfigError(f"this run does not fit the tape's format: {error.reason}") from None
