"""The bound data order: a keyed permutation of all windows for each epoch, open at any place without state.

A balanced Feistel network over the next even power of two, with cycle walking down to the number of windows (Black &
Rogaway 2002). Round functions are keyed BLAKE2b, so the order follows from the seed on every machine and version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from witbench.errors import DataError
from witbench.training.state import Batch

if TYPE_CHECKING:
    from witbench.training.data import Dataset

_ROUNDS = 6


def keyed_batch(
    dataset: Dataset, order_seed: bytes, t: int, sequences: int, context: int, micro_batches: int = 1
) -> Batch:
    """The batch of update t in the keyed order, every target of which counts.

    Args:
        dataset: tokens.
        order_seed: 32 bytes.
        t: 0-based update.
        sequences: rows of a batch.
        context: targets of a row.
        micro_batches: equal parts of the rows, a divisor of their number.

    Raises:
        DataError: the dataset holds no whole sequence.
    """
    windows = (len(dataset) - 1) // context
    if windows < 1:
        raise DataError(f"the dataset has {len(dataset)} tokens, one sequence needs {context + 1}")
    order = batch_windows(windows, order_seed, t * sequences, sequences)
    return windows_batch(dataset, order, context, micro_batches)


def windows_batch(dataset: Dataset, windows: Sequence[int], context: int, micro_batches: int = 1) -> Batch:
    """A batch of windows of a dataset: window w holds tokens w * context to (w + 1) * context, both included."""
    rows = len(windows)
    held = np.stack([dataset.tokens[w * context : w * context + context + 1] for w in windows])
    return Batch(
        torch.from_numpy(held.astype(np.int32)),
        torch.full((rows,), context + 1, dtype=torch.int32),
        {"loss_mask": torch.ones(rows, context, dtype=torch.bool)},
        {"micro_batches": (rows // micro_batches,) * micro_batches, "ranks": (rows,)},
    )


def batch_windows(windows: int, order_seed: bytes, first: int, count: int) -> list[int]:
    """Windows at places `first` to `first + count` of the order; each epoch visits every window once.

    Args:
        windows: number of windows in the dataset, at least 1.
        order_seed: 32 bytes.
        first: place, counted over all epochs.
        count: how many.
    """
    found = []
    for place in range(first, first + count):
        epoch, index = divmod(place, windows)
        found.append(_permuted(index, windows, order_seed + epoch.to_bytes(8, "big")))
    return found


def _permuted(index: int, windows: int, key: bytes) -> int:
    half = max(1, ((windows - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for number in range(_ROUNDS):
            data = number.to_bytes(1, "big") + right.to_bytes(8, "big")
            digest = hashlib.blake2b(data, key=key, digest_size=8, person=b"witbench/order").digest()
            left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
        index = left << half | right
        if index < windows:
            return index
