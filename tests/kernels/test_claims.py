"""Every design is held to what `describe()` says of it; designs that lie are caught."""

from __future__ import annotations

import math
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from witbench.kernels.base import (
    LinearSketch,
    Manifest,
    Shard,
    Sketch,
    SketchDesign,
    SketchProperties,
    StateView,
)
from witbench.kernels.digest import DigestSketch
from witbench.kernels.gaussian import Gaussian
from witbench.kernels.manifest import build_manifest, full_view, group_names
from witbench.kernels.philox import check_key
from witbench.kernels.rht import Rht

KEY = bytes(range(1, 33))
Real = dict[tuple[str, str], Tensor]


def _real(seed: int) -> Real:
    """Values on a grid of 2^-20 and below one: every design represents them and their differences exactly."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"blocks.0.w": (30, 17), "blocks.1.w": (70,), "embedding": (9, 11)}
    roles = ("parameter", "exp_avg")
    return {
        (role, name): torch.randint(-(2**19), 2**19, shape, generator=generator).float() / 2**20
        for role in roles
        for name, shape in shapes.items()
    }


def _same(a: Sketch, b: Sketch) -> bool:
    return a.values.keys() == b.values.keys() and all(torch.equal(a.values[g], b.values[g]) for g in a.values)


def _close(design: SketchDesign, a: Sketch, b: Sketch) -> bool:
    """Bit for bit for exact designs, within the recomputation tolerance for others."""
    if design.describe().exact:
        return _same(a, b)
    return all(distance <= design.recompute_tolerance for distance in design.distance(a, b).values())


def _halves(view: StateView) -> list[Shard]:
    shards = []
    for shard in view.shards:
        dim = len(shard.sizes) - 1
        cut = shard.sizes[dim] // 3
        for first, size in ((0, cut), (cut, shard.sizes[dim] - cut)):
            offsets = (*shard.offsets[:dim], first)
            shards.append(
                Shard(shard.entry, shard.tensor.narrow(dim, first, size), offsets, (*shard.sizes[:dim], size))
            )
    return shards


def _check_form(design: SketchDesign, sketch: Sketch, manifest: Manifest) -> None:
    assert set(sketch.values) == set(group_names(manifest)), "form: one vector per group of the manifest"
    for values in sketch.values.values():
        assert values.dim() == 1, "form: vectors are one-dimensional"
        assert values.device.type == "cpu", "form: vectors are on the CPU"
        assert values.numel() * values.element_size() == design.describe().bytes_per_group, "form: bytes_per_group"


def _check_exact(design: SketchDesign, real: Real, sketch: Sketch) -> None:
    view = full_view(build_manifest(real), real)
    scrambled = [
        replace(s, tensor=s.tensor.mT.contiguous().mT if s.tensor.dim() > 1 else s.tensor) for s in view.shards
    ]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        again = design.sketch(StateView(view.manifest, scrambled[::-1]), KEY)
    finally:
        torch.set_num_threads(before)
    assert _close(design, again, sketch), "exact: order, strides and threads"


def _check_linear(design: SketchDesign, a: Real, b: Real) -> None:
    manifest = build_manifest(a)
    difference = {key: a[key] - b[key] for key in a}
    of_a, of_b, of_difference = (design.sketch(full_view(manifest, real), KEY) for real in (a, b, difference))
    values = {group: of_a.values[group] - of_b.values[group] for group in of_a.values}
    assert _close(design, Sketch(values, of_a.unit_bits), of_difference), "linear: sketch(a) - sketch(b)"


def _check_shard_additive(design: SketchDesign, view: StateView, sketch: Sketch) -> None:
    assert isinstance(design, LinearSketch), "shard_additive: the design has partial sketches"
    added = design.add([design.partial(shard, KEY) for shard in _halves(view)[::-1]])
    assert _same(added, sketch), "shard_additive: partial sketches add up bit for bit"


def _check_distance(design: SketchDesign, real: Real, sketch: Sketch) -> None:
    assert all(distance == 0 for distance in design.distance(sketch, sketch).values()), "distance: zero to itself"
    edited = {**real, ("parameter", "embedding"): real["parameter", "embedding"] + 0.25}
    other = design.sketch(full_view(build_manifest(edited), edited), KEY)
    far = {group for group, distance in design.distance(sketch, other).items() if distance > design.recompute_tolerance}
    assert far == {"embedding/parameter"}, "distance: an edit shows in its group alone"
    fresh = design.sketch(full_view(build_manifest(real), real), bytes(32))
    assert not _same(fresh, sketch), "distance: the key matters"


def assert_claims(design: SketchDesign) -> None:
    """Hold a design to its properties; the assertion's message names the line that fails."""
    real = _real(1)
    view = full_view(build_manifest(real), real)
    sketch = design.sketch(view, KEY)
    claims = design.describe()
    _check_form(design, sketch, view.manifest)
    assert claims.exact == (design.recompute_tolerance == 0), "exact: only inexact designs have a tolerance"
    _check_exact(design, real, sketch)
    if claims.linear:
        _check_linear(design, real, _real(2))
    if claims.shard_additive:
        _check_shard_additive(design, view, sketch)
    _check_distance(design, real, sketch)


