"""A run's configuration: frozen dataclasses, checked when they are made. Nothing below the command line sees Hydra.

Whatever is wrong is a ConfigError that names the key, its value and what is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from witbench.errors import ConfigError
from witbench.registry import ATTACKS, PLACEMENTS, SKETCHES, build, check_params, unknown
from witbench.schema import read, require, to_plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GROUPINGS = ("layer_role", "role", "tensor")
WARMUP_SHARE = 8
"""Without a number of its own, warm-up takes one part in so many of the run."""
OWN_DATA = ("folder", "bin")
NO_ATTACK = "none"
_BESIDE_RUNS = ("study", "executor")
"""Groups that say which runs are made, and by what; no run depends on them."""


def _at_least(group: str, config: object, least: float, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        require(value >= least, f"{group}.{name}", value, f"at least {least}")


def _one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise unknown(key, value, allowed)


@dataclass(frozen=True)
class ModelConfig:
    """A GPT; see `witbench.training.model`."""

    name: str
    layers: int
    heads: int
    width: int
    context: int
    vocab: int = 256
    tie_embeddings: bool = True
    dropout: float = 0.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        """Refuse shapes that no model has."""
        _at_least("model", self, 1, "layers", "heads", "width", "context")
        fits = self.width % self.heads == 0 and self.width // self.heads % 2 == 0
        require(fits, "model.heads", self.heads, f"a divisor of model.width={self.width} with an even quotient")
        require(2 <= self.vocab <= 65536, "model.vocab", self.vocab, "from 2 to 65536")
        require(0 <= self.dropout < 1, "model.dropout", self.dropout, "in [0, 1)")
        _one_of("model.dtype", self.dtype, ("float32", "float64", "bfloat16"))


@dataclass(frozen=True)
class DataConfig:
    """A corpus by name; `path` for those that are the user's own."""

    name: str
    path: str | None = None
    dtype: str = "uint8"
    held_out: float = 0.1

    def __post_init__(self) -> None:
        """Refuse token types and splits that do not exist."""
        _one_of("data.dtype", self.dtype, ("uint8", "uint16"))
        require(0 < self.held_out < 1, "data.held_out", self.held_out, "in (0, 1)")
        if self.name in OWN_DATA:
            require(bool(self.path), "data.path", self.path, f"the path of your {self.name}")
        else:
            require(self.path is None, "data.path", self.path, f"null with data={self.name}")


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW or SGD with warm-up and a cosine to `min_lr_ratio * lr` over the run."""

    name: str
    lr: float
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    clip: float = 0.0
    warmup: int = 0
    min_lr_ratio: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values under which no optimizer works."""
        _one_of("optimizer.name", self.name, ("adamw", "sgd"))
        require(self.lr > 0, "optimizer.lr", self.lr, "positive")
        require(self.eps > 0, "optimizer.eps", self.eps, "positive")
        require(all(0 <= beta < 1 for beta in self.betas), "optimizer.betas", list(self.betas), "two numbers in [0, 1)")
        require(0 <= self.momentum < 1, "optimizer.momentum", self.momentum, "in [0, 1)")
        _at_least("optimizer", self, 0, "weight_decay", "clip", "warmup")
        require(0 <= self.min_lr_ratio <= 1, "optimizer.min_lr_ratio", self.min_lr_ratio, "in [0, 1]")


@dataclass(frozen=True)
class TrainingConfig:
    """The run's length and batches; `sequences` is what one update sees, in `micro_batches` equal parts."""

    updates: int = 64
    sequences: int = 8
    micro_batches: int = 1
    threads: int = 1
    loss_scale_bits: int = 0
    eval_batches: int = 8

    def __post_init__(self) -> None:
        """Refuse empty runs and batches that do not split."""
        _at_least("training", self, 1, "updates", "sequences", "micro_batches", "threads", "eval_batches")
        splits = self.sequences % self.micro_batches == 0
        require(splits, "training.micro_batches", self.micro_batches, f"a divisor of sequences={self.sequences}")
        require(0 <= self.loss_scale_bits <= 30, "training.loss_scale_bits", self.loss_scale_bits, "from 0 to 30")


@dataclass(frozen=True)
class SketchConfig:
    """A sketch design with its parameters, and how tensors are grouped."""

    name: str
    params: dict[str, Any] = field(default_factory=dict)
    groups: str = "layer_role"

    def __post_init__(self) -> None:
        """Refuse groupings that do not exist."""
        _one_of("sketch.groups", self.groups, GROUPINGS)


@dataclass(frozen=True)
class ToleranceConfig:
    """How near a replayed state must come: `exact`, `calibrated` (tau from a file) or `fixed` (tau by hand)."""

    name: str
    tau: float | None = None
    calibration: str | None = None

    def __post_init__(self) -> None:
        """Each rule has what it needs and nothing else."""
        _one_of("tolerance.name", self.name, ("exact", "calibrated", "fixed"))
        if self.name == "fixed":
            require(self.tau is not None and self.tau >= 0, "tolerance.tau", self.tau, "a number of at least 0")
        else:
            require(self.tau is None, "tolerance.tau", self.tau, f"null with tolerance={self.name}")
        if self.name == "calibrated":
            require(bool(self.calibration), "tolerance.calibration", self.calibration, "the path of a calibration")
        else:
            require(self.calibration is None, "tolerance.calibration", self.calibration, f"null with {self.name}")


