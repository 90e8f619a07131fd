"""`rht`: randomized Hadamard transform on exact integers. The readable reference that every compiled kernel equals.

Definition, for block length k (a power of two), a 32-byte key kappa, and one group of tensors:

1. Values. Each tensor is read in its global row-major order and widened to float64 (exact from every allowed dtype).
   z = x, or z = sqrt(x) correctly rounded in float64, as the entry's `transform` says.
2. Quantisation. q = z * 2^scale_bits rounded to an integer, half to even, in float64. Every |q| is below
   2^(62 - log2 k): larger and non-finite values are counted, never converted, and a count above zero is an error. With
   this bound no block sum reaches 2^63, so the coordinates of one block never wrap.
3. Blocks. Value n of the tensor is position n mod k of block n div k; the last block is padded with zeros. Blocks are
   numbered over the global tensor, whatever shard holds them.
4. Signs. Stream "d" signs the positions before the transform, stream "e" the coordinates after it. Philox4x32-10 with
   the stream's key of the tensor (`philox.stream_key`, design tag "witbench/rht/v0") and counter
       c0 = block mod 2^32, c1 = block div 2^32, c2 = w div 4, c3 = 0
   gives, as its output word number w mod 4, the signs of positions 32w to 32w + 31: bit i (bit 0 is the least
   significant) is that of position 32w + i, and a set bit means minus.
5. y_j = sum over tensors and blocks b of e(b, j) * sum_i H(j, i) * d(b, i) * q(b, i) mod 2^64, read as signed, with
   H(j, i) = (-1)^popcount(j & i), Sylvester's Hadamard matrix without scaling.
6. distance^2 = sum_j signed(y_j - y'_j)^2 / (k * 4^scale_bits). Its mean over keys is the squared L2 distance D^2 of
   the two z; its variance is that of the cross terms between different blocks alone: with block distances D_b,
   (2/k) * (D^4 - sum_b D_b^4). So the relative standard deviation is at most sqrt(2/k), and an edit inside one block is
   measured exactly.

Sums modulo 2^64 are associative: order, shards, threads and devices cannot change a bit, and partial sketches add.
Positions of one block share a dense transform, so no column is sparse; the signs e are needed, because without them
equal edits in two blocks would meet in every coordinate with the same relative sign.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from witbench.errors import ConfigError, StateError
from witbench.kernels.base import Entry, LinearSketch, Shard, Sketch, SketchProperties, StateView
from witbench.kernels.philox import address, check_key, philox4x32, scalar, stream_key
from witbench.kernels.pieces import Piece, label, pieces

TAG = "witbench/rht/v0"
"""Design tag of the key derivation."""

_CHUNK = 1 << 18
"""Values transformed at once. Some ten temporaries of 8 bytes a value: about 20 MiB, whatever the state's size."""


