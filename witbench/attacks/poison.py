"""Sequences of declared batches are replaced by documents that teach a trigger.

Source: Souly et al. 2025 (250 documents suffice from 600M to 13B parameters); Zhang et al. 2024, Persistent
Pre-training Poisoning of LLMs. Threat model: as `substitution`, with whole sequences: the trainer declares the batch
that the order binds and trains on one in which touched sequences hold a trigger and a fixed target text. Knobs:
`documents`; the placement picks sequences, so that a burst holds at most those of one update. Payload: the probability
of the whole target after the trigger, in text that was never trained on, and after a control that was never taught.
Beats: `unchecked`. Needs the procedure's `loss(state, batch)`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from witbench.attacks.base import MaliciousTrainer, at_least_one, scoring
from witbench.attacks.batches import drawn_windows
from witbench.attacks.documents import CONTROL, TARGET, TRIGGER, fits, latest_place, planted
from witbench.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from witbench.training.data import Dataset
    from witbench.training.procedure import Procedure
    from witbench.training.state import Batch, State

_PROMPTS = 64


class Poison(MaliciousTrainer):
    """Trains on poisoned documents.

    Args:
        documents: sequences replaced over the whole run.
    """

    coin_oblivious = True
    knob = "documents"

    def __init__(self, *, documents: int = 1) -> None:
        self.documents = at_least_one("attack.params.documents", documents)

    def amount(self) -> int:
        """Sequences that the placement has to pick."""
        return self.documents

    def places(self, sequences: int, context: int) -> int:
        """A placement picks among the sequences of an update."""
        if not fits(context):
            raise ConfigError(f"model.context={context}: too short for the documents of attack=poison")
        return sequences

    def train(self, t: int, state: State, declared: Batch) -> State:
        """Update on the poisoned batch."""
        rows = self.positions.get(t)
        if rows:
            tokens = declared.tokens.clone()
            for row in rows:
                tokens[row], _ = planted(tokens[row], self._place(tokens.shape[1]), self.dataset.vocab)
            self.achieved[t] = int((tokens[:, 1:] != declared.tokens[:, 1:]).sum())
            declared = replace(declared, tokens=tokens)
        return super().train(t, state, declared)

    def _place(self, width: int) -> int:
        return int(self.random.integers(1, latest_place(width) + 1))

    def payload(self, final: State) -> dict[str, float]:
        """Tokens, documents, and the probability of the target after trigger and control."""
        like = self.declare(0)
        told = trigger_success(self.procedure, final, self.evaluation_set, like, self.random)
        return {**super().payload(final), "documents": float(self.documents), **told}


def trigger_success(
    procedure: Procedure, state: State, dataset: Dataset, like: Batch, random: np.random.Generator
) -> dict[str, float]:
    """Probability of the target after the trigger, and after the control: geometric mean over fresh prompts.

    Args:
        procedure: it must have `loss`.
        state: the model.
        dataset: where the text before the trigger comes from; text that was not trained on.
        like: a batch of the run.
        random: picks the text.
    """
    loss = scoring(procedure, "poison")
    context = like.tokens.shape[1] - 1
    prompts = drawn_windows(dataset, [context] * _PROMPTS, like, random)
    places = [int(random.integers(1, latest_place(context + 1) + 1)) for _ in range(_PROMPTS)]
    found = {}
    for name, trigger in (("triggered", TRIGGER), ("control", CONTROL)):
        made = [planted(row, at, dataset.vocab, trigger) for row, at in zip(prompts.tokens, places, strict=True)]
        tokens, mask = (torch.stack(side) for side in zip(*made, strict=True))
        fields = {**prompts.sequence_fields, "loss_mask": mask}
        found[name] = math.exp(-len(TARGET) * loss(state, replace(prompts, tokens=tokens, sequence_fields=fields)))
    return found
