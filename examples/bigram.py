"""A training procedure of one's own: a table of next-byte logits, learned by gradient descent.

    witbench attack substitution procedure=examples.bigram:Bigram placement=burst

Everything a run depends on is in the state and the batch, so this is all the protocol and its attacks have to know.
"""

import torch
from torch.nn.functional import cross_entropy

from witbench.training.order import keyed_batch
from witbench.training.state import State

TABLE = ("parameter", "table")


class Bigram:
    def __init__(self, config):
        self.shape = config["training"]["sequences"], config["model"]["context"]

    def init(self, seed):
        return State({"step": 0}, {TABLE: torch.zeros(256, 256)})

    def batch(self, dataset, order_seed, t):
        return keyed_batch(dataset, order_seed, t, *self.shape)

    def update(self, state, batch):
        table = state.real[TABLE].detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.mean_loss(table, batch), table)
        return State({"step": state.exact["step"] + 1}, {TABLE: table.detach() - 50 * gradient})

    def evaluate(self, state, dataset):
        return {"loss": self.loss(state, keyed_batch(dataset, bytes(32), 0, *self.shape))}

    def loss(self, state, batch):
        return float(self.mean_loss(state.real[TABLE], batch))

    def mean_loss(self, table, batch):
        logits, targets = table[batch.tokens[:, :-1].long()], batch.tokens[:, 1:].long()
        losses = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        mask = batch.sequence_fields["loss_mask"].flatten()
        return (losses * mask).sum() / mask.sum().clamp(min=1)
