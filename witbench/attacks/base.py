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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np

from witbench.errors import ConfigError
from witbench.protocol.certify import Certified, WitnessedRun
from witbench.protocol.ledger import Plan
from witbench.protocol.policy import Policy
from witbench.protocol.trainer import Trainer
from witbench.protocol.verifier import verify
from witbench.registry import PLACEMENTS, build, unknown
from witbench.schema import require
from witbench.training.source import builtin_spec

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
        claimed: whether the protocol claims to detect it at all.
    """

    coin_oblivious: ClassVar[bool] = False
    claimed: ClassVar[bool] = True

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

    `bind` makes the trainer of one run from it; a step finds what it needs in `positions`, `plan` and `random`.

    Attributes:
        knob: name of the knob that sets the amount.
        positions: touched update -> touched places, target positions unless `places` says otherwise.
        plan: updates and units of the run.
        random: the attacker's randomness.
        achieved: update -> tokens that its lie really concerned, as far as the run came; an edit without effect is
            none.
    """

    knob: ClassVar[str] = "tokens"
    positions: Positions
    plan: Plan
    random: np.random.Generator
    achieved: dict[int, int]

    @property
    def label(self) -> str:
        """What rows and figures call the attack: its module's name, and its route where it has several."""
        return type(self).__module__.rpartition(".")[2]

    @abstractmethod
    def amount(self) -> int:
        """Places that the placement has to pick."""

    def places(self, sequences: int, context: int) -> int:
        """Places of one update that a placement picks from: its target positions."""
        return sequences * context

    @final
    def bind(
        self, positions: Positions, plan: Plan, random: np.random.Generator, procedure: Procedure, *data: Any
    ) -> Self:
        """This attack as the trainer of one run; `data` is what Trainer takes beside the procedure."""
        bound = copy.copy(self)
        Trainer.__init__(bound, procedure, *data)
        bound.positions, bound.plan, bound.random = positions, plan, random
        bound.achieved = {}
        return bound

    def publish_source(self, spec: ProcedureSpec, vocab: int) -> ProcedureSpec:
        """The procedure that the trainer hands to the prover and trains with; the honest one unless that is the lie."""
        return spec

    def lies(self, positions: Positions, updates: int) -> dict[int, int]:
        """Update -> tokens of it that are lied about, in a run of so many updates: what a coin on its unit can show."""
        return {t: len(touched) for t, touched in positions.items()}

    def payload(self, final: State) -> dict[str, float]:
        """What was achieved in the run that this trainer was bound to, given the state it ended in."""
        return {"tokens": float(sum(self.achieved.values())), "updates": float(sum(map(bool, self.achieved.values())))}

    @final
    def run(self, scene: Scene) -> Evidence:
        """Train under the witness, lying where the attack lies."""
        config = scene.config
        placement: Placement = build(PLACEMENTS, config.placement.name, config.placement.params)
        plan = Plan(config.training.updates, config.protocol.unit)
        spec = self.publish_source(scene.spec or builtin_spec(config.procedure_plain()), config.model.vocab)
        made: list[MaliciousTrainer] = []

        def trainer(procedure: Procedure, dataset: Dataset, evaluation_set: Dataset, order_seed: bytes) -> Trainer:
            data = (dataset, evaluation_set, order_seed)
            sequences, width = procedure.batch(dataset, order_seed, 0).tokens.shape
            shape = (self.places(sequences, width - 1), plan.updates, plan.unit)
            positions = placement.draw(self.amount(), *shape, scene.generator("placement"))
            made.append(self.bind(positions, plan, scene.generator("trainer"), Counting(procedure), *data))
            return made[0]

        certified = WitnessedRun(
            config, scene.folder, scene.home, scene.sandbox, spec, trainer, scene.draw, scene.secret
        )()
        counting = made[0].procedure
        if not isinstance(counting, Counting):
            raise ConfigError("an attack must not replace the procedure it was bound to")
        gradients = counting.gradients
        return Evidence(certified, made[0].payload(counting.last), gradients)


def at_least_one(key: str, value: int) -> int:
    """A knob that counts something. Raises ConfigError below 1."""
    require(type(value) is int and value >= 1, key, value, "a whole number of at least 1")
    return value


def one_of(key: str, value: str, allowed: Sequence[str]) -> str:
    """A knob that names a choice. Raises ConfigError for another one."""
    if value not in allowed:
        raise unknown(key, value, allowed)
    return value


def scoring(procedure: Procedure, attack: str) -> Callable[[State, Batch], float]:
    """The procedure's `loss(state, batch)`. Raises ConfigError when it has none."""
    loss: Callable[[State, Batch], float] | None = getattr(procedure, "loss", None)
    if loss is None:
        raise ConfigError(f"attack={attack}: needs a procedure with loss(state, batch), the mean loss of a batch")
    return loss


class Counting:
    """A procedure that counts gradient evaluations, one an update, and remembers the last state it gave.

    What the procedure has beside the four functions of one, such as `loss`, is reached through it.
    """

    last: State

    def __init__(self, procedure: Procedure) -> None:
        self._procedure = procedure
        self.gradients = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._procedure, name)

    def init(self, seed: int) -> State:
        """See Procedure."""
        self.last = self._procedure.init(seed)
        return self.last

    def batch(self, dataset: Dataset, order_seed: bytes, t: int) -> Batch:
        """See Procedure."""
        return self._procedure.batch(dataset, order_seed, t)

    def update(self, state: State, batch: Batch) -> State:
        """See Procedure."""
        self.gradients += 1
        self.last = self._procedure.update(state, batch)
        return self.last

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
