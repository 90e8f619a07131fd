"""Commitments to data and states: salted sequence leaves, batch roots, and the state digest c.

Every hash begins with an ASCII domain tag ending in a newline. Layouts are written down in docs/format.md.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from witbench.errors import ProtocolError
from witbench.kernels.digest import state_roots
from witbench.kernels.manifest import full_view
from witbench.protocol import merkle
from witbench.protocol.encoding import encode
from witbench.training.serialize import exact_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from witbench.kernels.base import Manifest
    from witbench.training.state import Batch, State


KEY_BYTES = 32
"""Length of every key on the salt ladder."""


def step_key(run_key: bytes, t: int) -> bytes:
    """Key of update `t` on the HMAC ladder run key -> step key -> salt; opening it opens the salts of one update."""
    return hmac.digest(run_key, b"witbench/step/v0\n" + t.to_bytes(8, "big"), "sha256")


def sequence_salt(key: bytes, row: int) -> bytes:
    """Salt of sequence `row` of the update whose step key is `key`."""
    return hmac.digest(key, b"witbench/salt/v0\n" + row.to_bytes(4, "big"), "sha256")


def content_hash(tokens: Tensor) -> bytes:
    """Hash of one sequence's valid tokens, u32 little-endian, whatever dtype they are held in."""
    values = tokens.numpy().astype("<u4")
    return hashlib.sha256(b"witbench/seq/v0\n" + len(values).to_bytes(4, "big") + values.tobytes()).digest()


def _raw(tensor: Tensor) -> bytes:
    array: np.ndarray = tensor.reshape(-1).view(torch.uint8).numpy()
    return array.tobytes()


def _row_fields_hash(batch: Batch, row: int) -> bytes:
    fields = {}
    for name, values in batch.sequence_fields.items():
        one = values[row]
        fields[name] = [str(one.dtype).removeprefix("torch."), list(one.shape), _raw(one)]
    return hashlib.sha256(b"witbench/sequence-fields/v0\n" + encode(fields)).digest()


def sequence_leaf(batch: Batch, row: int, salt: bytes) -> bytes:
    """Leaf payload of one sequence: salt, content hash, hash of every per-sequence field, length (100 bytes)."""
    length = int(batch.lengths[row])
    content = content_hash(batch.tokens[row, :length])
    return salt + content + _row_fields_hash(batch, row) + length.to_bytes(4, "big")


@dataclass(frozen=True)
class BatchCommitment:
    """What a DECLARE says of one update's data.

    Attributes:
        root: RFC 6962 root over the sequence leaves, in the order they are consumed.
        sequences: number of rows.
        tokens: number of targets that count in the loss.
        fields: hash of every batch-level field (rank map and micro-batch split included).
    """

    root: bytes
    sequences: int
    tokens: int
    fields: bytes


def commit_batch(batch: Batch, key: bytes) -> BatchCommitment:
    """Commit to one update's batch under its step key."""
    rows = int(batch.tokens.shape[0])
    leaves = [sequence_leaf(batch, row, sequence_salt(key, row)) for row in range(rows)]
    fields = {name: list(values) for name, values in batch.batch_fields.items()}
    digest = hashlib.sha256(b"witbench/batch-fields/v0\n" + encode(fields)).digest()
    return BatchCommitment(merkle.root(leaves), rows, int(batch.sequence_fields["loss_mask"].sum()), digest)


@dataclass(frozen=True)
class StateCommitment:
    """The digest c of a state, and the parts a certificate shows.

    Attributes:
        state: c = SHA-256(tag, exact-part digest, Merkle root over the real tensors).
        exact: digest of the exact part alone.
        parameters: Merkle root over the parameters alone, which anyone can recompute from the published file.
    """

    state: bytes
    exact: bytes
    parameters: bytes


def exact_digest(state: State) -> bytes:
    """Digest of the exact part: step, schedule, RNG states, loss scale, integer and mask buffers."""
    return hashlib.sha256(b"witbench/exact/v0\n" + exact_bytes(state.exact)).digest()


def commit_state(state: State, manifest: Manifest) -> StateCommitment:
    """Commit to a state, bit for bit. Raises StateError when it does not fit the manifest."""
    roots = state_roots(full_view(manifest, state.real))
    exact = exact_digest(state)
    c = hashlib.sha256(b"witbench/state/v0\n" + exact + roots.real).digest()
    return StateCommitment(c, exact, roots.roles["parameter"])


def same_batch(a: Batch, b: Batch) -> bool:
    """Whether two batches are the same, field for field and bit for bit."""
    key = bytes(32)
    shapes = a.tokens.shape == b.tokens.shape and dict(a.batch_fields) == dict(b.batch_fields)
    return shapes and commit_batch(a, key) == commit_batch(b, key)


def check_batch(batch: Batch) -> None:
    """Refuse a batch with parts that its commitment would not bind. Raises ProtocolError (`open.leaf`).

    There is a target, rows and fields fit together, and what lies beyond a row's length is zero and does not count in
    the loss.
    """
    rows, width = batch.tokens.shape
    mask = batch.sequence_fields.get("loss_mask")
    if mask is None or tuple(mask.shape) != (rows, width - 1) or tuple(batch.lengths.shape) != (rows,):
        raise ProtocolError("open.leaf", "the opened batch's tokens, lengths and loss mask differ in shape")
    if rows < 1 or width < 2:
        raise ProtocolError("open.leaf", "the opened batch has no targets")
    beyond = torch.arange(width)[None, :] >= batch.lengths[:, None]
    if bool(((batch.lengths < 0) | (batch.lengths > width)).any()) or bool(batch.tokens[beyond].any()):
        raise ProtocolError("open.leaf", "the opened batch holds tokens beyond a row's length")
    if bool((mask & beyond[:, 1:]).any()):
        raise ProtocolError("open.leaf", "the opened batch counts targets beyond a row's length")
    if any(field.dim() == 0 or field.shape[0] != rows for field in batch.sequence_fields.values()):
        raise ProtocolError("open.leaf", "a per-sequence field of the opened batch does not have one row per sequence")
    if any(sum(split) != rows for split in batch.batch_fields.values()):
        raise ProtocolError("open.leaf", "a batch-level split of the opened batch does not add up to its rows")
