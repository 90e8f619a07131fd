"""Honest data in an adversarial order.

Source: Shumailov et al. 2021, Manipulating SGD with Data Ordering Attacks (batch reordering and reshuffling). Threat
model: the trainer trains on exactly the sequences that the order binds, each once, but sorts the sequences of `span`
consecutive updates by the loss that a surrogate gives them, so that updates see easy or hard text in runs; it declares
what it does. Knobs: `tokens` and the placement pick the touched spans; `surrogate`: `self` (the model being trained) or
`fresh` (a newly initialised one); `order`: `low_high`, `high_low` or `oscillating` (from both ends inwards). Beats:
`unordered`. Needs the procedure's `loss(state, batch)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from witbench.attacks.base import MaliciousTrainer, at_least_one, one_of, scoring
from witbench.attacks.batches import rows_of, stacked

if TYPE_CHECKING:
    from witbench.attacks.placement import Positions
    from witbench.training.state import Batch, State

ORDERS = ("low_high", "high_low", "oscillating")
SURROGATES = ("self", "fresh")
_FRESH_SEED = 1


class Reorder(MaliciousTrainer):
    """Sorts the sequences of touched spans.

    Args:
        tokens: target positions that the placement picks; a span that holds one is touched.
        span: updates whose sequences are sorted together; spans begin at its multiples.
        surrogate: `self` or `fresh`.
        order: `low_high`, `high_low` or `oscillating`.
    """

    coin_oblivious = True

    def __init__(self, *, tokens: int = 1, span: int = 8, surrogate: str = "self", order: str = "low_high") -> None:
        self.tokens = at_least_one("attack.params.tokens", tokens)
        self.span = at_least_one("attack.params.span", span)
        self.surrogate = one_of("attack.params.surrogate", surrogate, SURROGATES)
        self.order = one_of("attack.params.order", order, ORDERS)
        self._latest: State | None = None
        self._initial: State | None = None
        self._sorted: dict[int, Batch] = {}
        self._trained = 0

    def amount(self) -> int:
        """Target positions that the placement has to pick."""
        return self.tokens

    def lies(self, positions: Positions, updates: int) -> dict[int, int]:
        """Every update of a touched span; how much of it is moved does not depend on the amount."""
        touched = {t // self.span for t in positions}
        return {t: 1 for block in touched for t in self._span(block, updates)}

    def start(self, seed: int) -> State:
        """S_0, remembered: the payload is measured against an honest run from it."""
        self._initial = super().start(seed)
        return self._initial

    def enter(self, unit: int, state: State) -> State:
        """The state as it is; the surrogate may be this one."""
        self._latest = state
        return state

    def declare(self, t: int) -> Batch:
        """The batch of the sorted span, or the honest one."""
        block = t // self.span
        if not any(update in self.positions for update in self._span(block, self.plan.updates)):
            return super().declare(t)
        if t not in self._sorted:
            self._sorted = self._sort(block)
        return self._sorted[t]

    def train(self, t: int, state: State, declared: Batch) -> State:
        """Update on what was declared."""
        self._trained = t + 1
        return super().train(t, state, declared)

    def _span(self, block: int, updates: int) -> range:
        return range(block * self.span, min((block + 1) * self.span, updates))

    def _sort(self, block: int) -> dict[int, Batch]:
        honest = {t: MaliciousTrainer.declare(self, t) for t in self._span(block, self.plan.updates)}
        together = stacked(list(honest.values()))
        state = self._latest if self.surrogate == "self" else None
        if state is None:
            state = self.procedure.init(_FRESH_SEED)
        loss = scoring(self.procedure, "reorder")
        rows = range(together.tokens.shape[0])
        single = dict.fromkeys(together.batch_fields, (1,))
        losses = [loss(state, rows_of(together, [row], single)) for row in rows]
        ascending = sorted(rows, key=lambda row: (losses[row], row))
        order = {
            "low_high": ascending,
            "high_low": ascending[::-1],
            "oscillating": [ascending[i // 2 if i % 2 == 0 else -1 - i // 2] for i in rows],
        }[self.order]
        batches, first = {}, 0
        for t, batch in honest.items():
            count = batch.tokens.shape[0]
            rows_here = order[first : first + count]
            batches[t] = rows_of(together, rows_here, batch.batch_fields)
            moved = [row for place, row in enumerate(rows_here, start=first) if row != place]
            self.achieved[t] = int(together.sequence_fields["loss_mask"][moved].sum())
            first += count
        return batches

    def payload(self, final: State) -> dict[str, float]:
        """Tokens and updates moved, and what it did to the evaluation: its loss, and that of an honest run as long."""
        found = super().payload(final)
        if self._initial is None:
            return found
        honest = self._initial
        for t in range(self._trained):
            honest = self.procedure.update(honest, MaliciousTrainer.declare(self, t))
        for name, state in (("evaluation", final), ("honest_evaluation", honest)):
            (found[name],) = list(self.procedure.evaluate(state, self.evaluation_set).values())[:1]
        return found
