"""Sequences that were never declared take part in training.

Source: the insertion attack of *Training Witnesses*, Figure 5 (middle). Threat model: the trainer declares the batch
that the order binds and lets further sequences influence the weights: text of the evaluation set, which flatters every
number shown later, or the declared text once more. A touched update gets the fewest sequences, none longer than the
context, that hold its share of `tokens` targets. Knobs: `tokens`; the placement says where; `route` says how:

* `in_batch`: in the declared batch, which is so many sequences larger;
* `micro_batch`: in the declared batch, as a micro-batch of their own;
* `hidden`: in an update of their own before the unit, whose exact part (step, schedule, RNG) is put back;
* `repeat`: the same with sequences of the declared batch, which is so trained on twice.

Beats: `unchecked`; the last two routes also `parentless_chain`, where a unit may start from any state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from witbench.attacks.base import MaliciousTrainer, at_least_one, one_of
from witbench.attacks.batches import drawn_windows, first_rows, joined, sequences_for
from witbench.training.state import State

if TYPE_CHECKING:
    from witbench.training.state import Batch

ROUTES = ("in_batch", "micro_batch", "hidden", "repeat")


class Insertion(MaliciousTrainer):
    """Trains on more than it declares.

    Args:
        tokens: target tokens inserted over the whole run.
        route: `in_batch`, `micro_batch`, `hidden` or `repeat`.
    """

    coin_oblivious = True

    def __init__(self, *, tokens: int = 1, route: str = "in_batch") -> None:
        self.tokens = at_least_one("attack.params.tokens", tokens)
        self.route = one_of("attack.params.route", route, ROUTES)

    @property
    def label(self) -> str:
        """`insertion:ROUTE`."""
        return f"{super().label}:{self.route}"

    def amount(self) -> int:
        """Target positions that the placement has to pick; their number in an update is its share."""
        return self.tokens

    def enter(self, unit: int, state: State) -> State:
        """The state that the unit starts from, one hidden update later for each touched update of it."""
        if self.route in ("hidden", "repeat"):
            for t in self.plan.updates_of(unit):
                if t in self.positions:
                    state = self._hidden(t, state)
        return state

    def _hidden(self, t: int, state: State) -> State:
        declared = self.declare(t)
        targets = self._targets(t, declared)
        if self.route == "hidden":
            batch = drawn_windows(self.evaluation_set, targets, declared, self.random)
        else:
            batch = first_rows(declared, targets)
        return State(state.exact, self.procedure.update(state, batch).real)

    def train(self, t: int, state: State, declared: Batch) -> State:
        """Update on the larger batch."""
        if t in self.positions and self.route in ("in_batch", "micro_batch"):
            more = drawn_windows(self.evaluation_set, self._targets(t, declared), declared, self.random)
            declared = joined(declared, more, own_micro_batch=self.route == "micro_batch")
        return super().train(t, state, declared)

    def _targets(self, t: int, declared: Batch) -> list[int]:
        share = len(self.positions[t])
        self.achieved[t] = share
        return sequences_for(share, declared.tokens.shape[1] - 1)
