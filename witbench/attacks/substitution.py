"""Tokens of declared batches are replaced in training.

Source: the substitution attack of *Training Witnesses*, Figure 5 (left). Threat model: the trainer declares the batch
that the order binds and trains on another one of the same shape, in which `tokens` target tokens are replaced by other
tokens; a target is also the input of the next position. It knows everything but the broker's secrets, and ignores
the coins. Knobs: `tokens`; the placement says where. Beats: `unchecked`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from witbench.attacks.base import MaliciousTrainer, at_least_one
from witbench.attacks.batches import cells

if TYPE_CHECKING:
    from witbench.training.state import Batch, State


class Substitution(MaliciousTrainer):
    """Trains on other tokens than it declares.

    Args:
        tokens: target tokens replaced over the whole run.
    """

    coin_oblivious = True

    def __init__(self, *, tokens: int = 1) -> None:
        self.tokens = at_least_one("attack.params.tokens", tokens)

    def amount(self) -> int:
        """Target positions that the placement has to pick."""
        return self.tokens

    def train(self, t: int, state: State, declared: Batch) -> State:
        """Update on the substituted batch."""
        return super().train(t, state, self._substituted(t, declared))

    def _substituted(self, t: int, declared: Batch) -> Batch:
        positions = self.positions.get(t)
        if not positions:
            return declared
        rows, columns = cells(declared, positions)
        tokens = declared.tokens.clone()
        old = tokens[rows, columns + 1]
        # Another token than the declared one, every other one being as likely: an edit without effect is no attack.
        shift = torch.from_numpy(self.random.integers(1, self.dataset.vocab, len(positions))).to(torch.int32)
        tokens[rows, columns + 1] = (old + shift) % self.dataset.vocab
        self.achieved[t] = len(positions)
        return replace(declared, tokens=tokens)
