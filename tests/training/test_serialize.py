"""Serialised states and batches: round trips, canonical bytes, and named errors for anything hostile."""

from __future__ import annotations

import contextlib

import cbor2
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from witbench.errors import DataError, StateError
from witbench.training.serialize import (
    batch_from_bytes,
    batch_to_bytes,
    exact_bytes,
    state_from_bytes,
    state_to_bytes,
    weights_to_bytes,
)
from witbench.training.state import Batch, State


def a_state() -> State:
    exact = {"step": 3, "flag": True, "rng": b"\x01\x02", "mask": torch.tensor([[1, 0], [0, 1]], dtype=torch.int16)}
    real = {
        ("parameter", "w"): torch.arange(6.0).reshape(2, 3),
        ("exp_avg", "w"): torch.full((2, 3), -0.0, dtype=torch.bfloat16),
        ("buffer", "scalar"): torch.tensor(float("nan"), dtype=torch.float64),
    }
    return State(exact, real)


def a_batch() -> Batch:
    mask = torch.tensor([[True, False], [True, True]])
    tokens = torch.tensor([[1, 2, 3], [4, 5, 0]], dtype=torch.int32)
    return Batch(
        tokens,
        torch.tensor([3, 2], dtype=torch.int32),
        {"loss_mask": mask},
        {"micro_batches": (1, 1), "ranks": (2,)},
    )


def test_a_state_survives_bit_for_bit() -> None:
    state, again = a_state(), state_from_bytes(state_to_bytes(a_state()))
    assert exact_bytes(again.exact) == exact_bytes(state.exact)
    assert type(again.exact["flag"]) is bool
    assert again.real.keys() == state.real.keys()
    for key, tensor in state.real.items():
        assert again.real[key].dtype == tensor.dtype
        assert torch.equal(again.real[key].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
    assert state_to_bytes(again) == state_to_bytes(state)


def test_parsed_tensors_are_aligned_and_their_own() -> None:
    state = State({"pad": b"x" * 13}, {("parameter", str(i)): torch.randn(i) for i in range(1, 20)})
    for tensor in state_from_bytes(state_to_bytes(state)).real.values():
        assert tensor.data_ptr() % 64 == 0
        assert tensor.storage_offset() == 0


def test_bytes_do_not_depend_on_the_order_of_fields() -> None:
    state = a_state()
    turned = State(dict(reversed(state.exact.items())), dict(reversed(state.real.items())))
    assert state_to_bytes(turned) == state_to_bytes(state)


def test_the_weights_file_holds_the_parameters_alone() -> None:
    state = a_state()
    other = State({"step": 9}, {**state.real, ("exp_avg", "w"): torch.ones(2, 3)})
    assert weights_to_bytes(other) == weights_to_bytes(state)
    changed = State(state.exact, {**state.real, ("parameter", "w"): torch.ones(2, 3)})
    assert weights_to_bytes(changed) != weights_to_bytes(state)


@pytest.mark.parametrize("value", [1.5, "text", None, torch.ones(2)])
def test_what_is_not_exact_is_refused(value: object) -> None:
    with pytest.raises(StateError, match="exact field 'x'"):
        exact_bytes({"x": value})


def test_a_batch_survives() -> None:
    batch, again = a_batch(), batch_from_bytes(batch_to_bytes(a_batch()))
    assert torch.equal(again.tokens, batch.tokens)
    assert again.batch_fields == batch.batch_fields
    assert torch.equal(again.sequence_fields["loss_mask"], batch.sequence_fields["loss_mask"])


def with_exact(value: object) -> bytes:
    tensors = {
        "parameter/w": torch.ones(2),
        "exact": torch.frombuffer(bytearray(cbor2.dumps(value)), dtype=torch.uint8),
    }
    return save(tensors)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a state",
        save({"parameter/w": torch.ones(2)}),
        save({"exact": torch.ones(2)}),
        save({"other/w": torch.ones(2), "exact": torch.zeros(1, dtype=torch.uint8)}),
        save({"parameter/w": torch.ones(2, dtype=torch.int32), "exact": torch.tensor([0xA0], dtype=torch.uint8)}),
        with_exact([1]),
        with_exact({"x": 1.5}),
        with_exact({"x": ["int16", [3], b"ab"]}),
        with_exact({"x": ["float32", [1], b"abcd"]}),
        with_exact({"x": ["int16", [-1], b""]}),
        with_exact({"x": ["bool", [1], b"\x02"]}),
        with_exact({1: 1}),
        (2**40).to_bytes(8, "little") + b"{}",
    ],
)
def test_what_is_no_state_is_a_state_error(data: bytes) -> None:
    with pytest.raises(StateError):
        state_from_bytes(data)


@pytest.mark.parametrize(
    "tensors",
    [
        {"tokens": torch.ones(2, 3, dtype=torch.int64), "lengths": torch.ones(2, dtype=torch.int32)},
        {"tokens": torch.ones(2, 3, dtype=torch.int32), "lengths": torch.ones(3, dtype=torch.int32)},
        {"tokens": torch.ones(6, dtype=torch.int32), "lengths": torch.ones(6, dtype=torch.int32)},
        {"tokens": -torch.ones(2, 3, dtype=torch.int32), "lengths": torch.ones(2, dtype=torch.int32)},
        {"tokens": torch.ones(2, 3, dtype=torch.int32), "lengths": torch.ones(2, dtype=torch.int32)},
    ],
)
def test_what_is_no_batch_is_a_data_error(tensors: dict[str, torch.Tensor]) -> None:
    with pytest.raises(DataError):
        batch_from_bytes(save(tensors))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_bytes_raise_the_named_errors_only(data: st.DataObject) -> None:
    for whole, parse, error in (
        (state_to_bytes(a_state()), state_from_bytes, StateError),
        (batch_to_bytes(a_batch()), batch_from_bytes, DataError),
    ):
        place = data.draw(st.integers(0, len(whole) - 1))
        piece = data.draw(st.binary(max_size=12))
        cut = data.draw(st.booleans())
        damaged = whole[:place] + piece + (b"" if cut else whole[place + len(piece) :])
        with contextlib.suppress(error):
            parse(damaged)
