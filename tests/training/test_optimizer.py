"""Functional AdamW and SGD against torch's own, the schedule against its corner points, clipping against torch's."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from witbench.training.optimizer import adamw, clipped, learning_rate, sgd

CONFIG: dict[str, Any] = {
    "name": "adamw",
    "lr": 0.01,
    "betas": (0.9, 0.95),
    "eps": 1e-8,
    "weight_decay": 0.1,
    "momentum": 0.9,
    "clip": 1.0,
    "warmup": 10,
    "min_lr_ratio": 0.1,
}


def tensors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in ((5, 3), (7,), (2, 2, 2))]


def test_adamw_is_torchs_with_decay_on_matrices_only() -> None:
    parameters = [p.clone().requires_grad_() for p in tensors(0)]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8)
    ours, average, square = (
        tensors(0),
        [torch.zeros_like(p) for p in tensors(0)],
        [torch.zeros_like(p) for p in tensors(0)],
    )
    for step in range(1, 6):
        gradients = tensors(step)
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = g.clone()
        reference.step()
        stepped = adamw(CONFIG, 0.01, step, ours, gradients, average, square)
        ours, average, square = list(stepped.parameters), list(stepped.exp_avg), list(stepped.exp_avg_sq)
    for mine, theirs in zip(ours, parameters, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_torchs_with_decay_on_matrices_only(momentum: float) -> None:
    parameters = [p.clone().requires_grad_() for p in tensors(0)]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    reference = torch.optim.SGD(groups, lr=0.01, momentum=momentum)
    ours, buffers = tensors(0), [torch.zeros_like(p) for p in tensors(0)] if momentum else []
    for step in range(1, 6):
        gradients = tensors(step)
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = g.clone()
        reference.step()
        stepped = sgd({**CONFIG, "momentum": momentum}, 0.01, ours, gradients, buffers)
        ours, buffers = list(stepped.parameters), list(stepped.exp_avg)
    for mine, theirs in zip(ours, parameters, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-6, atol=1e-7)


def test_clipping_is_torchs() -> None:
    parameters = [p.clone().requires_grad_() for p in tensors(0)]
    for p, g in zip(parameters, tensors(1), strict=True):
        p.grad = g.clone()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    for mine, p in zip(clipped(tensors(1), 1.0), parameters, strict=True):
        torch.testing.assert_close(mine, p.grad)
    small = [g * 1e-3 for g in tensors(1)]
    for mine, g in zip(clipped(small, 1.0), small, strict=True):
        assert torch.equal(mine, g)
    assert all(map(torch.equal, clipped(tensors(1), 0.0), tensors(1)))


def test_schedule_warms_up_linearly_and_ends_at_the_floor() -> None:
    rates = [learning_rate(CONFIG, 100, t) for t in range(100)]
    assert rates[0] == pytest.approx(0.001)
    assert rates[9] == pytest.approx(0.01) == max(rates)
    assert rates[99] == pytest.approx(0.001)
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert learning_rate(CONFIG, 100, 500) == pytest.approx(0.001), "beyond the plan it stays at the floor"
    assert learning_rate({**CONFIG, "warmup": 0}, 1, 0) == pytest.approx(0.01)
