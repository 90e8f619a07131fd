r"""Merkle roots over the real part of a state, bit for bit, and the exact sketch design built on them.

    leaf         BLAKE3 of one 64 KiB range of a tensor's row-major little-endian bytes, aligned at multiples of 64 KiB;
                 the last may be shorter, an empty tensor has none
    tensor node  SHA-256("witbench/tensor/v0\n" ‖ canonical CBOR [role, name, dtype, [shape]] ‖ T(leaves))
    role root    T(nodes of the role's tensors in canonical order)
    real root    T(role ‖ role root, for each of the roles in canonical order, also those without tensors)

T is the Merkle tree hash of RFC 6962: SHA-256("") for an empty list, SHA-256(0 ‖ item) for one item, else
SHA-256(1 ‖ T(first n) ‖ T(rest)) where n is the largest power of two below the number of items.
A leaf covers a range of the global tensor, so ranks that hold shards can build the same tree together.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import cbor2
import torch
from blake3 import blake3
from torch import Tensor

from witbench.errors import StateError
from witbench.kernels.base import Entry, Shard, Sketch, SketchDesign, SketchProperties, StateView
from witbench.kernels.manifest import group_names
from witbench.kernels.philox import check_key
from witbench.kernels.pieces import Piece, is_whole, label, pieces
from witbench.training.state import ROLES, Key

LEAF_BYTES = 1 << 16
"""Bytes of a tensor under one leaf."""

_TENSOR_TAG = b"witbench/tensor/v0\n"
_CHUNK = 1 << 18


@dataclass(frozen=True)
class StateRoots:
    """Roots of one state's real part.

    Attributes:
        real: root over everything.
        roles: role -> root over its tensors. `parameter` is the one a published weights file is checked against.
    """

    real: bytes
    roles: dict[str, bytes]


@dataclass(frozen=True)
class ShardLeaves:
    """What one shard knows of its tensor's leaves.

    Attributes:
        complete: leaf number -> leaf, where the shard holds every byte of it.
        fragments: (byte offset in the tensor, bytes), none crossing a leaf, for leaves it holds in part.
    """

    complete: dict[int, bytes]
    fragments: list[tuple[int, bytes]]


def merkle_root(items: Sequence[bytes]) -> bytes:
    """Merkle tree hash of RFC 6962, section 2.1."""
    if not items:
        return hashlib.sha256(b"").digest()
    level = [hashlib.sha256(b"\0" + item).digest() for item in items]
    while len(level) > 1:
        # Pairing neighbours and passing an odd last one up gives the RFC's left-heavy tree.
        paired = [hashlib.sha256(b"\1" + a + b).digest() for a, b in zip(level[::2], level[1::2], strict=False)]
        level = paired + level[len(level) & ~1 :]
    return level[0]


def state_roots(view: StateView) -> StateRoots:
    """Roots of a whole state, its tensors read in place.

    Raises:
        StateError: when the shards of a tensor do not cover it, each byte once.
    """
    return roots_from_nodes(_nodes(view))


def roots_from_nodes(nodes: dict[Key, bytes]) -> StateRoots:
    """Roots from the tensor nodes of a state, in canonical order."""
    roles = {role: merkle_root([node for key, node in nodes.items() if key[0] == role]) for role in ROLES}
    return StateRoots(merkle_root([role.encode() + root for role, root in roles.items()]), roles)


def tensor_node(entry: Entry, leaves: Sequence[bytes]) -> bytes:
    """Node of one tensor; binds role, name, dtype and shape beside the bytes."""
    header = cbor2.dumps([entry.role, entry.name, entry.dtype, list(entry.shape)], canonical=True)
    return hashlib.sha256(_TENSOR_TAG + header + merkle_root(leaves)).digest()


def shard_leaves(shard: Shard) -> ShardLeaves:
    """Leaves and parts of leaves that one shard holds. Raises StateError when it does not fit its entry.

    Memory is constant but for the fragments: parts of leaves must travel to wherever the leaf is put together.
    """
    total = math.prod(shard.entry.shape) * shard.tensor.element_size()
    complete: dict[int, bytes] = {}
    fragments: list[tuple[int, bytes]] = []
    start, pending = 0, bytearray()
    for offset, part in _parts(shard):
        if pending and offset != start + len(pending):
            fragments.append((start, bytes(pending)))
            pending.clear()
        start = start if pending else offset
        pending += part
        if start % LEAF_BYTES == 0 and len(pending) == min(LEAF_BYTES, total - start):
            complete[start // LEAF_BYTES] = blake3(pending).digest()
            pending.clear()
        elif (start + len(pending)) % LEAF_BYTES == 0:
            fragments.append((start, bytes(pending)))
            pending.clear()
    if pending:
        fragments.append((start, bytes(pending)))
    return ShardLeaves(complete, fragments)


def merge_leaves(entry: Entry, parts: Iterable[ShardLeaves]) -> list[bytes]:
    """All leaves of a tensor from what its shards know.

    Raises:
        StateError: when the shards leave a gap, or hold a byte twice (replicas count once).
    """
    leaves: dict[int, bytes] = {}
    fragments: dict[int, list[tuple[int, bytes]]] = {}
    for part in parts:
        if leaves.keys() & part.complete.keys():
            raise StateError(f"two shards of {label(entry)} hold the same values: replicas count once")
        leaves.update(part.complete)
        for offset, data in part.fragments:
            fragments.setdefault(offset // LEAF_BYTES, []).append((offset, data))
    total = math.prod(entry.shape) * _element_size(entry)
    for number, pieces_of_leaf in fragments.items():
        if number in leaves:
            raise StateError(f"two shards of {label(entry)} hold the same values: replicas count once")
        leaves[number] = _join(entry, number, sorted(pieces_of_leaf), total)
    count = -(-total // LEAF_BYTES)
    missing = next((number for number in range(count) if number not in leaves), None)
    if missing is not None:
        raise StateError(f"the shards of {label(entry)} leave bytes from {missing * LEAF_BYTES} uncovered")
    return [leaves[number] for number in range(count)]


class DigestSketch(SketchDesign):
    """256 bits per group: keyed BLAKE3 of its tensor nodes. Exact, without tolerance or geometry."""

    def sketch(self, view: StateView, key: bytes) -> Sketch:
        """One uint8 tensor of 32 bytes per group. Raises StateError for non-finite values or an empty state."""
        check_key(key)
        if not view.manifest.entries:
            raise StateError("the state has no real tensors: there is nothing to sketch")
        _check_finite(view.shards)
        nodes = _nodes(view)
        hashers = {group: blake3(key=key) for group in group_names(view.manifest)}
        for entry in view.manifest.entries:
            hashers[entry.group].update(nodes[entry.role, entry.name])
        digests = {group: bytearray(hasher.digest()) for group, hasher in hashers.items()}
        return Sketch({group: torch.frombuffer(digest, dtype=torch.uint8) for group, digest in digests.items()})

    def distance(self, a: Sketch, b: Sketch) -> dict[str, float]:
        """Zero where the digests are equal, infinite where not. Raises StateError for different groups."""
        if a.values.keys() != b.values.keys():
            raise StateError("the two sketches have different groups")
        return {group: 0.0 if torch.equal(a.values[group], b.values[group]) else math.inf for group in a.values}

    def describe(self) -> SketchProperties:
        """Exact and nothing else; BLAKE3 costs some ten operations a byte."""
        return SketchProperties(
            linear=False,
            shard_additive=False,
            exact=True,
            bytes_per_group=32,
            operations_per_value=42.0,
            bytes_read_per_value=0.0,
        )


def _nodes(view: StateView) -> dict[Key, bytes]:
    shards: dict[Key, list[Shard]] = {(entry.role, entry.name): [] for entry in view.manifest.entries}
    for shard in view.shards:
        key = (shard.entry.role, shard.entry.name)
        if key not in shards:
            raise StateError(f"a shard of {label(shard.entry)} is not in the manifest")
        shards[key].append(shard)
    nodes = {}
    for entry in view.manifest.entries:
        own = shards[entry.role, entry.name]
        if len(own) == 1 and is_whole(own[0]) and own[0].tensor.is_contiguous() and own[0].tensor.device.type == "cpu":
            data = _raw(own[0].tensor.detach())
            leaves = [blake3(data[at : at + LEAF_BYTES]).digest() for at in range(0, len(data), LEAF_BYTES)]
        else:
            leaves = merge_leaves(entry, (shard_leaves(shard) for shard in own))
        nodes[entry.role, entry.name] = tensor_node(entry, leaves)
    return nodes


def _parts(shard: Shard) -> Iterator[tuple[int, memoryview]]:
    """A shard's bytes in ascending order: (offset in the global tensor, bytes), none crossing a leaf."""
    width = shard.tensor.element_size()
    for piece in pieces(shard, LEAF_BYTES // width):
        data = _raw(piece.values.cpu().contiguous())
        for first, low, high in _runs(piece):
            offset, position, end = first * width, low * width, high * width
            while position < end:
                size = min(LEAF_BYTES - offset % LEAF_BYTES, end - position)
                yield offset, data[position : position + size]
                offset, position = offset + size, position + size


def _runs(piece: Piece) -> list[tuple[int, int, int]]:
    """Runs of consecutive global places: (first place, its position among the values, one past the last position)."""
    if piece.indices is None:
        return [(piece.start, 0, piece.values.numel())]
    indices = piece.indices.cpu()
    breaks = (torch.nonzero(indices[1:] != indices[:-1] + 1)[:, 0] + 1).tolist()
    starts = [0, *breaks]
    return list(zip(indices[starts].tolist(), starts, [*breaks, len(indices)], strict=True))


def _raw(tensor: Tensor) -> memoryview:
    """Bytes of a contiguous CPU tensor, not copied."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)


def _join(entry: Entry, number: int, fragments: list[tuple[int, bytes]], total: int) -> bytes:
    position = number * LEAF_BYTES
    hasher = blake3()
    for offset, data in fragments:
        if offset != position:
            problem = "leave bytes uncovered" if offset > position else "hold the same values: replicas count once"
            raise StateError(f"the shards of {label(entry)} {problem}")
        hasher.update(data)
        position += len(data)
    if position != min((number + 1) * LEAF_BYTES, total):
        raise StateError(f"the shards of {label(entry)} leave bytes from {position} uncovered")
    return hasher.digest()


def _element_size(entry: Entry) -> int:
    dtype: torch.dtype = getattr(torch, entry.dtype)
    return dtype.itemsize


def _check_finite(shards: Sequence[Shard]) -> None:
    for shard in shards:
        bad = sum(int((~torch.isfinite(piece.values)).sum()) for piece in pieces(shard, _CHUNK))
        if bad:
            raise StateError(f"{label(shard.entry)} holds {bad} values that are not finite")
