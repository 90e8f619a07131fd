"""The switches of the protocol: one small class per choice, found by (switch, choice).

Protocol code calls these objects and never asks for a preset's name. A weaker preset adds classes here or elsewhere
with the `choice` decorator; nothing else changes.
"""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from witbench.errors import ConfigError
from witbench.protocol.beacon import derive

if TYPE_CHECKING:
    from collections.abc import Mapping

THRESHOLD_BYTES = 9
"""A coin's threshold is taped big-endian in this many bytes, since p = 1 is 2^64."""


def coin_threshold(p: float) -> int:
    """N with p = n / 2^64, rounded down. Raises ConfigError outside [0, 1]."""
    if not 0.0 <= p <= 1.0:
        raise ConfigError(f"p must be in [0, 1], not {p}")
    return math.floor(p * 2.0**64)


def threshold_to_bytes(threshold: int) -> bytes:
    """The nine taped bytes of a threshold."""
    return threshold.to_bytes(THRESHOLD_BYTES, "big")


def threshold_from_bytes(data: bytes) -> int:
    """The threshold in nine taped bytes. Raises ConfigError when it stands for p > 1."""
    threshold = int.from_bytes(data, "big")
    if len(data) != THRESHOLD_BYTES or threshold > 1 << 64:
        raise ConfigError("p is not nine bytes of at most 2^64")
    return threshold


class Choice:
    """One choice of one switch.

    Attributes:
        switch: name of the switch.
        name: name of the choice.
        reference: whether the reference protocol may have it.
    """

    switch: ClassVar[str]
    name: ClassVar[str]
    reference: ClassVar[bool] = True


_CHOICES: dict[tuple[str, str], type[Choice]] = {}
C = TypeVar("C", bound=type[Choice])


def choice(cls: C) -> C:
    """Make a choice available under its (switch, name)."""
    _CHOICES[cls.switch, cls.name] = cls
    return cls


def choices(switch: str) -> list[str]:
    """Names of a switch's choices."""
    return sorted(name for of, name in _CHOICES if of == switch)


def reference_choices(switch: str) -> list[str]:
    """Names of the choices with which a switch is still the reference protocol's."""
    return sorted(name for (of, name), cls in _CHOICES.items() if of == switch and cls.reference)


class KeySchedule(Choice, ABC):
    """When and from what the sketch key of a unit is drawn."""

    switch = "key"

    @abstractmethod
    def key(self, reveal: bytes, size: int, root: bytes) -> bytes:
        """kappa, 32 bytes, from a reveal and the head up to the last worker record."""


@choice
class PostCommit(KeySchedule):
    """From a fresh reveal and the head after COMMIT: unpredictable until the state is bound."""

    name = "post_commit"

    def key(self, reveal: bytes, size: int, root: bytes) -> bytes:
        """SHA-256 over the tag `key`, the reveal and the head."""
        return derive("key", reveal, size, root)


class Binding(Choice):
    """What binds a state bit for bit before its key is known."""

    switch = "binding"


@choice
class DigestBinding(Binding):
    """COMMIT: a digest of the exact part and of every byte of the real tensors."""

    name = "digest"


class CoinRule(Choice, ABC):
    """Which units are challenged."""

    switch = "coin"

    @abstractmethod
    def challenged(self, reveal: bytes, size: int, root: bytes, threshold: int) -> bool:
        """Whether the coin falls; the head is the one up to the last worker record, p = threshold / 2^64."""


@choice
class BeaconCoin(CoinRule):
    """From a fresh reveal and the head after SKETCH: its first 64 bits are below the threshold."""

    name = "beacon"

    def challenged(self, reveal: bytes, size: int, root: bytes, threshold: int) -> bool:
        """Whether the first 64 bits of SHA-256 over the tag `coin`, the reveal and the head are below the threshold."""
        return int.from_bytes(derive("coin", reveal, size, root)[:8], "big") < threshold


class Chain(Choice):
    """What ties records, and units, to each other.

    Attributes:
        own_start: whether a unit commits the state it starts from, instead of starting where the last one ended.
    """

    switch = "chain"
    own_start: ClassVar[bool] = False


@choice
class FullChain(Chain):
    """Every record carries its predecessor's leaf hash, heads are signed, units start where the last one ended."""

    name = "full"


@choice
class Parentless(Chain):
    """Each unit commits a start state of its own, and nothing ties it to the end of the one before."""

    name = "parentless"
    reference = False
    own_start = True


class Coverage(Choice):
    """Which part of the state is committed and sketched."""

    switch = "coverage"


@choice
class FullCoverage(Coverage):
    """All of it: parameters, float buffers, moments, exact part."""

    name = "all"


class Tolerance(Choice, ABC):
    """How near a replayed state must be to the committed one.

    Attributes:
        checks: names of the checks that `judge` gives.
        binds_bits: whether the replayed state is held to the committed one bit for bit.
        uses_tau: whether genesis carries a tau for every group.
        calibrated: whether genesis names the calibration behind tau.
    """

    switch = "tolerance"
    checks: ClassVar[tuple[str, ...]]
    binds_bits: ClassVar[bool] = False
    uses_tau: ClassVar[bool] = True
    calibrated: ClassVar[bool] = False

    @abstractmethod
    def judge(self, distances: Mapping[str, float], tau: Mapping[str, float], same_digest: bool) -> dict[str, bool]:
        """Check name -> passed, failing closed.

        Args:
            distances: group -> distance of the replayed state's sketch to the taped one.
            tau: group -> tolerance.
            same_digest: whether the replayed state has the committed digest.
        """


