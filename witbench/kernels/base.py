"""What a sketch design is: the manifest of a state, a view of its shards, and the plug-in interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Entry:
    """One real tensor of the manifest, in its global (unsharded, row-major) shape.

    Attributes:
        role: `parameter`, `buffer`, `exp_avg` or `exp_avg_sq`.
        name: the tensor's name, unique within its role.
        dtype: torch's name without the prefix, such as `float32`.
        shape: global shape.
        group: name of the group its sketch is added to; a group never mixes roles.
        transform: `identity` or `sqrt` (second moments), applied before quantisation.
        scale_bits: s of the fixed-point scale 2^s.
    """

    role: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    group: str
    transform: str
    scale_bits: int


@dataclass(frozen=True)
class Manifest:
    """All real tensors of a state, in canonical order (role order, then name)."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Shard:
    """A box of one entry: `tensor` (any strides) holds the elements at `offsets` with `sizes` of the global tensor."""

    entry: Entry
    tensor: Tensor
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class StateView:
    """The real part of a state as a sketch sees it: a manifest and the shards at hand.

    `forward` (input embeddings -> hidden states and logits) is there for designs that need the model.
    """

    manifest: Manifest
    shards: Sequence[Shard]
    forward: Callable[[Tensor], Sequence[Tensor]] | None = None


@dataclass(frozen=True)
class Sketch:
    """One 1-D tensor per group. Serialising and chunking is the protocol's business.

    Attributes:
        values: group -> the sketch proper, all that a commitment covers.
        unit_bits: group -> s where one unit of a value is 2^-s of the state's own. It follows from the manifest, so it
            is not serialised: `distance` needs it of one of its two sketches. Empty for designs without fixed point.
    """

    values: Mapping[str, Tensor]
    unit_bits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SketchProperties:
    """What a design claims of itself; a stress test holds it to each line.

    Attributes:
        linear: sketch(a) - sketch(b) = sketch(a - b) for values the design represents exactly.
        shard_additive: partial sketches of disjoint shards add up to the sketch of the whole, bit for bit.
        exact: the same state and key give the same bits on every device, thread count and order.
        bytes_per_group: size of one group's values.
        operations_per_value: additions and the like per state value.
        bytes_read_per_value: state bytes read per state value (fp32), beside the state's own 4.
    """

    linear: bool
    shard_additive: bool
    exact: bool
    bytes_per_group: int
    operations_per_value: float
    bytes_read_per_value: float


class SketchDesign(ABC):
    """A keyed map from the real part of a state to one small vector per group, with a distance between two such.

    Attributes:
        recompute_tolerance: largest distance, in every group, between two sketches of one state under one key computed
            on different machines. Zero for exact designs, whose sketches are compared bit for bit.
    """

    recompute_tolerance: float = 0.0

    @abstractmethod
    def sketch(self, view: StateView, key: bytes) -> Sketch:
        """Sketch the whole state under a 32-byte key. Raises StateError for non-finite or too large values."""

    @abstractmethod
    def distance(self, a: Sketch, b: Sketch) -> dict[str, float]:
        """Distance of two sketches under one key, per group, in the state's own units where it can be."""

    @abstractmethod
    def describe(self) -> SketchProperties:
        """The properties the design claims."""


class LinearSketch(SketchDesign):
    """A design whose partial sketches of disjoint shards add up to the sketch of the whole."""

    @abstractmethod
    def partial(self, shard: Shard, key: bytes) -> Sketch:
        """The sketch of one shard, zero elsewhere; it holds the shard's own group alone."""

    def add(self, sketches: Iterable[Sketch]) -> Sketch:
        """The sum of partial sketches, group by group; a group that a sketch lacks counts as zero there."""
        values: dict[str, Tensor] = {}
        unit_bits: dict[str, int] = {}
        for sketch in sketches:
            unit_bits.update(sketch.unit_bits)
            for group, part in sketch.values.items():
                values[group] = values[group] + part if group in values else part
        return Sketch(values, unit_bits)
