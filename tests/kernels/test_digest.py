"""State roots: RFC 6962 known roots, shards, and every bit, name, dtype and shape bound."""

from __future__ import annotations

import hashlib
import math

import cbor2
import pytest
import torch
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from witbench.errors import ConfigError, StateError
from witbench.kernels.base import Shard, StateView
from witbench.kernels.digest import (
    LEAF_BYTES,
    DigestSketch,
    StateRoots,
    merge_leaves,
    merkle_root,
    shard_leaves,
    state_roots,
    tensor_node,
)
from witbench.kernels.manifest import build_manifest, full_view

KEY = bytes(range(32))
Real = dict[tuple[str, str], Tensor]

# Inputs and roots of the test suite of the Certificate Transparency reference implementation.
CT_LEAVES = [
    bytes.fromhex(text)
    for text in (
        "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f",
    )
]  # fmt: skip
CT_ROOTS = {
    0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    4: "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    5: "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    6: "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    7: "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}


def _roots(real: Real) -> StateRoots:
    return state_roots(full_view(build_manifest(real), real))


def _state() -> Real:
    generator = torch.Generator().manual_seed(0)
    real: Real = {("buffer", "rope"): torch.randn(3, 4, generator=generator)}
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        real["parameter", f"blocks.0.{dtype}"] = torch.randn(5, 3, generator=generator).to(dtype)
    real["exp_avg", "long"] = torch.randn(LEAF_BYTES // 4 * 2 + 9, generator=generator)
    real["exp_avg_sq", "scalar"] = torch.rand((), generator=generator)
    real["exp_avg_sq", "empty"] = torch.rand(0, 3)
    return real


@pytest.mark.parametrize("size", CT_ROOTS)
def test_rfc6962_known_roots(size: int) -> None:
    assert merkle_root(CT_LEAVES[:size]).hex() == CT_ROOTS[size]


def _recursive(items: list[bytes]) -> bytes:
    """Section 2.1 of RFC 6962, word by word."""
    if len(items) < 2:
        return hashlib.sha256(b"\0" + items[0] if items else b"").digest()
    split = 1 << (len(items) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + _recursive(items[:split]) + _recursive(items[split:])).digest()


def test_rfc6962_by_recursion() -> None:
    items = [bytes([number]) * number for number in range(70)]
    assert all(merkle_root(items[:size]) == _recursive(items[:size]) for size in range(len(items) + 1))


def test_roots_are_the_documented_tree() -> None:
    real = _state()
    nodes: dict[str, list[bytes]] = {"parameter": [], "buffer": [], "exp_avg": [], "exp_avg_sq": []}
    for entry in build_manifest(real).entries:
        data = real[entry.role, entry.name].reshape(-1).view(torch.uint8).numpy().tobytes()
        leaves = [blake3(data[at : at + 65536]).digest() for at in range(0, len(data), 65536)]
        header = cbor2.dumps([entry.role, entry.name, entry.dtype, list(entry.shape)])
        nodes[entry.role].append(hashlib.sha256(b"witbench/tensor/v0\n" + header + _recursive(leaves)).digest())
    roles = {role: _recursive(items) for role, items in nodes.items()}
    assert _roots(real) == StateRoots(_recursive([role.encode() + root for role, root in roles.items()]), roles)


def test_pinned_root() -> None:
    """Fixed for ever: a change here is a new format. The tree is checked independently above."""
    real = {("parameter", "w"): torch.arange(6, dtype=torch.float32).view(2, 3)}
    assert _roots(real).real.hex() == "30e6e012e0fcbd757d2a22daa6f2922b1b98cef0f177119a0b4facb7097fb257"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_flipped_bit_changes_the_root_and_its_role_alone(data: st.DataObject) -> None:
    real = _state()
    before = _roots(real)
    role, name = data.draw(st.sampled_from([key for key, tensor in real.items() if tensor.numel()]))
    raw = real[role, name].reshape(-1).view(torch.uint8)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    after = _roots(real)
    assert after.real != before.real
    assert {other for other in before.roles if after.roles[other] != before.roles[other]} == {role}


def test_signed_zero_dtype_shape_role_and_name_are_bound() -> None:
    zeros = torch.zeros(2, 3)
    variants: list[Real] = [
        {("parameter", "w"): zeros},
        {("parameter", "w"): -zeros},
        {("parameter", "w"): zeros.view(3, 2)},
        {("parameter", "w"): zeros.view(6)},
        {("parameter", "v"): zeros},
        {("buffer", "w"): zeros},
        {("parameter", "w"): torch.zeros(2, 3, dtype=torch.bfloat16)},
        {("parameter", "w"): torch.zeros(2, 3, dtype=torch.float16)},
        {("parameter", "w"): torch.zeros(3, dtype=torch.float64)},
        {("parameter", "w"): torch.zeros(0)},
        {("parameter", "w"): torch.zeros(())},
        {},
    ]
    assert len({_roots(real).real for real in variants}) == len(variants)


def test_role_roots_stand_alone() -> None:
    """The parameters' root is that of the parameters alone: what a published file is checked against."""
    real = _state()
    alone = {key: tensor for key, tensor in real.items() if key[0] == "parameter"}
    assert _roots(alone).roles["parameter"] == _roots(real).roles["parameter"]
    assert _roots(alone).real != _roots(real).real


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_shards_build_the_same_tree(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(40_000,), (130, 301), (3, 67, 201), (1, 1), (0, 4), ()]))
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (entry,) = build_manifest({("parameter", "w"): values}).entries
    boxes = [((0,) * len(shape), shape)]
    for _ in range(data.draw(st.integers(0, 4)) if shape else 0):
        offsets, sizes = boxes.pop(data.draw(st.integers(0, len(boxes) - 1)))
        dim = data.draw(st.integers(0, len(shape) - 1))
        cut = data.draw(st.integers(0, sizes[dim]))
        boxes.append((offsets, (*sizes[:dim], cut, *sizes[dim + 1 :])))
        moved = (*offsets[:dim], offsets[dim] + cut, *offsets[dim + 1 :])
        boxes.append((moved, (*sizes[:dim], sizes[dim] - cut, *sizes[dim + 1 :])))
    shards = []
    for offsets, sizes in data.draw(st.permutations(boxes)):
        box = values[tuple(slice(a, a + size) for a, size in zip(offsets, sizes, strict=True))]
        shards.append(Shard(entry, box.mT.contiguous().mT if box.dim() > 1 else box, offsets, sizes))
    whole = tensor_node(entry, merge_leaves(entry, [shard_leaves(Shard(entry, values, (0,) * len(shape), shape))]))
    assert tensor_node(entry, merge_leaves(entry, map(shard_leaves, shards))) == whole
    manifest = build_manifest({("parameter", "w"): values})
    assert state_roots(StateView(manifest, shards)) == _roots({("parameter", "w"): values})


