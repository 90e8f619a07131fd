"""The bases of all attacks, and the one call that seeds, runs, verifies and grades them.

An attack lies in some steps of the protocol, edits a finished tape, or forges an answer. It says what it did; whether
it was detected is decided here, by the prover's verdict and the public verifier, never by the attack itself. Attacks
know everything (p, tau, the design, this code) but the broker's secrets.
"""

from __future__ import annotations

import copy
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np

from witbench.errors import ConfigError
from witbench.protocol.certify import Certified, WitnessedRun
from witbench.protocol.policy import Policy
from witbench.protocol.trainer import Trainer
from witbench.protocol.verifier import verify
from witbench.registry import PLACEMENTS, build

if TYPE_CHECKING:
    from witbench.attacks.placement import Placement, Positions
    from witbench.config import RunConfig
    from witbench.protocol.prover import Home
    from witbench.protocol.sandbox import Sandbox
    from witbench.training.data import Dataset
    from witbench.training.procedure import Procedure
    from witbench.training.source import ProcedureSpec
    from witbench.training.state import Batch, State


@dataclass(frozen=True)
class Scene:
    """Where an attack takes place.

    Attributes:
        config: the whole configuration: honest run, attack and placement.
        folder: an empty folder for what the run leaves.
        home: the prover's home.
        sandbox: an open sandbox with the run's thread count.
        spec: the procedure; the built-in one when None.
    """

    config: RunConfig
    folder: Path
    home: Home
    sandbox: Sandbox
    spec: ProcedureSpec | None = None

    def generator(self, label: str) -> np.random.Generator:
        """The attacker's randomness for one purpose; the prover's is drawn apart from it."""
        return np.random.default_rng(int.from_bytes(self.draw(f"attacker/{label}"), "big"))

    def draw(self, label: str) -> bytes:
        """32 bytes that follow from the trial's seed; what the prover draws has labels of its own."""
        return drawn(self.config.seed, label)

    def secret(self) -> bytes:
        """The trainer's secrets; coins hash the tape, so a trial is repeatable only if these are too."""
        return self.draw("trainer/key") + self.draw("trainer/salts")


def drawn(seed: int, label: str) -> bytes:
    """32 bytes that follow from a trial's seed and a label."""
    return hashlib.sha256(f"witbench/trial/v0\n{seed}\n{label}".encode()).digest()


@dataclass(frozen=True)
class Outcome:
    """How an attack ended.

    Attributes:
        detected: whether the run was rejected, or its certificate is.
        check: the first failing check or reason; None when undetected.
        payload: what the attack achieved, by name.
        cost_gradients: gradient evaluations the trainer spent.
        honest_gradients: gradient evaluations of the honest run.
        cost_seconds: wall time of the whole attack, the witness included.
    """

    detected: bool
    check: str | None
    payload: Mapping[str, float]
    cost_gradients: int
    honest_gradients: int
    cost_seconds: float


@dataclass(frozen=True)
class Evidence:
    """What a base hands to the grading call: the certificate to be judged and what was done to get it."""

    certified: Certified
    payload: Mapping[str, float]
    gradients: int


class Attack(ABC):
    """Anything that tries to get an untrue certificate accepted.

    Attributes:
        coin_oblivious: whether the attack acts the same whatever the coins show; only then may its rate be estimated
            unit by unit.
    """

    coin_oblivious: ClassVar[bool] = False

    @abstractmethod
    def run(self, scene: Scene) -> Evidence:
        """Carry the attack out."""

    @final
    def __call__(self, scene: Scene) -> Outcome:
        """Run the attack and grade it: detected means rejected by the prover, or by the public verifier.

        The verifier's terms are those of the run's own protocol, so that a weak preset is judged as it is meant.
        """
        began = time.monotonic()
        evidence = self.run(scene)
        certified = evidence.certified
        check = certified.failed
        if check is None:
            report = verify(certified.cert, scene.home.key.public_key, lenient(scene.config), certified.weights)
            check = None if report.accepted else report.check or report.reason
        honest = scene.config.training.updates
        seconds = time.monotonic() - began
        return Outcome(check is not None, check, evidence.payload, evidence.gradients, honest, seconds)


