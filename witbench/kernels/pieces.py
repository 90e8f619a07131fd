"""Bounded row-major pieces of shards, read in place: what every design and the digest walk over."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from witbench.errors import StateError
from witbench.kernels.base import Entry, Shard
from witbench.kernels.manifest import dtype_name


@dataclass(frozen=True)
class Piece:
    """Some values of one shard with their places in the global row-major tensor, ascending.

    Attributes:
        values: 1-D, in the shard's dtype; a view of the shard's tensor where its strides allow.
        start: flat global index of the first value.
        indices: flat global index of each value, or None when they are `start`, `start + 1`, ...
    """

    values: Tensor
    start: int
    indices: Tensor | None


def label(entry: Entry) -> str:
    """How messages name a tensor."""
    return f"{entry.role} {entry.name}"


def is_whole(shard: Shard) -> bool:
    """Whether a shard is the whole tensor."""
    return shard.sizes == shard.entry.shape


def pieces(shard: Shard, limit: int) -> Iterator[Piece]:
    """Cut a shard into pieces of at most `limit` values, in ascending global order, each place exactly once.

    Raises:
        StateError: when tensor, sizes and offsets do not fit the entry.
    """
    _check(shard)
    strides = _row_major_strides(shard.entry.shape)
    tensor = shard.tensor.detach()
    for low, sizes in _boxes((0,) * len(shard.sizes), shard.sizes, limit):
        box = tensor[tuple(slice(a, a + size) for a, size in zip(low, sizes, strict=True))]
        corner = [a + offset for a, offset in zip(low, shard.offsets, strict=True)]
        start = sum(a * stride for a, stride in zip(corner, strides, strict=True))
        indices = None if _is_run(sizes, shard.entry.shape) else _indices(start, sizes, strides, tensor.device)
        yield Piece(box.reshape(-1), start, indices)


def _check(shard: Shard) -> None:
    entry = shard.entry
    where = label(entry)
    if dtype_name(shard.tensor) != entry.dtype:
        raise StateError(f"a shard of {where} is {dtype_name(shard.tensor)}, the manifest says {entry.dtype}")
    if tuple(shard.tensor.shape) != shard.sizes or not len(shard.offsets) == len(shard.sizes) == len(entry.shape):
        raise StateError(f"a shard of {where} has shape {tuple(shard.tensor.shape)} but claims sizes {shard.sizes}")
    box = zip(shard.offsets, shard.sizes, entry.shape, strict=True)
    if any(offset < 0 or offset + size > full for offset, size, full in box):
        raise StateError(f"a shard of {where} at {shard.offsets} of size {shard.sizes} leaves its shape {entry.shape}")


def _row_major_strides(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]


def _boxes(
    low: tuple[int, ...], sizes: tuple[int, ...], limit: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Split a box along its outermost dimensions until each part holds at most `limit` values."""
    count = math.prod(sizes)
    if count == 0:
        return
    if count <= limit:
        yield low, sizes
        return
    dim = next(dim for dim, size in enumerate(sizes) if size > 1)
    step = max(1, limit * sizes[dim] // count)
    for first in range(0, sizes[dim], step):
        part_low = (*low[:dim], low[dim] + first, *low[dim + 1 :])
        part_sizes = (*sizes[:dim], min(step, sizes[dim] - first), *sizes[dim + 1 :])
        yield from _boxes(part_low, part_sizes, limit)


def _is_run(sizes: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a box is one run of consecutive global values: beyond its first long dimension it is full."""
    dim = next((dim for dim, size in enumerate(sizes) if size > 1), len(sizes))
    return sizes[dim + 1 :] == shape[dim + 1 :]


def _indices(start: int, sizes: tuple[int, ...], strides: list[int], device: torch.device) -> Tensor:
    indices = torch.full((), start, dtype=torch.int64, device=device)
    for size, stride in zip(sizes, strides, strict=True):
        indices = indices[..., None] + torch.arange(size, device=device) * stride
    return indices.reshape(-1)
