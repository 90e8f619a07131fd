"""The genesis record as the verifier takes it: its fields, read into the objects that judge the rest of the tape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from witbench.errors import ConfigError, TapeError
from witbench.protocol.beacon import reveals_needed
from witbench.protocol.encoding import f64_from, reals
from witbench.protocol.notes import VerifyKey
from witbench.protocol.records import BLOBS, PUBLISHED
from witbench.protocol.switches import Switches, threshold_from_bytes
from witbench.protocol.tau import AFTER, WARMUP, Tau, warmup_units

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Genesis:
    """What genesis binds, checked for sense on its own.

    Attributes:
        record: the record itself.
        switches: the protocol's switches.
        threshold: n of the coin; p = n / 2^64.
        tau: the tolerances, by unit.
        broker, trainer: the two signing keys.
        blobs: name and SHA-256 of the blobs that follow, in order.
    """

    record: Mapping[str, Any]
    switches: Switches
    threshold: int
    tau: Tau
    broker: VerifyKey
    trainer: VerifyKey
    blobs: tuple[tuple[str, bytes], ...]

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Genesis:
        """Read record 0, whose fields have their types already. Raises TapeError."""
        try:
            switches = Switches.from_names(record["switches"])
            threshold = threshold_from_bytes(record["p"])
            broker, trainer = VerifyKey.parse(record["broker_key"]), VerifyKey.parse(record["trainer_key"])
        except (ConfigError, TapeError) as error:
            raise TapeError(f"genesis: {error}", 0) from None
        names = BLOBS if record["procedure_policy"] == PUBLISHED else BLOBS[:-1]
        blobs = tuple((name, record[name]) for name in names)
        genesis = cls(record, switches, threshold, _tau(record), broker, trainer, blobs)
        if trouble := genesis._trouble():
            raise TapeError(f"genesis: {trouble}", 0)
        return genesis

    def _trouble(self) -> str | None:
        record, groups = self.record, set(self.record["groups"])
        own = f64_from(record["sketch"]["tolerance"])
        if self.broker.public == self.trainer.public:
            return "broker and trainer have the same key"
        if not groups:
            return "there is no sketch group"
        if trouble := self._tau_trouble(groups):
            return trouble
        if not (0.0 <= own < math.inf) or (record["sketch"]["exact"] and own != 0.0):
            return "the sketch's recomputation tolerance is negative, not finite, or not zero for an exact design"
        if record["reveals"] < reveals_needed(self.units):
            return f"{record['reveals']} reveals are fewer than the {reveals_needed(self.units)} such a run needs"
        return None

    def _tau_trouble(self, groups: set[str]) -> str | None:
        tolerance, tau = self.switches.tolerance, self.tau
        if set(tau.after) != (groups if tolerance.uses_tau else set()):
            return f"{tolerance.name} tolerance needs a tau for {'every' if tolerance.uses_tau else 'no'} group"
        if trouble := tau.trouble():
            return trouble
        # The phase follows from the run's length: a longer one would lend more units the looser tolerances.
        due = warmup_units(self.record["updates"], self.record["unit"]) if tolerance.calibrated else 0
        if tau.units != due:
            return f"a warm-up phase of {tau.units} units where {due} are due"
        if tau.evaluation and not tolerance.calibrated:
            return f"{tolerance.name} tolerance has none for evaluations"
        if (self.record["calibration"] is not None) != tolerance.calibrated:
            return f"{tolerance.name} tolerance {'needs' if tolerance.calibrated else 'has no'} calibration"
        return None

    @property
    def units(self) -> int:
        """Units of the run."""
        return int(-(-self.record["updates"] // self.record["unit"]))

    @property
    def p(self) -> float:
        """Challenge probability."""
        return self.threshold / 2.0**64

    @property
    def origin(self) -> str:
        """Origin line of the run's heads."""
        return run_origin(self.record["run"])

    @property
    def attempts(self) -> int:
        """Attempts that the numbers account for: per job or per trainer key, whichever is more."""
        return max(int(self.record["attempt"]), int(self.record["trainer_attempt"]))

    def updates_of(self, unit: int) -> range:
        """The updates t (0-based) of a unit (1-based)."""
        length = self.record["unit"]
        return range((unit - 1) * length, min(unit * length, self.record["updates"]))


def run_origin(run: str) -> str:
    """Origin line of the heads of a run."""
    return f"witbench/run/{run}"


def _tau(record: Mapping[str, Any]) -> Tau:
    warmup, after = (reals(record["tau"][phase]) for phase in (WARMUP, AFTER))
    return Tau(after, warmup, record["warmup"], reals(record["evaluation_tau"]))
