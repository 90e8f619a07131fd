"""The reference sketch against its definition written out in Python integers, and the properties it promises."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from witbench.errors import ConfigError, StateError
from witbench.kernels import rht
from witbench.kernels.base import Manifest, Shard, Sketch, StateView
from witbench.kernels.manifest import build_manifest, full_view
from witbench.kernels.rht import Rht, correctly_rounded_sqrt, hadamard, sign_masks

KEY = bytes(range(32))
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
Real = dict[tuple[str, str], Tensor]


# The definition, one value at a time.


def _philox(counter: list[int], key: tuple[int, int]) -> list[int]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c3 ^ k1, a & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def _signs(stream: str, key: bytes, role: str, name: str, block: int, k: int) -> list[int]:
    parts = [b"witbench/rht/v0", stream.encode(), key, role.encode(), name.encode()]
    digest = hashlib.sha256(b"".join(struct.pack(">I", len(part)) + part for part in parts)).digest()
    philox_key = struct.unpack("<II", digest[:8])
    words: list[int] = []
    for call in range(-(-k // 128)):
        words += _philox([block & 0xFFFFFFFF, block >> 32, call, 0], philox_key)
    return [1 - 2 * (words[position // 32] >> position % 32 & 1) for position in range(k)]


def _defined(manifest: Manifest, real: Mapping[tuple[str, str], Tensor], key: bytes, k: int) -> dict[str, list[int]]:
    sums = {entry.group: [0] * k for entry in manifest.entries}
    for entry in manifest.entries:
        z = [float(x) for x in real[entry.role, entry.name].reshape(-1).tolist()]
        if entry.transform == "sqrt":
            z = [math.sqrt(x) for x in z]
        q = [round(x * 2.0**entry.scale_bits) for x in z]
        for block in range(-(-len(q) // k)):
            part = q[block * k : (block + 1) * k]
            d = _signs("d", key, entry.role, entry.name, block, k)
            e = _signs("e", key, entry.role, entry.name, block, k)
            for j in range(k):
                dot = sum((-1) ** (j & i).bit_count() * d[i] * value for i, value in enumerate(part))
                sums[entry.group][j] += e[j] * dot
    return {group: [(value + 2**63) % 2**64 - 2**63 for value in values] for group, values in sums.items()}


def _lists(sketch: Sketch) -> dict[str, list[int]]:
    return {group: values.tolist() for group, values in sketch.values.items()}


def _sketch(real: Real, key: bytes = KEY, k: int = 64) -> Sketch:
    return Rht(k).sketch(full_view(build_manifest(real), real), key)


def _one(values: Tensor) -> Real:
    return {("parameter", "w"): values}


def _distance(a: Real, b: Real, key: bytes = KEY, k: int = 64) -> float:
    (distance,) = Rht(k).distance(_sketch(a, key, k), _sketch(b, key, k)).values()
    return distance


# Strategies.

_SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0**-24, 6e-8, -6e-8, 5e-324, 1e-310, 1e-40, -(2.0**-149), 3.0517578125e-05]


@st.composite
def tensors(draw: st.DrawFn, non_negative: bool = False) -> Tensor:
    shape = draw(st.lists(st.integers(0, 9), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    seed = draw(st.integers(0, 2**32 - 1))
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * draw(st.sampled_from([1e-9, 0.02, 3.0]))
    special = torch.tensor(_SPECIAL, dtype=torch.float64)
    chosen = special[torch.randint(len(special), shape, generator=generator)]
    values = torch.where(torch.rand(shape, generator=generator) < 0.3, chosen, values).to(dtype)
    return values.abs() if non_negative else values


@st.composite
def states(draw: st.DrawFn) -> Real:
    real: Real = {}
    for number in range(draw(st.integers(1, 3))):
        role = draw(st.sampled_from(["parameter", "buffer", "exp_avg", "exp_avg_sq"]))
        real[role, f"blocks.{number}.w"] = draw(tensors(non_negative=role == "exp_avg_sq"))
    return real


def _scattered(values: Tensor, style: int) -> Tensor:
    """The same values under other strides and another storage offset."""
    if style == 0 or values.dim() == 0:
        return values.clone()
    if style == 1:
        return values.mT.contiguous().mT if values.dim() > 1 else torch.stack([values, values], dim=1)[:, 1]
    roomy = torch.full([2 * size + 1 for size in values.shape], 7.0, dtype=values.dtype)
    inner = roomy[tuple(slice(1, 2 * size + 1, 2) for size in values.shape)]
    inner.copy_(values)
    return inner


@st.composite
def splits(draw: st.DrawFn, real: Real) -> StateView:
    """The same state cut into boxes along drawn dimensions, in drawn order, each box with strides of its own."""
    manifest = build_manifest(real)
    shards: list[Shard] = []
    for whole in full_view(manifest, real).shards:
        boxes = [(whole.offsets, whole.sizes)]
        for _ in range(draw(st.integers(0, 3)) if whole.sizes else 0):
            offsets, sizes = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
            dim = draw(st.integers(0, len(sizes) - 1))
            cut = draw(st.integers(0, sizes[dim]))
            boxes.append((offsets, (*sizes[:dim], cut, *sizes[dim + 1 :])))
            moved = (*offsets[:dim], offsets[dim] + cut, *offsets[dim + 1 :])
            boxes.append((moved, (*sizes[:dim], sizes[dim] - cut, *sizes[dim + 1 :])))
        for offsets, sizes in boxes:
            box = whole.tensor[tuple(slice(a, a + size) for a, size in zip(offsets, sizes, strict=True))]
            shards.append(Shard(whole.entry, _scattered(box, draw(st.integers(0, 2))), offsets, sizes))
    return StateView(manifest, draw(st.permutations(shards)))


# Bit for bit.


@settings(max_examples=25, deadline=None)
@given(states(), st.binary(min_size=32, max_size=32), st.sampled_from([64, 128]))
def test_equals_its_definition(real: Real, key: bytes, k: int) -> None:
    assert _lists(_sketch(real, key, k)) == _defined(build_manifest(real), real, key, k)


@pytest.mark.parametrize("k", [64, 256, 4096])
def test_equals_its_definition_across_block_borders(k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    real = {("parameter", "a"): torch.randn(k + 3, generator=generator), ("parameter", "b"): torch.randn(1)}
    if k == 4096:
        # The definition costs k^2 a block: check a single full block at the largest k.
        real = {("parameter", "a"): torch.randn(40, generator=generator)}
    assert _lists(_sketch(real, KEY, k)) == _defined(build_manifest(real), real, KEY, k)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_order_and_shards_and_strides_do_not_matter(data: st.DataObject) -> None:
    real = data.draw(states())
    view = data.draw(splits(real))
    design = Rht(64)
    whole = _lists(_sketch(real))
    assert _lists(design.sketch(view, KEY)) == whole
    added = design.add([design.partial(shard, KEY) for shard in view.shards])
    assert _lists(added) == whole
    assert added.unit_bits == {entry.group: entry.scale_bits for entry in view.manifest.entries}


@pytest.mark.parametrize("k", [64, 1024])
def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    """A state that needs many chunks, whole and in columns, equals the same state in one chunk."""
    generator = torch.Generator().manual_seed(3)
    real = {
        ("parameter", "a"): torch.randn(37, 211, generator=generator),
        ("parameter", "b"): torch.randn(5, generator=generator),
        ("exp_avg_sq", "a"): torch.rand(37, 211, generator=generator),
    }
    manifest = build_manifest(real)
    columns = [
        Shard(shard.entry, shard.tensor[:, first : first + 53], (0, first), (37, min(53, 211 - first)))
        for shard in full_view(manifest, real).shards
        if len(shard.sizes) == 2
        for first in range(0, 211, 53)
    ]
    rest = [shard for shard in full_view(manifest, real).shards if len(shard.sizes) == 1]
    whole = _lists(_sketch(real, KEY, k))
    monkeypatch.setattr(rht, "_CHUNK", 2 * k)
    assert _lists(_sketch(real, KEY, k)) == whole
    assert _lists(Rht(k).sketch(StateView(manifest, columns + rest), KEY)) == whole


def test_threads_do_not_matter() -> None:
    real = _one(torch.randn(1 << 18, generator=torch.Generator().manual_seed(1)))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = _lists(_sketch(real))
        torch.set_num_threads(3)
        assert _lists(_sketch(real)) == one
    finally:
        torch.set_num_threads(before)


PINNED_PARAMETER = [8108898254848, 1855425871872, -11544872091648, -7627861917696]
PINNED_MOMENT = [20340965113856, 54975581388800, -19791209299968]
PINNED_HASHES = {"blocks.0/parameter": "3fc1312b52043a63", "blocks.0/exp_avg_sq": "bad98694d8a6cf1f"}


def test_pinned_vectors() -> None:
    """Fixed for ever: a change here is a new format. `_defined` gives the same, independently."""
    values = torch.arange(-70, 130, dtype=torch.float32) / 64
    real = {("parameter", "blocks.0.w"): values, ("exp_avg_sq", "blocks.0.w"): (values * values)[:5].clone()}
    sketch = _sketch(real)
    assert sketch.values["blocks.0/parameter"][:4].tolist() == PINNED_PARAMETER
    assert sketch.values["blocks.0/exp_avg_sq"][-3:].tolist() == PINNED_MOMENT
    hashes = {
        group: hashlib.sha256(values.numpy().astype("<i8").tobytes()).hexdigest()[:16]
        for group, values in sketch.values.items()
    }
    assert hashes == PINNED_HASHES
    assert _lists(sketch) == _defined(build_manifest(real), real, KEY, 64)


def test_hadamard_is_sylvesters() -> None:
    expected = [[(-1) ** (i & j).bit_count() for i in range(64)] for j in range(64)]
    assert hadamard(torch.eye(64, dtype=torch.int64)).tolist() == expected


def test_signs_reach_blocks_beyond_32_bits() -> None:
    blocks = torch.tensor([0, 2**32 - 1, 2**32, 2**40 + 5])
    keys = torch.tensor([[11, 12]] * 4).T
    masks = sign_masks(keys, blocks, 64)
    for column, block in enumerate(blocks.tolist()):
        words = _philox([block & 0xFFFFFFFF, block >> 32, 0, 0], (11, 12))
        assert masks[:, column].tolist() == [-(words[i // 32] >> i % 32 & 1) for i in range(64)]


@pytest.mark.parametrize("size", [1, 7, 20_000])
def test_square_roots_are_correctly_rounded(size: int) -> None:
    values = torch.rand(size, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    expected = [math.sqrt(value) for value in values.tolist()]
    assert correctly_rounded_sqrt(values.clone()).tolist() == expected
    assert correctly_rounded_sqrt(torch.stack([values, values], dim=1)[:, 1]).tolist() == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_storage_dtype_does_not_matter(dtype: torch.dtype) -> None:
    values = torch.randn(130, generator=torch.Generator().manual_seed(2)).to(dtype)
    assert _lists(_sketch(_one(values))) == _lists(_sketch(_one(values.double())))


def test_input_is_read_only() -> None:
    real = {("exp_avg_sq", "w"): torch.rand(100), ("parameter", "w"): torch.randn(10, 10).mT}
    copies = {key: tensor.clone() for key, tensor in real.items()}
    _sketch(real)
    assert all(torch.equal(real[key], copies[key]) for key in real)


# Geometry.


def test_padding_is_zeros() -> None:
    short = torch.randn(70, generator=torch.Generator().manual_seed(4))
    padded = torch.cat([short, torch.zeros(58)])
    assert _lists(_sketch(_one(short))) == _lists(_sketch(_one(padded)))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 300))
def test_linear_on_representable_values(seed: int, size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-(2**40), 2**40, (size,), generator=generator).double() / 2**40 for _ in range(2))
    sketches = [_sketch(_one(x)).values["w/parameter"] for x in (a, b, a - b, 3 * a)]
    assert torch.equal(sketches[0] - sketches[1], sketches[2])
    assert torch.equal(3 * sketches[0], sketches[3])


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(0, 4), st.integers(0, 2**32 - 1))
def test_edits_inside_one_block_are_measured_exactly(key: bytes, block: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    before = torch.randint(-(2**20), 2**20, (320,), generator=generator).double() / 2**20
    after = before.clone()
    after[64 * block : 64 * block + 64] += torch.randint(-(2**10), 2**10, (64,), generator=generator) / 2**20
    assert _distance(_one(before), _one(after), key) == pytest.approx(float((after - before).norm()), rel=1e-15)


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(0, 999))
def test_one_ulp_of_one_value_is_always_seen(key: bytes, place: int) -> None:
    before = torch.randn(1000, generator=torch.Generator().manual_seed(6)) * 0.02
    # The least step that the scale resolves: below 2^-17 a float32 ulp is finer than 2^-40.
    before[place] = before[place].abs().clamp(min=2.0**-16)
    after = before.clone()
    after[place] = torch.nextafter(before[place], torch.tensor(1.0))
    exact = abs(float(after[place].double() - before[place].double()))
    assert _distance(_one(before), _one(after), key) == pytest.approx(exact, rel=1e-15)


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(0, 255), st.integers(0, 255))
def test_opposite_edits_do_not_cancel(key: bytes, i: int, j: int) -> None:
    """(+c, -c) inside one block has its exact length; across two blocks a coordinate cancels half the time at most."""
    edit = torch.zeros(256, dtype=torch.float64)
    edit[i] += 1.0
    edit[j] -= 1.0
    distance = _distance(_one(edit), _one(torch.zeros(256, dtype=torch.float64)), key)
    if i // 64 == j // 64:
        assert distance == pytest.approx(float(edit.norm()), rel=1e-15, abs=0)
    else:
        # Each of 64 coordinates cancels with probability 1/2: all of them with 2^-64.
        assert distance > 0


def _few(size: int) -> Tensor:
    edit = torch.zeros(size, dtype=torch.float64)
    edit[::17] = 1.0
    return edit


EDITS = {
    "gaussian": torch.randn(1024, generator=torch.Generator().manual_seed(7), dtype=torch.float64),
    "outlier column": torch.where(torch.arange(1024) % 64 == 3, 60.0, 1.0).double(),
    "one position of each block": (torch.arange(1024) % 64 == 0).double(),
    "equal edits": torch.ones(1024, dtype=torch.float64),
    "sparse": _few(1024),
    "two unequal blocks": torch.cat([torch.ones(64), 0.25 * torch.ones(64)]).double(),
}


@pytest.mark.parametrize("name", EDITS)
def test_squared_distance_is_unbiased_with_the_predicted_spread(name: str) -> None:
    """Mean and variance over 600 keys against the formulas of the module, within five standard errors."""
    keys, k, edit = 600, 64, EDITS[name]
    blocks = edit.view(-1, k).square().sum(dim=1)
    true = float(blocks.sum())
    variance = 2 / k * float(true**2 - blocks.square().sum())
    assert variance <= 2 / k * true**2
    zero = Sketch({"w/parameter": torch.zeros(k, dtype=torch.int64)})
    design = Rht(k)
    squares = torch.tensor(
        [
            design.distance(_sketch(_one(edit), hashlib.sha256(f"{name}{n}".encode()).digest(), k), zero)["w/parameter"]
            ** 2
            for n in range(keys)
        ],
        dtype=torch.float64,
    )
    assert abs(float(squares.mean()) - true) < 5 * math.sqrt(variance / keys)
    # Fourth moments: a sum of k nearly independent squares has an excess kurtosis of about 12/k, of one product 6.
    standard_error = math.sqrt((2 + 12 / k + 6) / keys)
    assert abs(float(squares.var()) / variance - 1) < 5 * standard_error


def test_groups_localise_an_edit() -> None:
    real = {("parameter", f"blocks.{n}.w"): torch.randn(100) for n in range(3)}
    edited = {**real, ("parameter", "blocks.1.w"): real["parameter", "blocks.1.w"] + 0.5}
    distances = Rht(64).distance(_sketch(real), _sketch(edited))
    assert {group for group, distance in distances.items() if distance} == {"blocks.1/parameter"}


def test_addressing_is_by_role_and_name_and_block() -> None:
    values = torch.randn(128, generator=torch.Generator().manual_seed(8)).abs()
    vectors = {
        tuple(next(iter(_sketch({place: moved}).values.values())).tolist())
        for place, moved in [
            (("parameter", "w"), values),
            (("parameter", "v"), values),
            (("buffer", "w"), values),
            (("parameter", "w"), values.roll(64)),
        ]
    }
    assert len(vectors) == 4


# Limits and errors.


@pytest.mark.parametrize("k", [64, 256, 4096])
def test_largest_allowed_value_never_wraps_in_its_block(k: int) -> None:
    limit = 2 ** (62 - int(math.log2(k)))
    # The largest integer below the bound that float64 holds.
    largest = math.floor(min(math.nextafter(float(limit), 0), limit - 1))
    full = torch.full((k,), largest * 2.0**-40, dtype=torch.float64)
    zero = torch.zeros(k, dtype=torch.float64)
    expected = largest * 2.0**-40 * math.sqrt(k)
    assert _distance(_one(full), _one(zero), KEY, k) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("k", [64, 4096])
def test_first_forbidden_value(k: int) -> None:
    values = torch.zeros(300, dtype=torch.float64)
    values[7] = -(2.0 ** (22 - int(math.log2(k))))
    with pytest.raises(StateError, match="parameter w holds 1 values"):
        _sketch(_one(values), KEY, k)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_non_finite_values_are_counted_and_named(bad: float, dtype: torch.dtype) -> None:
    real = {("parameter", "fine"): torch.ones(500), ("exp_avg", "blocks.1.w"): torch.zeros(30, 20, dtype=dtype)}
    real["exp_avg", "blocks.1.w"][3:5, 7] = bad
    with pytest.raises(StateError, match=r"exp_avg blocks.1.w holds 2 values"):
        _sketch(real)
    view = full_view(build_manifest(real), real)
    with pytest.raises(StateError, match="holds 2 values"):
        Rht(64).partial(view.shards[1], KEY)
    values = real["exp_avg", "blocks.1.w"]
    halves = [Shard(view.shards[1].entry, values[a : a + 4], (a, 0), (4, 20)) for a in (0, 4)]
    with pytest.raises(StateError, match="holds 2 values"):
        Rht(64).sketch(StateView(view.manifest, halves), KEY)


def test_a_failed_sketch_leaves_the_state_alone() -> None:
    values = torch.tensor([4.0, 9.0, math.inf], dtype=torch.float64)
    with pytest.raises(StateError, match="holds 1 values"):
        _sketch({("exp_avg_sq", "w"): values})
    assert values.tolist() == [4.0, 9.0, math.inf]


def test_negative_second_moment() -> None:
    with pytest.raises(StateError, match="exp_avg_sq w holds 1 values"):
        _sketch({("exp_avg_sq", "w"): torch.tensor([1.0, -1e-3, 0.0])})


@pytest.mark.parametrize("k", [0, 32, 63, 100, 8192, -64, 64.0, True, "256"])
def test_block_lengths_outside_the_rule(k: Any) -> None:
    with pytest.raises(ConfigError, match="power of two from 64 to 4096"):
        Rht(k)


def test_wrong_key_length_and_empty_state() -> None:
    with pytest.raises(ConfigError, match="32 bytes"):
        _sketch(_one(torch.ones(1)), bytes(31))
    with pytest.raises(StateError, match="no real tensors"):
        _sketch({})


def test_empty_tensors_sketch_to_zero() -> None:
    assert _lists(_sketch(_one(torch.zeros(0, 5)))) == {"w/parameter": [0] * 64}


def test_distance_refuses_what_it_cannot_compare() -> None:
    a, b = _sketch(_one(torch.ones(3))), _sketch({("parameter", "v"): torch.ones(3)})
    with pytest.raises(StateError, match="different groups"):
        Rht(64).distance(a, b)
    with pytest.raises(StateError, match="different lengths"):
        Rht(64).distance(a, _sketch(_one(torch.ones(3)), KEY, 128))
    bare = Sketch(a.values)
    with pytest.raises(StateError, match="scale"):
        Rht(64).distance(bare, bare)
    assert Rht(64).distance(bare, a) == {"w/parameter": 0.0}


def test_distance_survives_wrapped_sums() -> None:
    """Two sketches on both sides of 2^63 are as near as their difference mod 2^64."""
    top = torch.full((64,), 2**63 - 1, dtype=torch.int64)
    a, b = (Sketch({"g": values}, {"g": 40}) for values in (top, top + 9))
    assert Rht(64).distance(a, b)["g"] == pytest.approx(9 * 2.0**-40, rel=1e-15)
