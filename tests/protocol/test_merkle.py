"""The Merkle log against RFC 6962: reference roots, proofs of every leaf, and proofs that lie."""

from __future__ import annotations

import hashlib

import pytest

from witbench.protocol.merkle import (
    EMPTY_ROOT,
    Frontier,
    inclusion_proof,
    leaf_hash,
    node_hash,
    root,
    verify_inclusion,
)

LEAVES = [bytes.fromhex(text) for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657")]
LEAVES.append(bytes.fromhex("606162636465666768696a6b6c6d6e6f"))

# Roots over the first n of the leaves above, as published with Certificate Transparency's reference tree.
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


@pytest.mark.parametrize("size", range(9))
def test_reference_roots(size: int) -> None:
    assert root(LEAVES[:size]).hex() == ROOTS[size]


def _definition(hashes: list[bytes]) -> bytes:
    """RFC 6962, 2.1, word for word."""
    if not hashes:
        return EMPTY_ROOT
    if len(hashes) == 1:
        return hashes[0]
    split = 1
    while split * 2 < len(hashes):
        split *= 2
    return node_hash(_definition(hashes[:split]), _definition(hashes[split:]))


def test_frontier_is_the_definition_and_stays_small() -> None:
    frontier, hashes = Frontier(), []
    for number in range(300):
        data = str(number).encode()
        hashes.append(leaf_hash(data))
        assert frontier.append(data) == hashes[-1]
        assert frontier.root() == _definition(hashes)
        assert frontier.size == number + 1
        assert len(frontier._peaks) <= frontier.size.bit_length()


def test_copy_is_independent() -> None:
    frontier = Frontier()
    frontier.append(b"a")
    other = frontier.copy()
    other.append(b"b")
    assert frontier.root() == leaf_hash(b"a")
    assert other.size == 2


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 13])
def test_every_inclusion_proof(size: int) -> None:
    hashes = [leaf_hash(bytes([number])) for number in range(size)]
    head = _definition(hashes)
    for index in range(size):
        proof = inclusion_proof(hashes, index)
        assert verify_inclusion(hashes[index], index, size, proof, head)
        other = hashlib.sha256(b"other").digest()
        assert not verify_inclusion(other, index, size, proof, head)
        assert not verify_inclusion(hashes[index], index, size, [*proof, other], head)
        assert not verify_inclusion(hashes[index], index, size, proof[:-1], head) or not proof
        assert not verify_inclusion(hashes[index], size, size, proof, head)
        assert not verify_inclusion(hashes[index], -1, size, proof, head)
        for wrong in set(range(size)) - {index}:
            assert not verify_inclusion(hashes[index], wrong, size, proof, head)
        if len(proof) > 1:
            assert not verify_inclusion(hashes[index], index, size, [proof[1], proof[0], *proof[2:]], head)


def test_a_node_is_no_leaf() -> None:
    inner = hashlib.sha256(b"\x01" + leaf_hash(b"a") + leaf_hash(b"b")).digest()
    assert root([b"a", b"b"]) == inner
    assert root([leaf_hash(b"a") + leaf_hash(b"b")]) != inner


def test_no_proof_of_a_leaf_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="no leaf 2"):
        inclusion_proof([b"a" * 32, b"b" * 32], 2)
