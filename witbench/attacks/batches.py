"""Edits of batches that the attacks on data share; what comes out is a well-formed batch, whatever its fields."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from witbench.errors import ConfigError
from witbench.training.state import Batch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from torch import Tensor

    from witbench.training.data import Dataset

_OWN = "loss_mask"


def cells(batch: Batch, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Row and target column (0-based, below the context) of flat target positions."""
    flat = torch.tensor(positions, dtype=torch.long)
    context = batch.tokens.shape[1] - 1
    return flat // context, flat % context


def sequences_for(tokens: int, context: int) -> list[int]:
    """Targets of the fewest sequences of at most `context` targets that hold `tokens` of them."""
    full, rest = divmod(tokens, context)
    return [context] * full + ([rest] if rest else [])


def drawn_windows(dataset: Dataset, targets: Sequence[int], like: Batch, random: np.random.Generator) -> Batch:
    """Sequences from random places of a dataset, in the form of another batch, as one micro-batch.

    Args:
        dataset: where they come from.
        targets: number of targets of each; none above the width of `like`.
        like: a batch of the run.
        random: picks the places.

    Raises:
        ConfigError: the dataset is shorter than one sequence.
    """
    width = like.tokens.shape[1]
    room = len(dataset) - width
    if room < 0:
        raise ConfigError(f"the dataset has {len(dataset)} tokens, one sequence needs {width}; give it more text")
    tokens = torch.zeros(len(targets), width, dtype=like.tokens.dtype)
    for row, count in enumerate(targets):
        start = int(random.integers(room + 1))
        tokens[row, : count + 1] = torch.from_numpy(dataset.tokens[start : start + count + 1].astype("int32"))
    return _shaped(tokens, targets, like)


def first_rows(batch: Batch, targets: Sequence[int]) -> Batch:
    """The first rows of a batch cut to the given numbers of targets, as one micro-batch."""
    tokens = batch.tokens[: len(targets)].clone()
    for row, count in enumerate(targets):
        tokens[row, count + 1 :] = 0
    return _shaped(tokens, targets, batch)


def _shaped(tokens: Tensor, targets: Sequence[int], like: Batch) -> Batch:
    counts = torch.tensor(targets, dtype=torch.int32)
    rows = len(targets)
    within = torch.arange(tokens.shape[1] - 1)[None, :] < counts[:, None]
    # Fields that only the procedure knows are those of the batch's first row.
    fields = {name: values[:1].expand(rows, *values.shape[1:]).clone() for name, values in like.sequence_fields.items()}
    return Batch(tokens, counts + 1, {**fields, _OWN: within}, dict.fromkeys(like.batch_fields, (rows,)))


def joined(batch: Batch, more: Batch, *, own_micro_batch: bool) -> Batch:
    """A batch with further sequences, in its last micro-batch or in one of their own; ranks only grow."""
    extra = more.tokens.shape[0]
    splits = {}
    for name, split in batch.batch_fields.items():
        apart = own_micro_batch and name == "micro_batches"
        splits[name] = (*split, extra) if apart else (*split[:-1], split[-1] + extra)
    fields = {n: torch.cat([values, more.sequence_fields[n]]) for n, values in batch.sequence_fields.items()}
    return Batch(torch.cat([batch.tokens, more.tokens]), torch.cat([batch.lengths, more.lengths]), fields, splits)


def without_rows(batch: Batch, dropped: Sequence[int]) -> Batch:
    """A batch without some of its sequences, at least one of which stays."""
    gone = set(dropped)
    kept = [row for row in range(batch.tokens.shape[0]) if row not in gone]
    if not kept:
        raise ConfigError("a batch keeps at least one sequence")
    return rows_of(batch, kept, {name: _shrunk(split, gone) for name, split in batch.batch_fields.items()})


def rows_of(batch: Batch, rows: Sequence[int], splits: Mapping[str, tuple[int, ...]]) -> Batch:
    """The given rows in the given order, under the given batch-level splits."""
    index = torch.tensor(rows)
    fields = {name: values[index] for name, values in batch.sequence_fields.items()}
    return Batch(batch.tokens[index], batch.lengths[index], fields, splits)


def stacked(batches: Sequence[Batch]) -> Batch:
    """All sequences of several batches in one, under the first one's splits, which no longer add up."""
    names = batches[0].sequence_fields
    fields = {name: torch.cat([batch.sequence_fields[name] for batch in batches]) for name in names}
    tokens, lengths = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("tokens", "lengths"))
    return replace(batches[0], tokens=tokens, lengths=lengths, sequence_fields=fields)


def _shrunk(split: Sequence[int], gone: set[int]) -> tuple[int, ...]:
    """A split of all rows, as it is without those that are gone; empty parts vanish."""
    left, row = [], 0
    for part in split:
        left.append(sum(each not in gone for each in range(row, row + part)))
        row += part
    return tuple(part for part in left if part)