@choice
class Exact(Tolerance):
    """The replayed state is the committed one, bit for bit; the thread count in genesis is binding."""

    name = "exact"
    checks = ("replay.digest",)
    binds_bits = True
    uses_tau = False

    def judge(self, distances: Mapping[str, float], tau: Mapping[str, float], same_digest: bool) -> dict[str, bool]:
        """`replay.digest`; distances are taped, but they decide nothing."""
        return {"replay.digest": same_digest}


class _Distance(Tolerance):
    checks = ("replay.distance",)

    def judge(self, distances: Mapping[str, float], tau: Mapping[str, float], same_digest: bool) -> dict[str, bool]:
        """`replay.distance`: at most tau in every group."""
        # A NaN compares false, so a distance or a tau that is not a number fails.
        near = bool(tau) and distances.keys() == tau.keys() and all(0.0 <= distances[g] <= tau[g] for g in tau)
        return {"replay.distance": near}


@choice
class Calibrated(_Distance):
    """Within tau in every group, tau from a calibration that genesis names."""

    name = "calibrated"
    calibrated = True


@choice
class Fixed(_Distance):
    """Within a tau that somebody set by hand."""

    name = "fixed"
    reference = False


class Order(Choice):
    """Whether the order of the data is bound.

    Attributes:
        checks: checks it adds to a replay.
    """

    switch = "order"
    checks: ClassVar[tuple[str, ...]]


@choice
class BoundOrder(Order):
    """Each declared batch is the procedure's own `batch` under a seed that the broker drew."""

    name = "bound"
    checks = ("declare.order",)


@choice
class FreeOrder(Order):
    """Any data in any order, as declared."""

    name = "free"
    reference = False
    checks = ()


class Registry(Choice):
    """Whether runs are logged before their seeds are drawn."""

    switch = "registry"


@choice
class Registered(Registry):
    """Logged and counted."""

    name = "on"


class Opening(Choice):
    """What a challenged worker opens.

    Attributes:
        end: whether it opens the end state too.
        start_checks: checks of the start state; they do not apply to unit 1, which starts from the prover's own S_0.
        end_checks: checks of the end state.
    """

    switch = "opening"
    end: ClassVar[bool]
    start_checks: ClassVar[tuple[str, ...]] = ("open.digest", "open.sketch")
    end_checks: ClassVar[tuple[str, ...]] = ()


@choice
class OpenStart(Opening):
    """The start state and the batches."""

    name = "start"
    end = False


@choice
class OpenBoth(Opening):
    """Start state, batches and end state."""

    name = "both"
    end = True
    end_checks = ("replay.exact_distance",)


class Sealing(Choice):
    """What closes a run.

    Attributes:
        checks: checks of the final state.
    """

    switch = "sealing"
    checks: ClassVar[tuple[str, ...]]


@choice
class Sealed(Sealing):
    """Signed heads, a `final` record, the final state opened."""

    name = "sealed"
    checks = ("final.digest", "final.sketch", "final.weights")


@dataclass(frozen=True)
class Switches:
    """One choice of every switch."""

    key: KeySchedule
    binding: Binding
    coin: CoinRule
    chain: Chain
    coverage: Coverage
    tolerance: Tolerance
    order: Order
    registry: Registry
    opening: Opening
    sealing: Sealing

    def names(self) -> dict[str, str]:
        """Switch -> name of its choice, as genesis has them."""
        return {field.name: getattr(self, field.name).name for field in fields(self)}

    @classmethod
    def from_names(cls, names: Mapping[str, str]) -> Switches:
        """The switches of ten names. Raises ConfigError for a missing or unknown switch or choice."""
        known = [field.name for field in fields(cls)]
        if set(names) != set(known):
            odd = sorted(set(names) ^ set(known))
            raise ConfigError(f"switches: {', '.join(odd)} missing or unknown; there are {', '.join(known)}")
        picked: dict[str, Any] = {switch: _find(switch, names[switch])() for switch in known}
        return cls(**picked)

    def start_checks(self, unit: int) -> tuple[str, ...]:
        """Names of the checks of the start state that a challenged unit opens."""
        if self.chain.own_start:
            return ("open.digest",)  # it was never sketched
        return self.opening.start_checks if unit > 1 else ()

    def replay_checks(self, unit: int) -> tuple[str, ...]:
        """Names of the checks that the REPLAY record of a passed unit must hold."""
        start = self.start_checks(unit)
        always = ("open.leaf", "open.root", *self.order.checks, "replay.exact_part")
        return (*start, *always, *self.tolerance.checks, *self.opening.end_checks)

    def fatal_coins(self, touched: int) -> int:
        """Fewest coins that can each catch a trainer who cheats in `touched` units.

        With only start states opened and a tolerance, a trainer that sketches something else than it commits makes
        its next coin fatal instead of its own, and two neighbouring units can share one.
        """
        if self.tolerance.binds_bits or self.opening.end:
            return touched
        return -(-touched // 2)


def _find(switch: str, name: str) -> type[Choice]:
    found = _CHOICES.get((switch, name))
    if found is None:
        near = difflib.get_close_matches(name, choices(switch), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"switches.{switch}={name}: unknown; choose from {', '.join(choices(switch))}{hint}")
    return found


WITNESS: dict[str, str] = {
    "key": "post_commit",
    "binding": "digest",
    "coin": "beacon",
    "chain": "full",
    "coverage": "all",
    "tolerance": "calibrated",
    "order": "bound",
    "registry": "on",
    "opening": "start",
    "sealing": "sealed",
}
"""The reference preset; `reference_choices` says what else counts as reference."""