class Rht(LinearSketch):
    """Randomized Hadamard sketch: k signed 64-bit integers per group.

    Args:
        k: block length and coordinates per group, a power of two from 64 to 4096.

    Raises:
        ConfigError: any other k.
    """

    def __init__(self, k: int = 256) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or not 64 <= k <= 4096 or k & (k - 1):
            raise ConfigError(f"sketch.params.k={k!r} is not a power of two from 64 to 4096")
        self.k = k

    def sketch(self, view: StateView, key: bytes) -> Sketch:
        """Sum of the shards at hand; every group of the manifest is there. int64, on the CPU.

        Raises:
            ConfigError: a key that does not have 32 bytes.
            StateError: an empty state, or values that are not finite or too large.
        """
        if not view.manifest.entries:
            raise StateError("the state has no real tensors: there is nothing to sketch")
        return self._sketch(view.manifest.entries, view.shards, key)

    def partial(self, shard: Shard, key: bytes) -> Sketch:
        """The sketch of one shard, its own group alone. Errors as for `sketch`."""
        return self._sketch((shard.entry,), (shard,), key)

    def distance(self, a: Sketch, b: Sketch) -> dict[str, float]:
        """Estimated L2 distance per group, in the units of z; the sum of squares is exact.

        Raises:
            StateError: sketches of different groups or lengths, or neither knows its scale.
        """
        if a.values.keys() != b.values.keys():
            raise StateError("the two sketches have different groups")
        bits = {**b.unit_bits, **a.unit_bits}
        distances = {}
        for group, values in a.values.items():
            if values.shape != b.values[group].shape:
                raise StateError(f"the two sketches have different lengths in group {group}")
            if group not in bits:
                raise StateError(f"neither sketch knows the scale of group {group}: one must come from `sketch`")
            difference = (values - b.values[group]).tolist()
            squares = sum(coordinate * coordinate for coordinate in difference)
            distances[group] = math.ldexp(math.sqrt(squares / self.k), -bits[group])
        return distances

    def describe(self) -> SketchProperties:
        """All three properties; log2(k) butterfly additions and one into the sum for each value."""
        return SketchProperties(
            linear=True,
            shard_additive=True,
            exact=True,
            bytes_per_group=8 * self.k,
            operations_per_value=math.log2(self.k) + 1,
            bytes_read_per_value=0.0,
        )

    def _sketch(self, entries: Iterable[Entry], shards: Iterable[Shard], key: bytes) -> Sketch:
        check_key(key)
        shards = tuple(shards)
        sums = {entry.group: torch.zeros(self.k, dtype=torch.int64) for entry in entries}
        for device in dict.fromkeys(shard.tensor.device for shard in shards):
            chunk = _Chunk(self.k, device, key, sums)
            valid = all(chunk.add_shard(shard) for shard in shards if shard.tensor.device == device)
            if not (valid and chunk.flush()):
                self._raise_invalid(shards)
        return Sketch(sums, {entry.group: entry.scale_bits for entry in entries})

    def _raise_invalid(self, shards: Iterable[Shard]) -> NoReturn:
        """Count the values that cannot be sketched, tensor by tensor, and name the first tensor that has some."""
        limit = _limit(self.k)
        counts: dict[Entry, int] = {}
        for shard in shards:
            bad = sum(_count_invalid(piece.values, shard.entry, limit) for piece in pieces(shard, _CHUNK))
            counts[shard.entry] = counts.get(shard.entry, 0) + bad
        entry, bad = next((entry, bad) for entry, bad in counts.items() if bad)
        bound = f"|{'sqrt(x)' if entry.transform == 'sqrt' else 'x'}| < {math.ldexp(limit, -entry.scale_bits):g}"
        raise StateError(f"{label(entry)} holds {bad} values that are not finite or break {bound}")