def lenient(config: RunConfig) -> Policy:
    """A policy that accepts the terms of a configuration, whatever they are, and nothing less."""
    switches = {name: (choice,) for name, choice in config.switch_names().items()}
    return Policy(p=config.protocol.p, tau_over_token=float("inf"), switches=switches)


class MaliciousTrainer(Trainer, Attack):
    """An honest trainer that overrides the steps in which it lies. Knobs are keyword arguments of `__init__`.

    `bind` makes the trainer of one run from it; a step finds what it needs in `positions` and `random`.
    """

    positions: Positions
    random: np.random.Generator

    @abstractmethod
    def amount(self) -> int:
        """Target positions that the placement has to pick."""

    @final
    def bind(self, positions: Positions, random: np.random.Generator, procedure: Procedure, *data: Any) -> Self:
        """This attack as the trainer of one run; `data` is what Trainer takes beside the procedure."""
        bound = copy.copy(self)
        Trainer.__init__(bound, procedure, *data)
        bound.positions, bound.random = positions, random
        return bound

    def payload(self) -> dict[str, float]:
        """What was achieved in the run that this trainer was bound to."""
        return {"tokens": float(sum(map(len, self.positions.values()))), "updates": float(len(self.positions))}

    @final
    def run(self, scene: Scene) -> Evidence:
        """Train under the witness, lying where the attack lies."""
        config = scene.config
        placement: Placement = build(PLACEMENTS, config.placement.name, config.placement.params)
        tokens = config.training.sequences * config.model.context
        shape = (tokens, config.training.updates, config.protocol.unit)
        positions = placement.draw(self.amount(), *shape, scene.generator("placement"))
        made: list[MaliciousTrainer] = []

        def trainer(procedure: Procedure, *data: Any) -> Trainer:
            made.append(self.bind(positions, scene.generator("trainer"), Counting(procedure), *data))
            return made[0]

        witnessed = WitnessedRun(
            config, scene.folder, scene.home, scene.sandbox, scene.spec, trainer, scene.draw, scene.secret
        )
        certified = witnessed()
        counting = made[0].procedure
        if not isinstance(counting, Counting):
            raise ConfigError("an attack must not replace the procedure it was bound to")
        return Evidence(certified, made[0].payload(), counting.gradients)


class Counting:
    """A procedure that counts gradient evaluations: one an update."""

    def __init__(self, procedure: Procedure) -> None:
        self._procedure = procedure
        self.gradients = 0

    def init(self, seed: int) -> State:
        """See Procedure."""
        return self._procedure.init(seed)

    def batch(self, dataset: Dataset, order_seed: bytes, t: int) -> Batch:
        """See Procedure."""
        return self._procedure.batch(dataset, order_seed, t)

    def update(self, state: State, batch: Batch) -> State:
        """See Procedure."""
        self.gradients += 1
        return self._procedure.update(state, batch)

    def evaluate(self, state: State, dataset: Dataset) -> dict[str, float]:
        """See Procedure."""
        return self._procedure.evaluate(state, dataset)


class TapeEditor(Attack):
    """Edits the finished certificate of an honest run; links and counters are the editor's to patch."""

    @abstractmethod
    def edit(self, cert: Path, random: np.random.Generator) -> dict[str, float]:
        """Change the files of a certificate in place; returns the payload."""

    @final
    def run(self, scene: Scene) -> Evidence:
        """Train honestly under the witness, then edit the certificate."""
        certified = WitnessedRun(
            scene.config, scene.folder, scene.home, scene.sandbox, scene.spec, draw=scene.draw, secret=scene.secret
        )()
        payload = self.edit(certified.cert, scene.generator("editor"))
        return Evidence(certified, payload, scene.config.training.updates)
