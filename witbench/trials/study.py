"""A study: which attacks at which amounts, placements and p are measured, how often, on which training runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from witbench.attacks.placement import from_label
from witbench.config import AttackConfig, PlacementConfig, RunConfig, from_composed
from witbench.errors import ConfigError
from witbench.evaluation.sequences import StoppingRule
from witbench.groups import choices, compose_plain
from witbench.registry import ATTACKS, build, unknown
from witbench.schema import read, require
from witbench.trials.executor import ExecutorConfig

if TYPE_CHECKING:
    from witbench.attacks.base import MaliciousTrainer

HONEST = "none"


@dataclass(frozen=True)
class Variant:
    """An attack with all its knobs but the amount."""

    attack: str
    params: dict[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Of the attack and the names of its knobs; equality looks at their values too."""
        return hash((self.attack, *sorted(self.params)))

    def sized(self, amount: int) -> AttackConfig:
        """The attack at an amount."""
        knob = ATTACKS.get(self.attack).knob
        return AttackConfig(self.attack, {**self.params, knob: amount})

    def make(self, amount: int) -> MaliciousTrainer:
        """The attack at an amount, ready to be bound to a run."""
        sized = self.sized(amount)
        made: MaliciousTrainer = build(ATTACKS, sized.name, sized.params)
        return made


@dataclass(frozen=True)
class RawPoint:
    """Whole runs, with their coins, of one cell.

    Attributes:
        attack: by name.
        placement: by label.
        amount: what the attack's knob for the amount takes.
        p: of the protocol.
        trials: how many; the most, where `width` stops them.
        protocol: its preset.
        params: other knobs of the attack.
        width: stop as soon as the rate's 95 % confidence sequence is no wider; null runs all.
    """

    attack: str
    placement: str
    amount: int
    p: float
    trials: int
    protocol: str = "witness"
    params: dict[str, Any] = field(default_factory=dict)
    width: float | None = None

    @property
    def rule(self) -> StoppingRule | None:
        """When enough of them have run; None when all of them have to. Raises ConfigError for a width that is none."""
        return None if self.width is None else StoppingRule(width=self.width)

    @property
    def variant(self) -> Variant:
        """The attack without its amount."""
        return Variant(self.attack, self.params)


@dataclass(frozen=True)
class Study:
    """What is measured.

    Attributes:
        name: of the study.
        variants: attacks of the conditional estimator.
        amounts: what an attack's knob for the amount takes: target tokens, or documents.
        probabilities: p.
        placements: by label, such as `spread:8`.
        runs: training runs behind the conditional estimator; each is a cluster.
        states: unit boundaries that each of them is branched at.
        draws: placements drawn a training run, amount and p where the rate varies from draw to draw.
        fewer: the same where it does not.
        raw: whole runs.
        honest: whole honest runs.
        placement_p: the one p at which placements after the first are measured; all of them when null.
    """

    name: str
    variants: tuple[Variant, ...]
    amounts: tuple[int, ...]
    probabilities: tuple[float, ...]
    placements: tuple[str, ...]
    runs: int
    states: int
    draws: int
    fewer: int
    raw: tuple[RawPoint, ...] = ()
    honest: int = 0
    placement_p: float | None = None

    def __post_init__(self) -> None:
        """Refuse studies of nothing, and what does not exist."""
        for name in ("runs", "states", "draws", "fewer"):
            require(getattr(self, name) >= 1, f"study.{name}", getattr(self, name), "at least 1")
        require(self.honest >= 0, "study.honest", self.honest, "at least 0")
        require(all(amount >= 1 for amount in self.amounts), "study.amounts", list(self.amounts), "at least 1 each")
        probabilities = [*self.probabilities, *(point.p for point in self.raw), self.placement_p or 0.0]
        require(all(0 <= p <= 1 for p in probabilities), "study.probabilities", probabilities, "in [0, 1]")
        for point in self.raw:
            require(point.trials >= 1, "study.raw.trials", point.trials, "at least 1")
            _ = point.rule
        for label in (*self.placements, *(point.placement for point in self.raw)):
            from_label(label)
        for variant in self.variants:
            attack = variant.make(1)
            if not attack.coin_oblivious:
                raise ConfigError(f"study.variants: {variant.attack} reacts to coins and can only be run whole")

    @property
    def random_placements(self) -> frozenset[str]:
        """Placements whose rate varies from draw to draw."""
        return frozenset(label for label in self.placements if label.partition(":")[0] in ("uniform", "tail"))


def study_names() -> list[str]:
    """All studies."""
    return choices("study")


def compose_study(name: str, overrides: Sequence[str]) -> tuple[Study, RunConfig, ExecutorConfig]:
    """A study, the honest configuration it is made on, and what runs it.

    Raises:
        ConfigError: an unknown study, or overrides that a study sets itself.
    """
    if name not in study_names():
        raise unknown("study", name, study_names())
    for text in overrides:
        key = text.partition("=")[0].lstrip("+~")
        if key in ("seed", "protocol", "protocol.p") or key.partition(".")[0] in ("attack", "placement"):
            raise ConfigError(f"{text}: a study sets attack, placement, protocol, p and seed itself")
    return _composed(name, overrides)


def under(name: str, overrides: Sequence[str], protocol: str) -> RunConfig:
    """The configuration of a study under another preset of the protocol."""
    return _composed(name, [*overrides, f"protocol={protocol}"])[1]


def _composed(name: str, overrides: Sequence[str]) -> tuple[Study, RunConfig, ExecutorConfig]:
    plain = compose_plain([f"study={name}", *overrides])
    study = read(Study, plain["study"], "study")
    runs_it = read(ExecutorConfig, plain["executor"], "executor")
    return study, from_composed(plain), runs_it


def attacked(base: RunConfig, variant: Variant, placement: str, amount: int, p: float, seed: int) -> RunConfig:
    """The configuration of one attacked run."""
    made = from_label(placement)
    return replace(
        base,
        protocol=replace(base.protocol, p=p),
        attack=variant.sized(amount),
        placement=PlacementConfig(*made),
        seed=seed,
    )
