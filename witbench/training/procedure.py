"""The functional training procedure: init, batch, update, evaluate over an explicit State."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from witbench.errors import DataError
from witbench.training.model import initial_tensors, skeleton
from witbench.training.optimizer import Stepped, adamw, clipped, learning_rate, moment_roles, sgd
from witbench.training.order import keyed_batch, windows_batch
from witbench.training.state import Batch, Key, State

if TYPE_CHECKING:
    from witbench.training.data import Dataset

LOSS_SCALE_GROWTH = 2000
"""Updates without overflow after which the loss scale doubles, as in mixed-precision practice."""
MAX_LOSS_SCALE_BITS = 24


class Procedure(Protocol):
    """A black-box functional training procedure. Everything the next update depends on is in State and Batch."""

    def init(self, seed: int) -> State:
        """S_0."""

    def batch(self, dataset: Dataset, order_seed: bytes, t: int) -> Batch:
        """The batch of update t; pure."""

    def update(self, state: State, batch: Batch) -> State:
        """The next state; the given one stays as it is."""

    def evaluate(self, state: State, dataset: Dataset) -> dict[str, float]:
        """Named numbers of a state on a dataset."""


class GPTProcedure:
    """Trains a GPT on next-token prediction.

    Args:
        config: `model` (see GPT, and `dtype`), `optimizer` (`name`, `lr`, `betas`, `eps`, `weight_decay`, `momentum`,
            `clip`, `warmup`, `min_lr_ratio`) and `training` (`updates`, `sequences`, `micro_batches`,
            `loss_scale_bits`, `eval_batches`).
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._model_config = config["model"]
        self._optimizer = config["optimizer"]
        self._training = config["training"]
        self._context: int = self._model_config["context"]
        self._model = skeleton(self._model_config)
        self._names = [name for name, _ in self._model.named_parameters()]

    def init(self, seed: int) -> State:
        """Fresh weights, zero moments, and the RNG that dropout draws from, all from one seed."""
        real: dict[Key, Tensor] = {}
        for role, name, tensor in initial_tensors(self._model, self._model_config, seed):
            real[role, name] = tensor
        for role in moment_roles(self._optimizer):
            for name in self._names:
                real[role, name] = torch.zeros_like(real["parameter", name])
        rng = torch.Generator().manual_seed(seed).get_state().numpy().tobytes()
        bits = self._training["loss_scale_bits"]
        exact = {"step": 0, "schedule": 0, "loss_scale_bits": bits, "loss_scale_good": 0, "rng": rng}
        return State(exact, real)

    def batch(self, dataset: Dataset, order_seed: bytes, t: int) -> Batch:
        """The windows of update t in the keyed order: `sequences` rows of `context` + 1 tokens."""
        sequences, micro_batches = self._training["sequences"], self._training["micro_batches"]
        return keyed_batch(dataset, order_seed, t, sequences, self._context, micro_batches)

    def update(self, state: State, batch: Batch) -> State:
        """One optimizer update."""
        return self.update_with_metrics(state, batch)[0]

    def update_with_metrics(self, state: State, batch: Batch) -> tuple[State, dict[str, float]]:
        """One optimizer update, and the mean `loss` (nats a counted target) before it."""
        bits = _integer(state, "loss_scale_bits")
        loss, gradients, rng = self._gradients(state, batch, 2.0**bits)
        exact = {**state.exact, "rng": rng, "schedule": _integer(state, "schedule") + 1}
        metrics = {"loss": loss}
        if self._training["loss_scale_bits"]:
            finite = all(bool(torch.isfinite(g).all()) for g in gradients)
            good = _integer(state, "loss_scale_good") + 1 if finite else 0
            grown = good == LOSS_SCALE_GROWTH and bits < MAX_LOSS_SCALE_BITS
            exact["loss_scale_bits"] = bits + 1 if grown else bits if finite else bits - 1
            exact["loss_scale_good"] = 0 if grown else good
            if not finite:
                return State(exact, state.real), metrics
            gradients = list(torch._foreach_mul(gradients, 2.0**-bits))
        exact["step"] = _integer(state, "step") + 1
        stepped = self._step(state, clipped(gradients, self._optimizer["clip"]))
        real = dict(state.real)
        new = {"parameter": stepped.parameters, "exp_avg": stepped.exp_avg, "exp_avg_sq": stepped.exp_avg_sq}
        for role, tensors in new.items():
            real.update({(role, name): tensor for name, tensor in zip(self._names, tensors, strict=False)})
        return State(exact, real), metrics

    def _gradients(self, state: State, batch: Batch, scale: float) -> tuple[float, list[Tensor], bytes]:
        """Mean loss, gradients of the scaled loss, and the RNG state afterwards."""
        leaves = [state.real["parameter", name].detach().requires_grad_() for name in self._names]
        tensors = dict(zip(self._names, leaves, strict=True)) | _of_role(state, "buffer")
        counted = max(1, int(batch.sequence_fields["loss_mask"].sum()))
        total, gradients = 0.0, [torch.zeros_like(leaf) for leaf in leaves]
        self._model.train()
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(torch.frombuffer(bytearray(_bytes(state, "rng")), dtype=torch.uint8))
            row = 0
            for rows in batch.batch_fields["micro_batches"]:
                loss = self._summed_loss(tensors, batch, row, row + rows) / counted
                torch._foreach_add_(gradients, list(torch.autograd.grad(loss * scale, leaves)))
                total += float(loss.detach())
                row += rows
            rng = torch.get_rng_state().numpy().tobytes()
        return total, gradients, rng

    def _summed_loss(self, tensors: Mapping[str, Tensor], batch: Batch, first: int, end: int) -> Tensor:
        tokens = batch.tokens[first:end].long()
        mask = batch.sequence_fields["loss_mask"][first:end]
        logits = functional_call(self._model, dict(tensors), (tokens[:, :-1],))
        losses = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none")
        weight = batch.sequence_fields.get("loss_weight")
        if weight is not None:
            losses = losses * weight[first:end].flatten()
        weight = batch.sequence_fields.get("loss_weight")
        if weight is not None:
            losses = losses * weight[first:end].flatten()
        return (losses * mask.flatten()).sum()

    def _step(self, state: State, gradients: list[Tensor]) -> Stepped:
        rate = learning_rate(self._optimizer, self._training["updates"], _integer(state, "schedule"))
        parameters = [state.real["parameter", name] for name in self._names]
        roles = moment_roles(self._optimizer)
        moments = {role: [state.real[role, name] for name in self._names] for role in roles}
        if self._optimizer["name"] == "adamw":
            step = _integer(state, "step") + 1
            return adamw(self._optimizer, rate, step, parameters, gradients, moments["exp_avg"], moments["exp_avg_sq"])
        return sgd(self._optimizer, rate, parameters, gradients, moments.get("exp_avg", []))

    def loss(self, state: State, batch: Batch) -> float:
        """Mean loss in nats of the counted targets of a batch, without dropout; nothing changes."""
        return self._evaluated(state, batch) / max(1, int(batch.sequence_fields["loss_mask"].sum()))

    def evaluate(self, state: State, dataset: Dataset) -> dict[str, float]:
        """Mean loss in nats a token over the first `eval_batches` batches of windows, in file order."""
        rows = self._training["sequences"]
        windows = min((len(dataset) - 1) // self._context, rows * self._training["eval_batches"])
        if windows < 1:
            raise DataError(f"the evaluation set has {len(dataset)} tokens, one sequence needs {self._context + 1}")
        firsts = range(0, windows, rows)
        batches = (windows_batch(dataset, range(first, min(first + rows, windows)), self._context) for first in firsts)
        return {"loss": sum(self._evaluated(state, batch) for batch in batches) / (windows * self._context)}

    def _evaluated(self, state: State, batch: Batch) -> float:
        tensors = _of_role(state, "parameter") | _of_role(state, "buffer")
        self._model.eval()
        with torch.no_grad():
            return float(self._summed_loss(tensors, batch, 0, batch.tokens.shape[0]))


def _of_role(state: State, role: str) -> dict[str, Tensor]:
    return {name: tensor for (held, name), tensor in state.real.items() if held == role}


def _integer(state: State, name: str) -> int:
    value = state.exact[name]
    if not isinstance(value, int):
        raise TypeError(f"exact field {name} must be an integer")
    return value


def _bytes(state: State, name: str) -> bytes:
    value = state.exact[name]
    if not isinstance(value, bytes):
        raise TypeError(f"exact field {name} must be bytes")
    return value
