"""Philox4x32-10, the counter-based generator behind every keyed design, on torch integers; and its keys.

Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
A counter-based generator gives any word on its own, so a sign or a normal depends on its address alone, never on the
order, shard or device that asks for it.

Key derivation. The generator's key for one stream of one tensor is the first 8 bytes of
SHA-256(P(design tag) P(stream) P(kappa) P(role) P(name)), read as two little-endian 32-bit words, where P(x) is the
length of x in bytes as 4 bytes big-endian, then x.
"""

from __future__ import annotations

import hashlib
import struct

import torch
from torch import Tensor

from witbench.errors import ConfigError
from witbench.kernels.base import Entry

KEY_BYTES = 32
"""Length of a sketch key kappa."""

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox4x32(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Four words of 32 random bits for each counter and key.

    Args:
        counter: c0, c1, c2, c3; int64 tensors holding unsigned 32-bit values, of shapes that broadcast.
        key: k0, k1, likewise.

    Returns:
        Four int64 tensors of the broadcast shape, values from 0 to 2^32 - 1.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # int64 products wrap, but their 64 bits are those of the unsigned product.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (product1 >> 32 & _MASK) ^ c1 ^ k0, (product0 >> 32 & _MASK) ^ c3 ^ k1
        c1, c3 = product1 & _MASK, product0 & _MASK
        k0, k1 = k0 + _WEYL[0] & _MASK, k1 + _WEYL[1] & _MASK
    return c0, c1, c2, c3


def check_key(key: bytes) -> None:
    """Refuse a sketch key of the wrong length. Raises ConfigError."""
    if len(key) != KEY_BYTES:
        raise ConfigError(f"a sketch key has {KEY_BYTES} bytes, not {len(key)}")


def stream_key(tag: str, stream: str, key: bytes, entry: Entry) -> tuple[int, int]:
    """The generator's key for one stream of one tensor (derivation: see the module)."""
    parts = (tag.encode(), stream.encode(), key, entry.role.encode(), entry.name.encode())
    message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    k0, k1 = struct.unpack("<II", hashlib.sha256(message).digest()[:8])
    return k0, k1


def address(indices: Tensor) -> tuple[Tensor, Tensor]:
    """Low and high 32-bit words of non-negative int64 addresses, as counter words c0 and c1."""
    return indices & _MASK, indices >> 32


def scalar(value: int, device: torch.device) -> Tensor:
    """A counter or key word that is the same everywhere."""
    return torch.full((), value, dtype=torch.int64, device=device)
