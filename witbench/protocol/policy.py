"""Under what conditions a certificate is accepted: the verifier's own terms, which no tape can soften."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from witbench.errors import ConfigError, TapeError
from witbench.protocol.notes import VerifyKey
from witbench.protocol.switches import WITNESS, Switches, choices, coin_threshold, reference_choices

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class PolicyError(TapeError):
    """The tape may be sound, but it is not what the verifier asked for.

    Attributes:
        check: name of the rule, such as `policy.p`.
    """

    def __init__(self, check: str, reason: str, record: int | None = None) -> None:
        self.check = check
        super().__init__(reason, record)


def _reference() -> dict[str, tuple[str, ...]]:
    return {switch: tuple(reference_choices(switch)) for switch in WITNESS}


@dataclass(frozen=True)
class Policy:
    """What a certificate must offer.

    Attributes:
        p: smallest challenge probability accepted.
        tau_over_token: in every challenged unit some group's tau must be at most this fraction of the distance that
            one changed token makes there. Does not apply to `exact` tolerance.
        switches: switch -> the choices accepted; by default those of the reference protocol.
    """

    p: float = 0.01
    tau_over_token: float = 0.1
    switches: Mapping[str, tuple[str, ...]] = field(default_factory=_reference)

    def __post_init__(self) -> None:
        """Refuse terms that mean nothing."""
        if not 0.0 <= self.p <= 1.0:
            raise ConfigError(f"policy.p must be in [0, 1], not {self.p}")
        if not 0.0 <= self.tau_over_token <= math.inf:
            raise ConfigError(f"policy.tau_over_token must not be negative, not {self.tau_over_token}")
        if set(self.switches) != set(WITNESS):
            raise ConfigError(f"policy.switches must name each of {', '.join(WITNESS)}")
        for switch, names in self.switches.items():
            if unknown := sorted(set(names) - set(choices(switch))):
                known = ", ".join(choices(switch))
                raise ConfigError(f"policy.switches.{switch}: unknown {', '.join(unknown)}; there are {known}")

    @classmethod
    def load(cls, path: Path) -> Policy:
        """Read a policy file: a JSON object with any of `p`, `tau_over_token`, `switches` (switch -> list of choices).

        Raises:
            ConfigError: the file cannot be read, or a key or value is not allowed.
        """
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"policy {path}: not a readable JSON file ({error})") from None
        known = [each.name for each in fields(cls)]
        if not isinstance(given, dict) or set(given) - set(known):
            raise ConfigError(f"policy {path}: must be an object with keys among {', '.join(known)}")
        for name in ("p", "tau_over_token"):
            if isinstance(given.get(name, 0), bool) or not isinstance(given.get(name, 0), int | float):
                raise ConfigError(f"policy {path}: {name} must be a number")
        switches = given.pop("switches", {})
        if not isinstance(switches, dict) or not all(_is_list_of_text(names) for names in switches.values()):
            raise ConfigError(f"policy {path}: switches must map each switch to a list of choices")
        accepted = {**_reference(), **{switch: tuple(names) for switch, names in switches.items()}}
        return cls(switches=accepted, **given)

    def check_terms(self, switches: Switches, threshold: int) -> None:
        """Hold genesis against the policy. Raises PolicyError (`policy.p`, `policy.switches`)."""
        if threshold < coin_threshold(self.p):
            raise PolicyError("policy.p", f"p = {threshold / 2**64:.4g} is below the policy's {self.p:.4g}", 0)
        for switch, name in switches.names().items():
            if name not in self.switches[switch]:
                allowed = ", ".join(self.switches[switch])
                raise PolicyError("policy.switches", f"switch {switch} is {name}; the policy accepts {allowed}", 0)

    def check_tau(self, tau: Mapping[str, float], token: Mapping[str, float], unit: int, record: int) -> None:
        """Hold tau against the taped one-token distances of a challenged unit. Raises PolicyError (`policy.tau`)."""
        # A distance that is not a number compares false, and so counts for nothing; nor does a group that the token
        # does not move at all, such as a constant buffer, however small its tau.
        if not any(token[group] > 0.0 and tau[group] <= self.tau_over_token * token[group] for group in tau):
            best = min((tau[group] / token[group] for group in tau if token[group] > 0.0), default=math.inf)
            raise PolicyError(
                "policy.tau",
                f"unit {unit}: tau is at least {best:.3g} of one token's distance in every group; "
                f"the policy accepts {self.tau_over_token:.3g}",
                record,
            )


def _is_list_of_text(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def load_trust(path: Path) -> VerifyKey:
    """Read a pinned broker key: a file with one vkey line. Raises ConfigError when it is not one."""
    try:
        return VerifyKey.parse(path.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"trust {path}: cannot be read ({error})") from None
    except TapeError as error:
        raise ConfigError(f"trust {path}: not a broker key ({error})") from None
