"""What a run was granted: everything a broker needs to judge it, none of it secret."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from witbench.protocol.commitments import StateCommitment
    from witbench.protocol.comparator import Comparator
    from witbench.protocol.ledger import Plan
    from witbench.protocol.replayer import Replayer
    from witbench.protocol.switches import Switches
    from witbench.training.data import Dataset


@dataclass(frozen=True)
class Terms:
    """Terms of one run.

    Attributes:
        switches: the protocol's switches.
        threshold: n of the coin; p = n / 2^64.
        plan: updates and units.
        lag: units between a challenge and its REPLAY record.
        deadline: seconds a worker has to open a challenged unit.
        comparator: gives verdicts.
        replayer: settles challenges.
        evaluation_set: the data that shown evaluations are re-run on.
        initial: the prover's own commitment to S_0.
    """

    switches: Switches
    threshold: int
    plan: Plan
    lag: int
    deadline: int
    comparator: Comparator
    replayer: Replayer
    evaluation_set: Dataset
    initial: StateCommitment
