"""The explicit training state: everything the next update depends on, in an exact and a real part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ROLES = ("parameter", "buffer", "exp_avg", "exp_avg_sq")
"""Roles of real tensors, in canonical order. First moments (Adam's and SGD's momentum) are `exp_avg`."""

Key = tuple[str, str]
"""(role, name) of one real tensor."""


@dataclass(frozen=True)
class State:
    """One training state. Immutable by convention: `update` returns a new one and leaves this one as it was.

    Attributes:
        exact: name -> int, bool, bytes, or an integer or boolean tensor: step, schedule position, RNG state,
            loss scale, integer and mask buffers. Compared bit for bit in every tolerance mode.
        real: (role, name) -> float tensor: parameters, float buffers, optimizer moments.
    """

    exact: Mapping[str, int | bool | bytes | Tensor]
    real: Mapping[Key, Tensor]


@dataclass(frozen=True)
class Batch:
    """The data of one update.

    Attributes:
        tokens: int32, (sequences, context + 1); inputs are `[:, :-1]`, targets `[:, 1:]`. Beyond `lengths` it is zero.
        lengths: int32, (sequences,); valid tokens of each row.
        sequence_fields: per-sequence fields, first dimension `sequences`; always has `loss_mask`
            (bool, (sequences, context)): which targets count in the loss.
        batch_fields: batch-level integer fields; always has `micro_batches` (rows of each micro-batch, adding up to
            `sequences`) and `ranks` (rows of each data-parallel rank, adding up to `sequences`).
    """

    tokens: Tensor
    lengths: Tensor
    sequence_fields: Mapping[str, Tensor]
    batch_fields: Mapping[str, tuple[int, ...]]
