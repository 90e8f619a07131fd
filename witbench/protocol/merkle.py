"""The Merkle tree of RFC 6962 / RFC 9162 over SHA-256: roots, a streaming frontier, inclusion proofs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

EMPTY_ROOT = hashlib.sha256(b"").digest()
"""Root of the tree without leaves."""


def leaf_hash(data: bytes) -> bytes:
    """SHA-256(0x00, entry)."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """SHA-256(0x01, left, right)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


@dataclass
class Frontier:
    """An append-only tree that keeps only the roots of its perfect subtrees: at most log2(size) + 1 hashes.

    Attributes:
        size: number of leaves.
    """

    size: int = 0
    _peaks: list[bytes] = field(default_factory=list)

    def append(self, data: bytes) -> bytes:
        """Add an entry; returns its leaf hash."""
        leaf = leaf_hash(data)
        self.append_hash(leaf)
        return leaf

    def append_hash(self, leaf: bytes) -> None:
        """Add an entry by its leaf hash."""
        carry, rest = leaf, self.size
        while rest & 1:
            carry = node_hash(self._peaks.pop(), carry)
            rest >>= 1
        self._peaks.append(carry)
        self.size += 1

    def root(self) -> bytes:
        """Root over all entries so far."""
        if not self._peaks:
            return EMPTY_ROOT
        root = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            root = node_hash(peak, root)
        return root

    def copy(self) -> Frontier:
        """An independent frontier of the same tree."""
        return Frontier(self.size, list(self._peaks))


def root(leaves: Iterable[bytes]) -> bytes:
    """Root over entries (their bytes, not their hashes)."""
    frontier = Frontier()
    for data in leaves:
        frontier.append(data)
    return frontier.root()


def _root_of_hashes(hashes: Sequence[bytes]) -> bytes:
    frontier = Frontier()
    for leaf in hashes:
        frontier.append_hash(leaf)
    return frontier.root()


def inclusion_proof(hashes: Sequence[bytes], index: int) -> list[bytes]:
    """Audit path of one leaf, lowest sibling first (RFC 9162, 2.1.3.1).

    Args:
        hashes: leaf hashes of the whole tree.
        index: the leaf to prove, in [0, len(hashes)).
    """
    if not 0 <= index < len(hashes):
        raise ValueError(f"there is no leaf {index} among {len(hashes)}")
    if len(hashes) == 1:
        return []
    split = 1 << (len(hashes) - 1).bit_length() - 1
    if index < split:
        return [*inclusion_proof(hashes[:split], index), _root_of_hashes(hashes[split:])]
    return [*inclusion_proof(hashes[split:], index - split), _root_of_hashes(hashes[:split])]


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether an audit path leads from a leaf hash to the root of a tree of `size` leaves (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        return False
    node, last, result = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if node & 1 or node == last:
            result = node_hash(sibling, result)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            result = node_hash(result, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and result == root
