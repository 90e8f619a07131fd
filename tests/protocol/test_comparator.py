"""What the comparator refuses when no end-to-end lie would get that far: forms of sketches, distances by tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from witbench.errors import ProtocolError
from witbench.kernels.base import Sketch
from witbench.kernels.gaussian import Gaussian
from witbench.kernels.manifest import build_manifest
from witbench.protocol.commitments import commit_state
from witbench.protocol.comparator import Checks, Committed, Comparator, sketch_from_bytes, sketch_to_bytes
from witbench.protocol.switches import Calibrated
from witbench.protocol.tau import Tau
from witbench.training.state import State

LIKE = Sketch({"a": torch.zeros(3, dtype=torch.float64), "b": torch.zeros(2, dtype=torch.float64)}, {"a": 0, "b": 0})
KEY = bytes(32)


def with_values(values: list[float]) -> bytes:
    return sketch_to_bytes(Sketch({**LIKE.values, "b": torch.tensor(values, dtype=torch.float64)}, LIKE.unit_bits))


def test_a_sketch_comes_back_as_it_was() -> None:
    back = sketch_from_bytes(with_values([1.5, -2.0]), LIKE)
    assert back.values["b"].tolist() == [1.5, -2.0]
    assert back.values["a"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "data",
    [
        with_values([float("nan"), 0.0]),
        with_values([float("inf"), 0.0]),
        with_values([0.0, -float("inf")]),
        with_values([0.0]),
        sketch_to_bytes(Sketch({**LIKE.values, "b": torch.zeros(2, dtype=torch.float32)}, LIKE.unit_bits)),
        sketch_to_bytes(Sketch({"a": LIKE.values["a"]}, LIKE.unit_bits)),
        b"",
        b"\xff" * 10,
    ],
    ids=["nan", "inf", "-inf", "short", "other dtype", "missing group", "empty", "not CBOR"],
)
def test_a_sketch_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError) as refused:
        sketch_from_bytes(data, LIKE)
    assert refused.value.check == "sketch.form"


def state(change: Callable[[torch.Tensor], torch.Tensor] = lambda x: x, square: float = 1e-4) -> State:
    weights = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 7
    moments = torch.full((3, 4), square)
    return State({"step": 1}, {("parameter", "w"): change(weights), ("exp_avg_sq", "w"): moments})


@pytest.fixture
def comparator() -> Comparator:
    manifest = build_manifest(state().real, "tensor")
    tau = Tau({entry.group: 1e-3 for entry in manifest.entries})
    return Comparator(Gaussian(k=8), manifest, Calibrated(), tau)


def verdict(comparator: Comparator, end: State, unit: int = 5) -> str | None:
    """The check that the opened end state fails against an honest replay, with digest and sketch of its own."""
    sketch = sketch_to_bytes(comparator.sketch(end, KEY))
    commitment = commit_state(end, comparator.manifest)
    committed = Committed(commitment.state, commitment.exact, KEY, sketch)
    try:
        comparator.check_exact_distances(Checks(), state(), end, committed, unit)
    except ProtocolError as error:
        return error.check
    return None


def test_with_both_opened_every_tensor_is_near(comparator: Comparator) -> None:
    assert verdict(comparator, state()) is None
    assert verdict(comparator, state(lambda w: w + 1e-4)) is None, "3.5e-4 in L2"
    assert verdict(comparator, state(lambda w: w + 1e-3)) == "replay.exact_distance"


def test_second_moments_are_compared_as_roots(comparator: Comparator) -> None:
    # Of twelve values: squares of 1e-4 and 1.2e-4 are 7e-5 apart in L2, within tau; their roots are 3.3e-3 apart.
    assert verdict(comparator, state(square=1.02e-4)) is None
    assert verdict(comparator, state(square=1.2e-4)) == "replay.exact_distance"


def test_an_opened_end_that_was_not_committed_or_not_sketched(comparator: Comparator) -> None:
    end, other = state(), state(lambda w: w + 1)
    commitment, foreign = (commit_state(each, comparator.manifest) for each in (end, other))
    sketches = [sketch_to_bytes(comparator.sketch(each, KEY)) for each in (end, other)]
    for committed, check in (
        (Committed(foreign.state, foreign.exact, KEY, sketches[0]), "open.end.digest"),
        (Committed(commitment.state, commitment.exact, KEY, sketches[1]), "open.end.sketch"),
    ):
        with pytest.raises(ProtocolError) as refused:
            comparator.check_exact_distances(Checks(), end, end, committed, 5)
        assert refused.value.check == check
