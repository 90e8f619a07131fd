"""A GPT: pre-norm blocks, rotary positions, causal attention by torch's SDPA, byte vocabulary by default.

The module holds no state of its own: it is built without storage and called with the tensors of a State.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal multi-head self-attention with rotary positions (Su et al. 2021)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape; cos and sin are (time, head width / 2)."""
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            _rotate(q, cos, sin), _rotate(k, cos, sin), v, dropout_p=dropout, is_causal=True
        )
        y: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return y


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Block(nn.Module):
    """Pre-norm transformer block: attention, then a GELU MLP of four times the width."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_attn = nn.LayerNorm(width)
        self.attn = Attention(width, heads, dropout)
        self.norm_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        x = x + self.drop(self.attn(self.norm_attn(x), cos, sin))
        y: Tensor = x + self.drop(self.down(functional.gelu(self.up(self.norm_mlp(x)))))
        return y


class Rotary(nn.Module):
    """The tables of the rotary positions: float buffers, hence part of the state like any weight."""

    cos: Tensor
    sin: Tensor

    def __init__(self, context: int, head_width: int) -> None:
        super().__init__()
        self.register_buffer("cos", torch.empty(context, head_width // 2))
        self.register_buffer("sin", torch.empty(context, head_width // 2))


class GPT(nn.Module):
    """Decoder-only language model.

    Args:
        config: `layers`, `heads`, `width`, `context`, `vocab`, `tie_embeddings`, `dropout`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, heads, dropout = config["width"], config["heads"], config["dropout"]
        self.embedding = nn.Embedding(config["vocab"], width)
        self.rotary = Rotary(config["context"], width // heads)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(config["layers"]))
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(dropout)
        self.head = None if config["tie_embeddings"] else nn.Linear(width, config["vocab"], bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, time, vocab) of the next token after each of `tokens` (batch, time)."""
        time = tokens.shape[1]
        cos, sin = self.rotary.cos[:time], self.rotary.sin[:time]
        x = self.drop(self.embedding(tokens))
        for block in self.blocks:
            x = block(x, cos, sin)
        x = self.norm(x)
        logits: Tensor = functional.linear(x, self.embedding.weight) if self.head is None else self.head(x)
        return logits


def skeleton(config: Mapping[str, Any]) -> GPT:
    """The model without storage: shapes and code only."""
    with torch.device("meta"):
        return GPT(config)


def initial_tensors(model: GPT, config: Mapping[str, Any], seed: int) -> Iterator[tuple[str, str, Tensor]]:
    """(role, name, tensor) of a fresh model: normal weights of deviation 0.02 as in GPT-2, zero biases, unit norms.

    Projections into the residual stream are scaled by 1 / sqrt(2 · layers).
    """
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, config["dtype"])
    residual = (2 * config["layers"]) ** -0.5
    for name, shape in ((name, parameter.shape) for name, parameter in model.named_parameters()):
        if name.endswith(".bias"):
            tensor = torch.zeros(shape)
        elif "norm" in name:
            tensor = torch.ones(shape)
        else:
            scale = residual if name.endswith(("attn.out.weight", "down.weight")) else 1.0
            tensor = torch.empty(shape).normal_(0.0, 0.02 * scale, generator=generator)
        yield "parameter", name, tensor.to(dtype)
    half = config["width"] // config["heads"] // 2
    frequencies = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(config["context"], dtype=torch.float64)[:, None] * frequencies
    yield "buffer", "rotary.cos", angles.cos().to(dtype)
    yield "buffer", "rotary.sin", angles.sin().to(dtype)
