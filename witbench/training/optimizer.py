"""AdamW and SGD as functions from parameters, gradients and moments to new ones, and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stepped:
    """What one optimizer step gives.

    Attributes:
        parameters: new parameters, in order.
        exp_avg: new first moments (SGD: momentum), in order; empty when there are none.
        exp_avg_sq: new second moments, in order; empty when there are none.
    """

    parameters: Sequence[Tensor]
    exp_avg: Sequence[Tensor] = ()
    exp_avg_sq: Sequence[Tensor] = ()


def moment_roles(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Roles of the moments that an optimizer keeps for every parameter."""
    if config["name"] == "adamw":
        return ("exp_avg", "exp_avg_sq")
    return ("exp_avg",) if config["momentum"] else ()


def learning_rate(config: Mapping[str, Any], updates: int, position: int) -> float:
    """Linear warm-up over `warmup` updates, then a cosine down to `min_lr_ratio` of the peak at the last update."""
    peak: float = config["lr"]
    warmup: int = config["warmup"]
    if position < warmup:
        return peak * (position + 1) / warmup
    done = min(1.0, (position - warmup) / max(1, updates - 1 - warmup))
    floor: float = config["min_lr_ratio"]
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done)))


def clipped(gradients: Sequence[Tensor], largest_norm: float) -> list[Tensor]:
    """Gradients scaled so that their common L2 norm is at most `largest_norm`; 0 leaves them as they are."""
    if not largest_norm:
        return list(gradients)
    norm = torch.stack([n.float() for n in torch._foreach_norm(list(gradients))]).norm()
    return list(torch._foreach_mul(list(gradients), (largest_norm / (norm + 1e-6)).clamp(max=1.0)))


def adamw(
    config: Mapping[str, Any],
    rate: float,
    step: int,
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    exp_avg: Sequence[Tensor],
    exp_avg_sq: Sequence[Tensor],
) -> Stepped:
    """One AdamW step (Loshchilov & Hutter 2019); matrices decay, vectors (biases, norms) do not.

    Args:
        config: `betas`, `eps`, `weight_decay`.
        rate: learning rate.
        step: 1 for the first step.
        parameters: current parameters.
        gradients: their gradients.
        exp_avg: first moments.
        exp_avg_sq: second moments.
    """
    first, second = config["betas"]
    average = torch._foreach_lerp(list(exp_avg), list(gradients), 1 - first)
    square = torch._foreach_mul(list(exp_avg_sq), second)
    torch._foreach_addcmul_(square, list(gradients), list(gradients), 1 - second)
    denominator = torch._foreach_sqrt(square)
    torch._foreach_div_(denominator, math.sqrt(1 - second**step))
    torch._foreach_add_(denominator, config["eps"])
    keep = 1 - rate * config["weight_decay"]
    new = torch._foreach_mul(list(parameters), [keep if p.dim() > 1 else 1.0 for p in parameters])
    torch._foreach_addcdiv_(new, average, denominator, -rate / (1 - first**step))
    return Stepped(new, average, square)


def sgd(
    config: Mapping[str, Any],
    rate: float,
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momentum: Sequence[Tensor],
) -> Stepped:
    """One SGD step with heavy-ball momentum; weight decay is added to the gradient of matrices.

    Args:
        config: `momentum`, `weight_decay`.
        rate: learning rate.
        parameters: current parameters.
        gradients: their gradients.
        momentum: momentum buffers, empty without momentum.
    """
    decay = config["weight_decay"]
    directions = [
        g.add(p, alpha=decay) if decay and p.dim() > 1 else g for p, g in zip(parameters, gradients, strict=True)
    ]
    if not momentum:
        return Stepped(torch._foreach_add(list(parameters), directions, alpha=-rate))
    buffers = torch._foreach_mul(list(momentum), config["momentum"])
    torch._foreach_add_(buffers, directions)
    return Stepped(torch._foreach_add(list(parameters), buffers, alpha=-rate), buffers)