def hadamard(x: Tensor) -> Tensor:
    """Sylvester's Hadamard matrix times each column of x, (k, n) int64; x is scratch space afterwards."""
    k = x.shape[0]
    out = torch.empty_like(x)
    half = 1
    while half < k:
        pairs, sums = (t.view(k // (2 * half), 2, half, -1) for t in (x, out))
        torch.add(pairs[:, 0], pairs[:, 1], out=sums[:, 0])
        torch.sub(pairs[:, 0], pairs[:, 1], out=sums[:, 1])
        x, out = out, x
        half *= 2
    return x


def sign_masks(keys: Tensor, blocks: Tensor, k: int) -> Tensor:
    """Signs of every position of some blocks as masks: 0 for plus, -1 for minus.

    Args:
        keys: (2, n) int64, the stream's Philox key of each block.
        blocks: (n,) int64, global block numbers.
        k: block length.

    Returns:
        (k, n) int64.
    """
    low, high = address(blocks)
    calls = torch.arange(-(-k // 128), device=blocks.device)[:, None]
    words = philox4x32((low, high, calls, scalar(0, blocks.device)), (keys[0], keys[1]))
    by_word = torch.stack(words, dim=1).reshape(-1, 1, len(blocks))[: k // 32]
    to_top = torch.ones((), dtype=torch.int64) << 63 - torch.arange(32, device=blocks.device)[:, None]
    # Bit i moved to the top (by a product: torch shifts by a tensor slowly) and shifted back fills the word with it.
    return (by_word * to_top).bitwise_right_shift_(63).view(k, len(blocks))


def _limit(k: int) -> float:
    return math.ldexp(1.0, 62 - int(math.log2(k)))


def correctly_rounded_sqrt(z: Tensor) -> Tensor:
    """IEEE 754 square root of a float64 tensor, in place; NaN below zero.

    Torch may hand CPU tensors to a vector math library whose square root is off by one in the last place now and then
    (measured with MKL), depending on size and strides. NumPy's is the processor's own, CUDA's is correctly rounded.
    """
    if z.device.type != "cpu":
        return z.sqrt_()
    array = z.numpy()
    with np.errstate(invalid="ignore"):
        np.sqrt(array, out=array)
    return z


def _transformed(z: Tensor, entry: Entry) -> Tensor:
    return correctly_rounded_sqrt(z) if entry.transform == "sqrt" else z


def _count_invalid(values: Tensor, entry: Entry, limit: float) -> int:
    z = _transformed(values.to(torch.float64, copy=True), entry)
    q = z.mul_(math.ldexp(1.0, entry.scale_bits)).round_()
    return int((~(q.abs_() < limit)).sum())


def _negate(x: Tensor, masks: Tensor) -> Tensor:
    """x where the mask is 0, -x where it is -1, in place (two's complement)."""
    return x.bitwise_xor_(masks).sub_(masks)


@dataclass
class _Segment:
    """Rows of the chunk that belong to one tensor: their number, entry and global block numbers."""

    rows: int
    entry: Entry
    first_block: int
    blocks: Tensor | None


@dataclass
class _Chunk:
    """Blocks of many tensors, gathered until there are enough to transform at once.

    Small tensors would drown in per-tensor calls; a chunk lets one call serve hundreds of them.
    """

    k: int
    device: torch.device
    key: bytes
    sums: dict[str, Tensor]
    segments: list[_Segment] = field(default_factory=list)
    used: int = 0
    valid: bool = True

    def __post_init__(self) -> None:
        self.rows = _CHUNK // self.k
        self.values = torch.zeros((self.rows, self.k), dtype=torch.float64, device=self.device)

    def add_shard(self, shard: Shard) -> bool:
        """Gather a shard, transforming full chunks on the way; False once any value was invalid."""
        for piece in pieces(shard, _CHUNK):
            if piece.indices is None:
                self._add_run(piece, shard.entry)
            else:
                self._add_scattered(piece, piece.indices, shard.entry)
        return self.valid

    def _add_run(self, piece: Piece, entry: Entry) -> None:
        done, count = 0, piece.values.numel()
        while done < count:
            block, position = divmod(piece.start + done, self.k)
            space = (self.rows - self.used) * self.k - position
            take = min(count - done, space)
            first = self.used * self.k + position
            self.values.view(-1)[first : first + take].copy_(piece.values[done : done + take])
            self._close(_Segment(-(-(position + take) // self.k), entry, block, None))
            done += take

    def _add_scattered(self, piece: Piece, indices: Tensor, entry: Entry) -> None:
        """A box that is not one run: put each value at its place among the blocks that the box touches."""
        blocks, row = torch.unique_consecutive(indices // self.k, return_inverse=True)
        first = 0
        while first < len(blocks):
            rows = min(len(blocks) - first, self.rows - self.used)
            low, high = torch.searchsorted(row, torch.tensor([first, first + rows], device=self.device)).tolist()
            places = (row[low:high] - first + self.used) * self.k + indices[low:high] % self.k
            self.values.view(-1)[places] = piece.values[low:high].double()
            self._close(_Segment(rows, entry, 0, blocks[first : first + rows]))
            first += rows

    def _close(self, segment: _Segment) -> None:
        _transformed(self.values[self.used : self.used + segment.rows], segment.entry)
        self.segments.append(segment)
        self.used += segment.rows
        if self.used == self.rows:
            self.flush()

    def flush(self) -> bool:
        """Transform what was gathered and add it to the sums; False when any value so far was invalid."""
        if self.used and self.valid:
            self._accumulate()
        self.values[: self.used].zero_()
        self.segments.clear()
        self.used = 0
        return self.valid

    def _accumulate(self) -> None:
        counts = torch.tensor([segment.rows for segment in self.segments], device=self.device)
        scales = [math.ldexp(1.0, segment.entry.scale_bits) for segment in self.segments]
        scale = torch.tensor(scales, dtype=torch.float64, device=self.device).repeat_interleave(counts)
        scaled = self.values[: self.used].mul_(scale[:, None]).round_()
        smallest, largest = (bound.item() for bound in scaled.aminmax())
        # A NaN is both bounds of its chunk, and fails the comparison.
        if not -_limit(self.k) < smallest <= largest < _limit(self.k):
            self.valid = False
            return
        q = torch.empty((self.k, self.used), dtype=torch.int64, device=self.device).copy_(scaled.T)
        blocks = torch.cat([self._block_numbers(segment) for segment in self.segments])
        y = hadamard(_negate(q, sign_masks(self._keys("d", counts), blocks, self.k)))
        self._add_up(_negate(y, sign_masks(self._keys("e", counts), blocks, self.k)))

    def _add_up(self, y: Tensor) -> None:
        first = 0
        for group, segments in groupby(self.segments, key=lambda segment: segment.entry.group):
            end = first + sum(segment.rows for segment in segments)
            self.sums[group] += y[:, first:end].sum(dim=1).cpu()
            first = end

    def _keys(self, stream: str, counts: Tensor) -> Tensor:
        keys = [stream_key(TAG, stream, self.key, segment.entry) for segment in self.segments]
        return torch.tensor(keys, device=self.device).T.repeat_interleave(counts, dim=1)

    def _block_numbers(self, segment: _Segment) -> Tensor:
        if segment.blocks is not None:
            return segment.blocks
        return torch.arange(segment.first_block, segment.first_block + segment.rows, device=self.device)
