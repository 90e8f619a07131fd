"""States and batches as bytes: safetensors, with the exact part as canonical CBOR inside.

What is parsed may come from a hostile process: nothing but StateError or DataError comes of it. Parsed tensors are
fresh allocations, since the alignment of an operand can change the last bits of a product.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import cbor2
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from witbench.errors import DataError, StateError
from witbench.training.state import ROLES, Batch, Key, State

_EXACT_DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
}
_EXACT = "exact"
_MAX_TENSORS = 1_000_000


def exact_bytes(exact: Mapping[str, int | bool | bytes | Tensor]) -> bytes:
    """Canonical CBOR of an exact part: name -> int, bool, bytes, or [dtype, shape, little-endian bytes].

    Raises:
        StateError: for a value of any other type.
    """
    fields: dict[str, Any] = {}
    for name, value in exact.items():
        if isinstance(value, Tensor):
            fields[name] = _encode_tensor(name, value)
        elif isinstance(value, int | bytes):
            fields[name] = value
        else:
            raise StateError(
                f"exact field {name!r} is a {type(value).__name__}; allowed are int, bool, bytes, integer tensors"
            )
    return cbor2.dumps(fields, canonical=True)


def _encode_tensor(name: str, value: Tensor) -> list[Any]:
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in _EXACT_DTYPES:
        raise StateError(f"exact field {name!r} has dtype {dtype}; float tensors belong to the real part")
    return [dtype, list(value.shape), value.detach().cpu().contiguous().numpy().tobytes()]


def _exact_from(data: bytes) -> dict[str, int | bool | bytes | Tensor]:
    stream = io.BytesIO(data)
    try:
        fields = cbor2.load(stream)
    except (cbor2.CBORDecodeError, RecursionError, MemoryError, OverflowError, ValueError) as error:
        raise StateError(f"the exact part is not CBOR: {error}") from None
    if stream.read(1) or not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise StateError("the exact part is not one map of named values")
    return {name: _exact_value(name, value) for name, value in fields.items()}


def _exact_value(name: str, value: object) -> int | bool | bytes | Tensor:
    if isinstance(value, int | bytes):
        return value
    if not isinstance(value, list) or len(value) != 3:
        raise StateError(f"exact field {name!r} is neither int, bool, bytes nor a tensor")
    dtype, shape, data = value
    sizes_fit = isinstance(shape, list) and len(shape) < 65 and all(type(s) is int and 0 <= s < 2**48 for s in shape)
    if dtype not in _EXACT_DTYPES or not sizes_fit or not isinstance(data, bytes):
        raise StateError(f"exact field {name!r} is not a tensor of integers or booleans")
    count = 1
    for size in shape:
        count *= size
    torch_dtype = _EXACT_DTYPES[dtype]
    if count * torch_dtype.itemsize != len(data):
        raise StateError(
            f"exact field {name!r} has {len(data)} bytes, its shape asks for {count * torch_dtype.itemsize}"
        )
    if torch_dtype == torch.bool and any(byte > 1 for byte in data):
        raise StateError(f"exact field {name!r} holds booleans that are neither 0 nor 1")
    return (
        torch.frombuffer(bytearray(data), dtype=torch_dtype).reshape(shape).clone()
        if data
        else torch.empty(shape, dtype=torch_dtype)
    )


def _load(data: bytes | memoryview, error: type[StateError | DataError], what: str) -> dict[str, Tensor]:
    try:
        tensors = load(bytes(data))
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, OverflowError) as cause:
        raise error(f"not a serialised {what}: {str(cause)[:120]}") from None
    return {name: tensor.clone() for name, tensor in tensors.items()}


def state_to_bytes(state: State) -> bytes:
    """Serialise a state: tensor `role/name` per real tensor and `exact` (uint8) for the exact part."""
    tensors = {f"{role}/{name}": tensor.detach().cpu().contiguous() for (role, name), tensor in state.real.items()}
    tensors[_EXACT] = torch.frombuffer(bytearray(exact_bytes(state.exact)), dtype=torch.uint8)
    return save(tensors)


def state_from_bytes(data: bytes | memoryview) -> State:
    """Parse a serialised state.

    Raises:
        StateError: when it is not one.
    """
    tensors = _load(data, StateError, "state")
    exact = tensors.pop(_EXACT, None)
    if exact is None or exact.dtype != torch.uint8 or exact.dim() != 1:
        raise StateError("not a serialised state: it has no exact part")
    real: dict[Key, Tensor] = {}
    for label, tensor in tensors.items():
        role, _, name = label.partition("/")
        if role not in ROLES or not name or not tensor.is_floating_point():
            raise StateError(f"not a serialised state: {label!r} ({tensor.dtype}) is no real tensor of a known role")
        real[role, name] = tensor
    return State(_exact_from(exact.numpy().tobytes()), real)


def weights_to_bytes(state: State) -> bytes:
    """The weights file of a state: safetensors of its parameters alone, under their names; same state, same bytes."""
    real = state.real.items()
    return save({name: tensor.detach().cpu().contiguous() for (role, name), tensor in real if role == "parameter"})


def batch_to_bytes(batch: Batch) -> bytes:
    """Serialise a batch: `tokens`, `lengths`, `sequence/<name>` and `batch/<name>` (int64)."""
    tensors = {"tokens": batch.tokens.contiguous(), "lengths": batch.lengths.contiguous()}
    tensors |= {f"sequence/{name}": field.contiguous() for name, field in batch.sequence_fields.items()}
    tensors |= {f"batch/{name}": torch.tensor(field, dtype=torch.int64) for name, field in batch.batch_fields.items()}
    return save(tensors)


def batch_from_bytes(data: bytes | memoryview) -> Batch:
    """Parse a serialised batch.

    Raises:
        DataError: when it is not one.
    """
    tensors = _load(data, DataError, "batch")
    tokens, lengths = tensors.pop("tokens", None), tensors.pop("lengths", None)
    if tokens is None or lengths is None or tokens.dtype != torch.int32 or lengths.dtype != torch.int32:
        raise DataError("not a serialised batch: it has no int32 tokens and lengths")
    if tokens.dim() != 2 or tuple(lengths.shape) != (tokens.shape[0],) or bool((tokens < 0).any()):
        raise DataError("not a serialised batch: tokens are not (sequences, context + 1) with one length a row")
    sequence: dict[str, Tensor] = {}
    whole: dict[str, tuple[int, ...]] = {}
    for label, tensor in tensors.items():
        kind, _, name = label.partition("/")
        if kind == "sequence" and name:
            sequence[name] = tensor
        elif kind == "batch" and name and tensor.dtype == torch.int64 and tensor.dim() == 1:
            whole[name] = tuple(int(value) for value in tensor)
        else:
            raise DataError(f"not a serialised batch: {label!r} is no field of one")
    if "loss_mask" not in sequence or sequence["loss_mask"].dtype != torch.bool or "micro_batches" not in whole:
        raise DataError("not a serialised batch: it has no loss_mask or micro_batches")
    return Batch(tokens, lengths, sequence, whole)
