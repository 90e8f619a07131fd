"""The built-in procedure with its loss and gradient compiled by torch, and whether that works on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from witbench.training.procedure import GPTProcedure
from witbench.training.state import Batch

if TYPE_CHECKING:
    from witbench.config import RunConfig


class CompiledGPT(GPTProcedure):
    """GPTProcedure with a compiled forward and backward pass; the optimizer step is the ordinary one."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._compiled = torch.compile(super()._summed_loss, dynamic=False)

    def _summed_loss(self, tensors: Mapping[str, Tensor], batch: Batch, first: int, end: int) -> Tensor:
        # Cut out beforehand: compiled code is made for the numbers it is given, and all micro-batches are to share it.
        mask = {"loss_mask": batch.sequence_fields["loss_mask"][first:end]}
        part = Batch(batch.tokens[first:end], batch.lengths[first:end], mask, {})
        loss: Tensor = self._compiled(tensors, part, 0, end - first)
        return loss


_made: dict[str, CompiledGPT] = {}


def compiled_procedure(config: RunConfig) -> CompiledGPT:
    """The compiled procedure of a configuration, made once a process: compiling takes half a minute."""
    plain = config.procedure_plain()
    key = repr(plain)
    if key not in _made:
        _prepare()
        _made.clear()
        _made[key] = CompiledGPT(plain)
    return _made[key]


@cache
def compiler_trouble() -> str | None:
    """Why torch cannot compile here, in one line; None when it can."""
    _prepare()
    try:
        torch.compile(lambda x: (x * x).sum())(torch.ones(8))
    except (RuntimeError, OSError, ImportError) as error:
        return f"torch.compile does not work here: {' '.join(str(error).split())[:160] or type(error).__name__}"
    return None


def _prepare() -> None:
    import torch._dynamo

    # One compiling process beside the measuring ones, none of its own that would outlive an interruption.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    # Beyond its limit of recompilations dynamo would go on without compiling, and the variation would vary nothing.
    torch._dynamo.config.fail_on_recompile_limit_hit = True
