"""Manifests: canonical order, groups, canonical bytes, and what a view refuses."""

from __future__ import annotations

import cbor2
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from witbench.errors import ConfigError, StateError
from witbench.kernels.base import Entry, Manifest
from witbench.kernels.manifest import (
    build_manifest,
    full_view,
    group_names,
    layer_of,
    manifest_from_bytes,
    manifest_to_bytes,
)

Real = dict[tuple[str, str], Tensor]


def _real() -> Real:
    names = ["blocks.10.w", "blocks.2.w", "blocks.2.b", "embedding.weight"]
    return {
        (role, name): torch.rand(3, 2) for role in ("exp_avg_sq", "buffer", "exp_avg", "parameter") for name in names
    }


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("blocks.3.attn.qkv.weight", "blocks.3"),
        ("transformer.h.11.mlp.bias", "transformer.h.11"),
        ("embedding.weight", "embedding"),
        ("scale", "scale"),
        ("0.weight", "0"),
        ("experts.0.1.w", "experts.0"),
    ],
)
def test_layer_of(name: str, layer: str) -> None:
    assert layer_of(name) == layer


def test_canonical_order_and_quantisation() -> None:
    manifest = build_manifest(_real())
    roles = ["parameter", "buffer", "exp_avg", "exp_avg_sq"]
    names = ["blocks.10.w", "blocks.2.b", "blocks.2.w", "embedding.weight"]
    assert [(entry.role, entry.name) for entry in manifest.entries] == [(r, n) for r in roles for n in names]
    assert {(e.role, e.transform, e.scale_bits) for e in manifest.entries} == {
        ("parameter", "identity", 40),
        ("buffer", "identity", 40),
        ("exp_avg", "identity", 44),
        ("exp_avg_sq", "sqrt", 44),
    }
    raw = build_manifest(_real(), raw_moments=True)
    assert {entry.transform for entry in raw.entries} == {"identity"}


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("role", ("parameter", "buffer", "exp_avg", "exp_avg_sq")),
        ("layer_role", ("blocks.10/parameter", "blocks.2/parameter", "embedding/parameter", "blocks.10/buffer")),
        (
            "tensor",
            ("blocks.10.w/parameter", "blocks.2.b/parameter", "blocks.2.w/parameter", "embedding.weight/parameter"),
        ),
    ],
)
def test_groups(groups: str, expected: tuple[str, ...]) -> None:
    assert group_names(build_manifest(_real(), groups))[:4] == expected


def test_unknown_grouping() -> None:
    with pytest.raises(ConfigError, match=r"sketch.groups='layers' is not one of layer_role, role, tensor"):
        build_manifest(_real(), "layers")


def test_build_refuses_what_no_sketch_covers() -> None:
    with pytest.raises(StateError, match="role 'velocity'"):
        build_manifest({("velocity", "w"): torch.ones(1)})
    with pytest.raises(StateError, match="is int64"):
        build_manifest({("buffer", "w"): torch.ones(1, dtype=torch.int64)})
    tied = torch.ones(4, 2)
    with pytest.raises(StateError, match="head and embedding are one tensor"):
        build_manifest({("parameter", "embedding"): tied, ("parameter", "head"): tied})


def test_empty_tensors_and_views_of_one_buffer_are_not_tied() -> None:
    flat = torch.ones(10)
    real: Real = {("parameter", "a"): flat[:5], ("parameter", "b"): flat[5:]}
    real |= {("parameter", "c"): torch.ones(0), ("parameter", "d"): torch.ones(0)}
    assert len(build_manifest(real).entries) == 4


def test_bytes_round_trip() -> None:
    for manifest in (build_manifest(_real()), build_manifest(_real(), "tensor", raw_moments=True), Manifest(())):
        assert manifest_from_bytes(manifest_to_bytes(manifest)) == manifest


def _entry(**changes: object) -> dict[str, object]:
    entry: dict[str, object] = {"role": "parameter", "name": "w", "dtype": "float32", "shape": [2, 3]}
    return entry | {"group": "g", "transform": "identity", "scale_bits": 40} | changes


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"version": 1, "entries": []},
        {"version": 0, "entries": {}},
        {"version": 0, "entries": [], "more": 0},
        {"version": 0, "entries": [[]]},
        {"version": 0, "entries": [_entry(more=1)]},
        {"version": 0, "entries": [_entry(role="velocity")]},
        {"version": 0, "entries": [_entry(name=b"w")]},
        {"version": 0, "entries": [_entry(dtype="int64")]},
        {"version": 0, "entries": [_entry(shape=[2, -3])]},
        {"version": 0, "entries": [_entry(shape=[2, True])]},
        {"version": 0, "entries": [_entry(shape=[2, 3.0])]},
        {"version": 0, "entries": [_entry(transform="log")]},
        {"version": 0, "entries": [_entry(scale_bits=63)]},
        {"version": 0, "entries": [_entry(), _entry()]},
        {"version": 0, "entries": [_entry(name="x"), _entry()]},
        {"version": 0, "entries": [_entry(), _entry(role="buffer")]},
        {"version": 0, "entries": [_entry(), _entry(name="x", scale_bits=41)]},
    ],
)
def test_malformed_manifests(document: object) -> None:
    with pytest.raises(StateError):
        manifest_from_bytes(cbor2.dumps(document, canonical=True))


def test_only_canonical_bytes_are_read() -> None:
    data = cbor2.dumps({"version": 0, "entries": [_entry()]}, canonical=True)
    assert manifest_from_bytes(data).entries[0].shape == (2, 3)
    for other in (cbor2.dumps({"version": 0, "entries": [_entry()]}), data + b"\0", b"", b"\xff", data[:-1]):
        with pytest.raises(StateError):
            manifest_from_bytes(other)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.integers(1, 3000).map(lambda depth: b"\x81" * depth))
def test_hostile_bytes_never_crash(data: bytes) -> None:
    with pytest.raises(StateError):
        manifest_from_bytes(data)


def test_view_covers_the_state() -> None:
    real = _real()
    view = full_view(build_manifest(real), real)
    assert all(shard.tensor is real[shard.entry.role, shard.entry.name] for shard in view.shards)
    assert {(shard.offsets, shard.sizes) for shard in view.shards} == {((0, 0), (3, 2))}


def test_view_refuses_another_state() -> None:
    real = _real()
    manifest = build_manifest(real)
    lacking = {key: tensor for key, tensor in real.items() if key != ("buffer", "blocks.2.w")}
    with pytest.raises(StateError, match=r"lacks buffer blocks.2.w"):
        full_view(manifest, lacking)
    with pytest.raises(StateError, match=r"holds parameter more, which the manifest does not list"):
        full_view(manifest, {**real, ("parameter", "more"): torch.ones(1)})
    for changed in (torch.rand(2, 3), torch.rand(6), torch.rand(3, 2).double()):
        with pytest.raises(StateError, match=r"parameter blocks.2.w is .*the manifest says float32 \(3, 2\)"):
            full_view(manifest, {**real, ("parameter", "blocks.2.w"): changed})


def test_entry_is_hashable_and_immutable() -> None:
    entry = Entry("parameter", "w", "float32", (2,), "g", "identity", 40)
    assert len({entry, Entry("parameter", "w", "float32", (2,), "g", "identity", 40)}) == 1
