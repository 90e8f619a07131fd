"""Declared targets do not take part in training.

Source: the deletion attack of *Training Witnesses*, Figure 5 (right). Threat model: the trainer declares the batch that
the order binds and leaves part of it out, so that data it has to show for is not learned. Knobs: `tokens`; the
placement says where; `route` says how:

* `mask`: the touched targets do not count in the loss, whose mean is over those that are left;
* `zero_weight`: the touched targets have weight zero in the loss, whose mean is over all (field `loss_weight`, which a
  procedure has to know; its `loss(state, batch)` tells whether it does);
* `drop`: whole sequences are left out, the fewest that hold the update's share of `tokens`.

Beats: `unchecked`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from witbench.attacks.base import MaliciousTrainer, at_least_one, one_of, scoring
from witbench.attacks.batches import cells, sequences_for, without_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from witbench.training.state import Batch, State

ROUTES = ("mask", "zero_weight", "drop")


class Deletion(MaliciousTrainer):
    """Trains on less than it declares.

    Args:
        tokens: target tokens deleted over the whole run.
        route: `mask`, `zero_weight` or `drop`.
    """

    coin_oblivious = True

    def __init__(self, *, tokens: int = 1, route: str = "mask") -> None:
        self.tokens = at_least_one("attack.params.tokens", tokens)
        self.route = one_of("attack.params.route", route, ROUTES)

    @property
    def label(self) -> str:
        """`deletion:ROUTE`."""
        return f"{super().label}:{self.route}"

    def amount(self) -> int:
        """Target positions that the placement has to pick."""
        return self.tokens

    def train(self, t: int, state: State, declared: Batch) -> State:
        """Update on the smaller batch."""
        positions = self.positions.get(t)
        if not positions:
            return super().train(t, state, declared)
        edited = self._deleted(t, declared, positions)
        if self.route == "zero_weight":
            loss = scoring(self.procedure, "deletion")
            if loss(state, edited) == loss(state, declared):
                self.achieved[t] = 0
        return super().train(t, state, edited)

    def _deleted(self, t: int, declared: Batch, positions: Sequence[int]) -> Batch:
        mask = declared.sequence_fields["loss_mask"]
        if self.route == "drop":
            rows, context = declared.tokens.shape[0], declared.tokens.shape[1] - 1
            dropped = self.random.permutation(rows)[: len(sequences_for(len(positions), context))].tolist()
            self.achieved[t] = int(mask[dropped].sum())
            if len(dropped) < rows:
                return without_rows(declared, dropped)
            return _with(declared, "loss_mask", torch.zeros_like(mask))
        rows_at, columns = cells(declared, positions)
        self.achieved[t] = int(mask[rows_at, columns].sum())
        if self.route == "mask":
            return _with(declared, "loss_mask", _zeroed(mask, rows_at, columns))
        weight = declared.sequence_fields.get("loss_weight", torch.ones(mask.shape, dtype=torch.float32))
        return _with(declared, "loss_weight", _zeroed(weight, rows_at, columns))


def _zeroed(values: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    values = values.clone()
    values[rows, columns] = 0
    return values


def _with(batch: Batch, name: str, values: Tensor) -> Batch:
    return replace(batch, sequence_fields={**batch.sequence_fields, name: values})
