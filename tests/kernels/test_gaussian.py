"""The Gaussian sketch: its rows against their definition, its distances against theory."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from witbench.errors import ConfigError, StateError
from witbench.kernels import gaussian
from witbench.kernels.base import Shard, Sketch, StateView
from witbench.kernels.gaussian import Gaussian, normals
from witbench.kernels.manifest import build_manifest, full_view

KEY = bytes(range(32))


def _view(values: Tensor, role: str = "parameter") -> StateView:
    real = {(role, "w"): values}
    return full_view(build_manifest(real), real)


def test_rows_are_box_muller_of_the_known_answers() -> None:
    """Key 0 and index 0: Philox's words are Random123's first known answer."""
    w0, w1, w2, w3 = 0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8
    u, v = ((w0 << 21 | w1 >> 11) + 1) / 2**53, (w2 << 21 | w3 >> 11) / 2**53
    radius = math.sqrt(-2 * math.log(u))
    expected = [radius * math.cos(2 * math.pi * v), radius * math.sin(2 * math.pi * v)]
    assert normals((0, 0), torch.tensor([0]), 2)[:, 0].tolist() == pytest.approx(expected, rel=1e-12)


def test_rows_are_standard_normal_and_uncorrelated() -> None:
    """Moments of 2^18 draws within five standard errors (n draws: 1/sqrt(n), sqrt(2/n), sqrt(96/n))."""
    rows = normals((1, 2), torch.arange(1 << 14), 16)
    n = rows.numel()
    assert abs(float(rows.mean())) < 5 / math.sqrt(n)
    assert abs(float(rows.square().mean()) - 1) < 5 * math.sqrt(2 / n)
    assert abs(float(rows.pow(4).mean()) - 3) < 5 * math.sqrt(96 / n)
    products = rows @ rows.T / rows.shape[1]
    assert float((products - torch.diag(products.diag())).abs().max()) < 5 / math.sqrt(rows.shape[1])


def test_rows_do_not_depend_on_k_or_on_neighbours() -> None:
    whole = normals((3, 4), torch.arange(100), 9)
    assert torch.allclose(normals((3, 4), torch.tensor([57]), 4)[:, 0], whole[:4, 57], rtol=1e-14, atol=0)


def test_squared_distance_is_unbiased_with_the_predicted_spread() -> None:
    """chi-squared with k degrees: mean D^2, variance 2 D^4 / k, within five standard errors over 600 keys."""
    keys, k = 600, 16
    edit = torch.randn(200, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    zero, true = Sketch({"w/parameter": torch.zeros(k, dtype=torch.float64)}), float(edit.square().sum())
    design, view = Gaussian(k), _view(edit)
    squares = (
        torch.tensor(
            [
                design.distance(design.sketch(view, hashlib.sha256(bytes([n % 256, n // 256])).digest()), zero)[
                    "w/parameter"
                ]
                for n in range(keys)
            ]
        )
        .double()
        .square()
    )
    assert abs(float(squares.mean()) / true - 1) < 5 * math.sqrt(2 / k / keys)
    assert abs(float(squares.var()) / (2 / k * true**2) - 1) < 5 * math.sqrt((2 + 12 / k) / keys)


def test_chunks_shards_and_order_agree_within_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(60, 50, generator=torch.Generator().manual_seed(2))
    view, design = _view(values), Gaussian(8)
    whole = design.sketch(view, KEY)
    (shard,) = view.shards
    halves = [Shard(shard.entry, values[:, a : a + 25], (0, a), (60, 25)) for a in (0, 25)]
    added = design.add([design.partial(half, KEY) for half in halves])
    assert design.distance(added, whole)["w/parameter"] <= design.recompute_tolerance
    forwards, backwards = (design.sketch(StateView(view.manifest, order), KEY) for order in (halves, halves[::-1]))
    assert torch.equal(forwards.values["w/parameter"], backwards.values["w/parameter"])
    monkeypatch.setattr(gaussian, "_CHUNK", 64)
    assert design.distance(design.sketch(view, KEY), whole)["w/parameter"] <= design.recompute_tolerance


def test_second_moments_enter_as_square_roots() -> None:
    root = torch.rand(40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    design = Gaussian(8)
    a = design.sketch(_view(root * root, "exp_avg_sq"), KEY)
    zero = Sketch({"w/exp_avg_sq": torch.zeros(8, dtype=torch.float64)})
    rows = normals(
        gaussian.stream_key(gaussian.TAG, "g", KEY, _view(root, "exp_avg_sq").shards[0].entry), torch.arange(40), 8
    )
    expected = float((rows @ root).norm()) / math.sqrt(8)
    assert design.distance(a, zero)["w/exp_avg_sq"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e200])
def test_values_that_cannot_be_sketched(bad: float) -> None:
    values = torch.zeros(3000, dtype=torch.float64)
    values[[5, 2999]] = bad
    with pytest.raises(StateError, match="parameter w holds 2 values"):
        Gaussian(64).sketch(_view(values), KEY)


@pytest.mark.parametrize("k", [0, -1, 4097, True, 8.0])
def test_rows_outside_the_rule(k: Any) -> None:
    with pytest.raises(ConfigError, match="from 1 to 4096"):
        Gaussian(k)


def test_tolerance_must_be_a_distance() -> None:
    with pytest.raises(ConfigError, match="recompute_tolerance"):
        Gaussian(8, recompute_tolerance=math.nan)


def test_empty_state_and_foreign_groups() -> None:
    with pytest.raises(StateError, match="no real tensors"):
        Gaussian(8).sketch(full_view(build_manifest({}), {}), KEY)
    a = Gaussian(8).sketch(_view(torch.ones(2)), KEY)
    with pytest.raises(StateError, match="different groups"):
        Gaussian(8).distance(a, Sketch({}))