@dataclass(frozen=True)
class ProtocolConfig:
    """The protocol's preset.

    Attributes:
        p: challenge probability of a unit.
        unit: L, updates of a unit.
        lag: units between a challenge and its REPLAY record.
        deadline_s: seconds a worker has to open a challenged unit.
        opening: what it opens.
        tau_scale: factor on tau; 1 in the reference.
        switches: the other switches by name; `tolerance` is a group of its own.
    """

    name: str
    p: float = 0.1
    unit: int = 1
    lag: int = 2
    deadline_s: float = 120.0
    opening: str = "start"
    tau_scale: float = 1.0
    switches: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse probabilities that are none, and empty units."""
        require(0 <= self.p <= 1, "protocol.p", self.p, "in [0, 1]")
        _at_least("protocol", self, 1, "unit")
        _at_least("protocol", self, 0, "lag")
        require(self.deadline_s > 0, "protocol.deadline_s", self.deadline_s, "positive")
        require(self.tau_scale > 0, "protocol.tau_scale", self.tau_scale, "positive")
        for name in ("tolerance", "opening"):
            if name in self.switches:
                raise ConfigError(f"protocol.switches.{name}: set it with `{_SET_BY[name]}` instead")


_SET_BY = {"tolerance": "tolerance=NAME", "opening": "protocol.opening=NAME"}


@dataclass(frozen=True)
class AttackConfig:
    """An attack by name with its knobs; `none` is the honest trainer."""

    name: str = NO_ATTACK
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PlacementConfig:
    """Where an attack acts."""

    name: str = "uniform"
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunConfig:
    """Everything a run depends on."""

    model: ModelConfig
    data: DataConfig
    optimizer: OptimizerConfig
    training: TrainingConfig
    sketch: SketchConfig
    tolerance: ToleranceConfig
    protocol: ProtocolConfig
    attack: AttackConfig = AttackConfig()
    placement: PlacementConfig = PlacementConfig()
    seed: int = 0

    def __post_init__(self) -> None:
        """Check what concerns several groups."""
        updates, warmup = self.training.updates, self.optimizer.warmup
        require(warmup <= updates, "optimizer.warmup", warmup, f"at most training.updates={updates}")
        unit = self.protocol.unit
        require(unit <= updates, "protocol.unit", unit, f"at most training.updates={updates}")
        require(0 <= self.seed < 2**63, "seed", self.seed, "from 0 to 2^63 - 1")
        exact = self.tolerance.name == "exact"
        scale = self.protocol.tau_scale
        require(scale == 1 or not exact, "protocol.tau_scale", scale, "1 with tolerance=exact, which has no tau")

    def switch_names(self) -> dict[str, str]:
        """Switch -> choice, all ten of them."""
        own = {"tolerance": self.tolerance.name, "opening": self.protocol.opening}
        return {**self.protocol.switches, **own}

    def check(self) -> None:
        """Make everything that is chosen by name, so that it fails here and not in the middle of a run.

        Raises:
            ConfigError: an unknown switch, design or attack, or parameters it does not take.
        """
        from witbench.protocol.switches import Switches, choices

        _one_of("protocol.opening", self.protocol.opening, choices("opening"))
        Switches.from_names(self.switch_names())
        self._check_paths()
        build(SKETCHES, self.sketch.name, self.sketch.params)
        build(PLACEMENTS, self.placement.name, self.placement.params)
        if self.attack.name == NO_ATTACK:
            require(not self.attack.params, "attack.params", self.attack.params, "empty without an attack")
        else:
            check_params("attack.params", self.attack.name, ATTACKS.get(self.attack.name), self.attack.params)

    def _check_paths(self) -> None:
        if self.data.name == "folder":
            require(Path(str(self.data.path)).is_dir(), "data.path", self.data.path, "a folder that exists")
        elif self.data.name == "bin":
            require(Path(str(self.data.path)).is_file(), "data.path", self.data.path, "a file that exists")
        if self.tolerance.calibration is not None:
            path = self.tolerance.calibration
            require(Path(path).is_file(), "tolerance.calibration", path, "a file that exists")

    def to_plain(self) -> dict[str, Any]:
        """Nested dicts and lists of JSON scalars: what genesis stores."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> RunConfig:
        """The inverse of `to_plain`. Raises ConfigError."""
        return read(cls, plain)

    def procedure_plain(self) -> dict[str, Any]:
        """What the training procedure needs: `model`, `optimizer` and `training`."""
        plain = self.to_plain()
        return {name: plain[name] for name in ("model", "optimizer", "training")}


def compose(overrides: Sequence[str] = ()) -> RunConfig:
    """Compose the configuration from its groups and Hydra overrides, and check it.

    Raises:
        ConfigError: a message that names the key, the value and what is allowed.
    """
    from witbench.groups import compose_plain

    return from_composed(compose_plain(overrides))


def from_composed(plain: dict[str, Any]) -> RunConfig:
    """The configuration of a run among composed groups, checked. Raises ConfigError."""
    plain = {name: value for name, value in plain.items() if name not in _BESIDE_RUNS}
    optimizer, updates = plain.get("optimizer", {}), plain.get("training", {}).get("updates")
    if optimizer.get("warmup", 0) is None:
        optimizer["warmup"] = updates // WARMUP_SHARE if isinstance(updates, int) else 0
    config = RunConfig.from_plain(plain)
    config.check()
    return config
