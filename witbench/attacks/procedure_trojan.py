"""The payload sits in the procedure's own source, which is published and replayed as it is.

Source: the stated limit of the protocol: it proves that a run is what its procedure makes of the declared data, not
that the procedure is harmless. Threat model: the trainer publishes a procedure that replaces one sequence of every
`every`-th update by a document with a trigger, and runs it honestly. Knobs: `every`. Beats every preset, for nothing
about it is a lie: what finds it is reading the source, or an allow-list of source digests, on which it is not. Payload:
as `poison`. Needs the procedure's `loss(state, batch)`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from witbench.attacks import documents, trojan
from witbench.attacks.base import MaliciousTrainer, at_least_one
from witbench.attacks.poison import trigger_success
from witbench.training.source import ProcedureSpec

if TYPE_CHECKING:
    from witbench.attacks.placement import Positions
    from witbench.training.state import State

_OWN = (documents, trojan)


class ProcedureTrojan(MaliciousTrainer):
    """Publishes a procedure with a payload.

    Args:
        every: updates from one poisoned sequence to the next.
    """

    coin_oblivious = True
    claimed = False

    def __init__(self, *, every: int = 1) -> None:
        self.every = at_least_one("attack.params.every", every)

    def amount(self) -> int:
        """Of no meaning here: the source acts wherever it says."""
        return 1

    def lies(self, positions: Positions, updates: int) -> dict[int, int]:
        """None: every unit is what the published procedure makes of the declared data."""
        return {}

    def publish_source(self, spec: ProcedureSpec, vocab: int) -> ProcedureSpec:
        """The trojan around the honest procedure, sources of both."""
        files = {module.__name__: Path(str(module.__file__)).read_text("utf-8") for module in _OWN}
        config = {"entry": spec.entry, "config": dict(spec.config), "every": self.every, "vocab": vocab}
        return ProcedureSpec(trojan.ENTRY, {**spec.files, **files}, config)

    def payload(self, final: State) -> dict[str, float]:
        """Documents that one run trains on, and what they achieved."""
        told = trigger_success(self.procedure, final, self.evaluation_set, self.declare(0), self.random)
        return {"documents": float(-(-self.plan.updates // self.every)), **told}
