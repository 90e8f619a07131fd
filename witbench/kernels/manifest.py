"""Manifests: which real tensors a state holds, in which group each is sketched, and how it is quantised.

The module imports no torch, so a manifest can be read wherever a tape can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import cbor2

from witbench.errors import ConfigError, StateError
from witbench.kernels.base import Entry, Manifest, Shard, StateView
from witbench.training.state import ROLES, Key

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("float64", "float32", "bfloat16", "float16")
"""Dtypes of real tensors."""

GROUPINGS = ("layer_role", "role", "tensor")
"""How tensors are grouped: by transformer layer and role, by role, or each alone."""

SCALE_BITS = {"parameter": 40, "buffer": 40, "exp_avg": 44, "exp_avg_sq": 44}
"""s of the fixed-point scale 2^s, per role; for `exp_avg_sq` it applies to the square root."""

_TRANSFORMS = ("identity", "sqrt")
_FIELDS = ("role", "name", "dtype", "shape", "group", "transform", "scale_bits")
_MAX_SCALE_BITS = 62


def layer_of(name: str) -> str:
    """The layer a tensor belongs to: its name up to the first numeric component, else its first component.

    `blocks.3.attn.qkv.weight` belongs to `blocks.3`, `embedding.weight` to `embedding`.
    """
    components = name.split(".")
    for position, component in enumerate(components):
        if component.isdecimal():
            return ".".join(components[: position + 1])
    return components[0]


def dtype_name(tensor: Tensor) -> str:
    """Torch's name of a tensor's dtype without the prefix, such as `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def build_manifest(real: Mapping[Key, Tensor], groups: str = "layer_role", raw_moments: bool = False) -> Manifest:
    """Describe the real part of a state.

    Args:
        real: (role, name) -> tensor, whole (not sharded).
        groups: one of `GROUPINGS`.
        raw_moments: sketch second moments as they are, not as square roots. That hides edits which move the next
            update a lot, so it is meant for a weakened protocol only.

    Raises:
        ConfigError: unknown grouping.
        StateError: unknown role, a dtype outside `DTYPES`, or one tensor under two names of a role.
    """
    if groups not in GROUPINGS:
        raise ConfigError(f"sketch.groups={groups!r} is not one of {', '.join(GROUPINGS)}")
    _check_untied(real)
    entries = []
    for role, name in sorted(real, key=_canonical):
        tensor = real[role, name]
        group = {"layer_role": f"{layer_of(name)}/{role}", "role": role, "tensor": f"{name}/{role}"}[groups]
        transform = "sqrt" if role == "exp_avg_sq" and not raw_moments else "identity"
        shape = tuple(int(size) for size in tensor.shape)
        entries.append(Entry(role, name, dtype_name(tensor), shape, group, transform, SCALE_BITS[role]))
    manifest = Manifest(tuple(entries))
    _check(manifest)
    return manifest


def group_names(manifest: Manifest) -> tuple[str, ...]:
    """Groups in canonical order: that of their first entry."""
    return tuple(dict.fromkeys(entry.group for entry in manifest.entries))


def manifest_to_bytes(manifest: Manifest) -> bytes:
    """Canonical CBOR: {"version": 0, "entries": [one map per entry, its keys those of `Entry`]}."""
    entries = [{name: getattr(entry, name) for name in _FIELDS} for entry in manifest.entries]
    return cbor2.dumps({"version": 0, "entries": entries}, canonical=True)


def manifest_from_bytes(data: bytes) -> Manifest:
    """Parse untrusted bytes.

    Raises:
        StateError: when they are not the canonical bytes of a well-formed manifest.
    """
    try:
        fields = cbor2.loads(data)
    except cbor2.CBORDecodeError as error:
        raise StateError(f"the manifest is not CBOR: {error}") from None
    if not isinstance(fields, dict) or fields.get("version") != 0 or not isinstance(fields.get("entries"), list):
        raise StateError("the manifest is not a map of version 0 with entries")
    manifest = Manifest(tuple(_parse_entry(item) for item in fields["entries"]))
    _check(manifest)
    if manifest_to_bytes(manifest) != data:
        raise StateError("the manifest is not in canonical form")
    return manifest


def full_view(
    manifest: Manifest, real: Mapping[Key, Tensor], forward: Callable[[Tensor], Sequence[Tensor]] | None = None
) -> StateView:
    """A view of whole tensors, in canonical order.

    Raises:
        StateError: when names, dtypes or shapes are not exactly those of the manifest.
    """
    shards = []
    for entry in manifest.entries:
        tensor = real.get((entry.role, entry.name))
        if tensor is None:
            raise StateError(f"the state lacks {entry.role} {entry.name}")
        if dtype_name(tensor) != entry.dtype or tuple(tensor.shape) != entry.shape:
            found = f"{dtype_name(tensor)} {tuple(tensor.shape)}"
            raise StateError(f"{entry.role} {entry.name} is {found}, the manifest says {entry.dtype} {entry.shape}")
        shards.append(Shard(entry, tensor, (0,) * len(entry.shape), entry.shape))
    if len(real) != len(shards):
        known = {(entry.role, entry.name) for entry in manifest.entries}
        role, name = next(key for key in real if key not in known)
        raise StateError(f"the state holds {role} {name}, which the manifest does not list")
    return StateView(manifest, shards, forward)


def _canonical(key: Key) -> tuple[int, str]:
    role, name = key
    if role not in ROLES:
        raise StateError(f"{name} has the role {role!r}; roles are {', '.join(ROLES)}")
    return ROLES.index(role), name


def _check_untied(real: Mapping[Key, Tensor]) -> None:
    """Tied weights count once: refuse two names of a role for one tensor."""
    seen: dict[tuple[object, ...], str] = {}
    for (role, name), tensor in real.items():
        if tensor.numel() == 0 or tensor.device.type == "meta":
            continue
        place = (role, tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if place in seen:
            raise StateError(f"{role} {name} and {seen[place]} are one tensor: a tied weight enters the state once")
        seen[place] = name


def _parse_entry(item: object) -> Entry:
    if not isinstance(item, dict) or item.keys() != set(_FIELDS):
        raise StateError(f"a manifest entry is a map of {', '.join(_FIELDS)}")
    texts = [item[name] for name in ("role", "name", "dtype", "group", "transform")]
    shape, scale_bits = item["shape"], item["scale_bits"]
    if not all(isinstance(text, str) for text in texts) or not isinstance(shape, list):
        raise StateError("a manifest entry holds texts and a list of sizes")
    if any(type(number) is not int or number < 0 for number in [*shape, scale_bits]):
        raise StateError("sizes and scale_bits of a manifest entry are integers from 0")
    role, name, dtype, group, transform = texts
    return Entry(role, name, dtype, tuple(shape), group, transform, scale_bits)


def _check(manifest: Manifest) -> None:
    groups: dict[str, tuple[str, str, int]] = {}
    for entry in manifest.entries:
        where = f"{entry.role} {entry.name}"
        if entry.dtype not in DTYPES:
            raise StateError(f"{where} is {entry.dtype}; real tensors are one of {', '.join(DTYPES)}")
        if entry.transform not in _TRANSFORMS or not 0 <= entry.scale_bits <= _MAX_SCALE_BITS:
            raise StateError(f"{where} has transform {entry.transform!r} and scale_bits {entry.scale_bits}")
        kind = (entry.role, entry.transform, entry.scale_bits)
        if groups.setdefault(entry.group, kind) != kind:
            raise StateError(f"group {entry.group} mixes roles, transforms or scales; a group has one of each")
    order = [_canonical((entry.role, entry.name)) for entry in manifest.entries]
    if order != sorted(set(order)):
        raise StateError("manifest entries are not in canonical order (role order, then name), each once")