def test_strides_do_not_matter_and_leave_no_fragments() -> None:
    values = torch.randn(300, 201)
    transposed = values.mT.contiguous().mT
    assert _roots({("parameter", "w"): transposed}) == _roots({("parameter", "w"): values})
    (shard,) = full_view(build_manifest({("parameter", "w"): transposed}), {("parameter", "w"): transposed}).shards
    assert shard_leaves(shard).fragments == []


def test_gaps_and_replicas_are_refused() -> None:
    values = torch.randn(200, 201)
    manifest = build_manifest({("parameter", "w"): values})
    (entry,) = manifest.entries
    top = Shard(entry, values[:120], (0, 0), (120, 201))
    bottom = Shard(entry, values[120:], (120, 0), (80, 201))
    short = Shard(entry, values[121:], (121, 0), (79, 201))
    wide = Shard(entry, values[119:], (119, 0), (81, 201))
    whole = Shard(entry, values, (0, 0), (200, 201))
    row = Shard(entry, values[:1], (0, 0), (1, 201))
    assert state_roots(StateView(manifest, [bottom, top])) == _roots({("parameter", "w"): values})
    for shards, problem in [
        ([top], "uncovered"),
        ([], "uncovered"),
        ([top, short], "uncovered"),
        ([top, wide], "replicas count once"),
        ([top, bottom, top], "replicas count once"),
        ([top, bottom, bottom], "replicas count once"),
        ([whole, whole], "replicas count once"),
        ([whole, row], "replicas count once"),
    ]:
        with pytest.raises(StateError, match=problem):
            state_roots(StateView(manifest, shards))


def test_foreign_and_misfit_shards_are_refused() -> None:
    values = torch.randn(4, 5)
    manifest = build_manifest({("parameter", "w"): values})
    other = full_view(build_manifest({("parameter", "v"): values}), {("parameter", "v"): values}).shards[0]
    with pytest.raises(StateError, match="not in the manifest"):
        state_roots(StateView(manifest, [other]))
    (entry,) = manifest.entries
    for tensor, offsets, sizes in [
        (values, (1, 0), (4, 5)),
        (values, (-1, 0), (4, 5)),
        (values[:2], (0, 0), (4, 5)),
        (values[0], (0,), (5,)),
        (values.double(), (0, 0), (4, 5)),
    ]:
        with pytest.raises(StateError, match="shard of parameter w"):
            shard_leaves(Shard(entry, tensor, offsets, sizes))


def test_design_sees_any_bit_and_localises_it() -> None:
    real = _state()
    design = DigestSketch()
    before = design.sketch(full_view(build_manifest(real), real), KEY)
    real["exp_avg", "long"][7] = torch.nextafter(real["exp_avg", "long"][7], torch.tensor(9.0))
    after = design.sketch(full_view(build_manifest(real), real), KEY)
    distances = design.distance(before, after)
    assert {group: distance for group, distance in distances.items() if distance} == {"long/exp_avg": math.inf}
    assert {len(values) for values in before.values.values()} == {32}
    fresh = design.sketch(full_view(build_manifest(real), real), bytes(32))
    assert all(not torch.equal(fresh.values[group], values) for group, values in after.values.items())


def test_design_errors() -> None:
    real = _state()
    with pytest.raises(ConfigError, match="32 bytes"):
        DigestSketch().sketch(full_view(build_manifest(real), real), b"")
    real["exp_avg", "long"][3:6] = math.nan
    with pytest.raises(StateError, match="exp_avg long holds 3 values that are not finite"):
        DigestSketch().sketch(full_view(build_manifest(real), real), KEY)
    with pytest.raises(StateError, match="no real tensors"):
        DigestSketch().sketch(full_view(build_manifest({}), {}), KEY)