@pytest.mark.parametrize(
    "design",
    [Rht(64), Rht(256), Rht(4096), Gaussian(8), Gaussian(7), DigestSketch()],
    ids=lambda design: type(design).__name__,
)
def test_built_in_designs_keep_their_claims(design: SketchDesign) -> None:
    assert_claims(design)


def test_the_design_of_the_documentation_keeps_its_claims(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sketches.md").read_text(encoding="utf-8")
    module = tmp_path / "norms.py"
    module.write_text(page.split("```python\n")[1].split("```")[0], encoding="utf-8")
    assert_claims(runpy.run_path(str(module))["Norms"]())


class _FloatSum(LinearSketch):
    """Signed sums in float32, which depend on the order of additions, and claims that they do not."""

    k = 8
    scale = 1.0

    def sketch(self, view: StateView, key: bytes) -> Sketch:
        zeros = {group: torch.zeros(self.k) for group in group_names(view.manifest)}
        return self.add([Sketch(zeros), *(self.partial(shard, key) for shard in view.shards)])

    def partial(self, shard: Shard, key: bytes) -> Sketch:
        check_key(key)
        generator = torch.Generator().manual_seed(int.from_bytes(key[:4], "big"))
        signs = torch.rand((self.k, 1), generator=generator) + 0.5
        values = shard.tensor.double().sqrt() if self.scale == 2.0 else shard.tensor
        # One running float32 sum over the shard's own values: another split rounds differently.
        return Sketch({shard.entry.group: (signs * values.reshape(1, -1)).cumsum(dim=1)[:, -1] * self.scale})

    def distance(self, a: Sketch, b: Sketch) -> dict[str, float]:
        return {group: float((a.values[group] - b.values[group]).norm()) for group in a.values}

    def describe(self) -> SketchProperties:
        return SketchProperties(True, True, False, 4 * self.k, 1.0, 0.0)


class _NotAdditive(_FloatSum):
    recompute_tolerance = 1e-3


class _NotExact(_FloatSum):
    def sketch(self, view: StateView, key: bytes) -> Sketch:
        """Depends on the order in which shards come."""
        sketch = super().sketch(view, key)
        order = sum(number * math.prod(shard.sizes) for number, shard in enumerate(view.shards))
        return Sketch({group: values + order for group, values in sketch.values.items()})

    def describe(self) -> SketchProperties:
        return replace(super().describe(), exact=True)


class _NotLinear(Rht):
    def sketch(self, view: StateView, key: bytes) -> Sketch:
        sketch = super().sketch(view, key)
        return Sketch({group: values.abs() for group, values in sketch.values.items()}, sketch.unit_bits)


class _LargerThanClaimed(Rht):
    def describe(self) -> SketchProperties:
        return replace(super().describe(), bytes_per_group=64)


class _KeyIgnored(Rht):
    def partial(self, shard: Shard, key: bytes) -> Sketch:
        return super().partial(shard, bytes(32))

    def sketch(self, view: StateView, key: bytes) -> Sketch:
        return super().sketch(view, bytes(32))


class _Tolerant(Rht):
    recompute_tolerance = 1.0


@pytest.mark.parametrize(
    ("design", "line"),
    [
        (_NotAdditive(), "shard_additive: partial sketches add up"),
        (_NotExact(), "exact: order"),
        (_NotLinear(64), "linear"),
        (_LargerThanClaimed(64), "bytes_per_group"),
        (_KeyIgnored(64), "the key matters"),
        (_Tolerant(64), "only inexact designs"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, SketchDesign) else "",
)
def test_lying_designs_are_caught(design: SketchDesign, line: str) -> None:
    with pytest.raises(AssertionError, match=line):
        assert_claims(design)
