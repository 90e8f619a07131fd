"""What a taped verdict must hold before it is believed: its checks, its distances, and a tau that means something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from witbench.errors import TapeError
from witbench.protocol.encoding import reals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from witbench.protocol.genesis import Genesis
    from witbench.protocol.policy import Policy

MAX_ATTEMPTS = 3
"""Most replays behind one verdict: a distance that failed is repeated twice."""


def require_passed(record: Mapping[str, Any], wanted: Iterable[str]) -> None:
    """A passed verdict holds every check it must, and none that failed. Raises TapeError."""
    checks = record["checks"]
    if missing := [name for name in wanted if name not in checks]:
        raise TapeError(f"a passed verdict without {', '.join(missing)}")
    if failed := [name for name, passed in checks.items() if not passed]:
        raise TapeError(f"a passed verdict in which {', '.join(failed)} failed")
    if record.get("failed") is not None:
        raise TapeError(f"a passed verdict that names {record['failed']} as failed")


def require_failed(record: Mapping[str, Any]) -> None:
    """A failed verdict names its failed check. Raises TapeError."""
    if record["failed"] is None or record["checks"].get(record["failed"]) is not False:
        raise TapeError("a failed verdict that does not name its failed check")


def check_distances(record: Mapping[str, Any], genesis: Genesis, policy: Policy) -> None:
    """A passed REPLAY follows from its own distances, and tau is small beside what one token does. Raises TapeError."""
    if not 1 <= record["attempts"] <= MAX_ATTEMPTS:
        raise TapeError(f"{record['attempts']} attempts")
    distances, token = reals(record["distances"]), reals(record["yardstick"])
    for name, values in (("distances", distances), ("yardstick", token)):
        if values.keys() != set(genesis.record["groups"]):
            raise TapeError(f"the groups of its {name} are not those of genesis")
    tolerance, tau = genesis.switches.tolerance, genesis.tau.of(record["unit"])
    for check, passed in tolerance.judge(distances, tau, record["checks"].get("replay.digest", False)).items():
        if not passed:
            raise TapeError(f"{check} is taped as passed, but the taped distances fail it")
    if tolerance.uses_tau:
        policy.check_tau(tau, token, record["unit"], record["i"])
