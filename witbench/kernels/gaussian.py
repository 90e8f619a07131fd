"""`gaussian`: the textbook Johnson-Lindenstrauss sketch, dense standard normal rows in float64. Slow by design.

For each group, y_j = sum over its tensors and their values n of g(j, n) * z(n), with z as for `rht` (square roots of
second moments), and distance^2 = sum_j (y_j - y'_j)^2 / k: unbiased for the squared L2 distance, with relative standard
deviation sqrt(2/k) exactly.

The normals come from Philox4x32-10 with the tensor's key (`philox.stream_key`, design tag "witbench/gaussian/v0",
stream "g") and counter c0 = n mod 2^32, c1 = n div 2^32, c2 = r, c3 = 0, n being the global row-major index of the
value. With the output words w0..w3,

    u = (((w0 << 21) | (w1 >> 11)) + 1) * 2^-53 in (0, 1],    v = ((w2 << 21) | (w3 >> 11)) * 2^-53 in [0, 1),

the Box-Muller pair sqrt(-2 ln u) * (cos 2 pi v, sin 2 pi v) is (g(2r, n), g(2r + 1, n)).

The random bits are the same everywhere. Logarithm, cosine and sums in float64 are not, in the last place, so the design
is *not* exact: two machines agree within `recompute_tolerance` only, and a check that recomputes a sketch needs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from witbench.errors import ConfigError, StateError
from witbench.kernels.base import Entry, LinearSketch, Shard, Sketch, SketchProperties, StateView
from witbench.kernels.philox import address, check_key, philox4x32, scalar, stream_key
from witbench.kernels.pieces import Piece, label, pieces

TAG = "witbench/gaussian/v0"
"""Design tag of the key derivation."""

_MAX_K = 4096
_CHUNK = 1 << 17
"""Normals drawn at once: some ten temporaries of 8 bytes each, about 10 MiB, whatever the state's size."""

_LIMIT = 2.0**400
"""Values from here on are refused: their squares could leave float64."""


class Gaussian(LinearSketch):
    """Dense Gaussian sketch: k float64 values per group.

    Args:
        k: rows, from 1 to 4096.
        recompute_tolerance: largest distance between two computations of one sketch. Rounding errors of a float64 sum
            of n terms behave like sqrt(n) * 2^-53 times the norm of the terms (Higham and Mary 2019); those of the
            generator are smaller. The default of 1e-9 leaves a factor of four at 10^8 values of norm 200 and far more
            for smaller states, and is a tenth of the least distance (1e-8) by which honest reordering moves a state.

    Raises:
        ConfigError: a parameter outside its range.
    """

    def __init__(self, k: int = 64, recompute_tolerance: float = 1e-9) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= _MAX_K:
            raise ConfigError(f"sketch.params.k={k!r} is not an integer from 1 to {_MAX_K}")
        if not 0 <= recompute_tolerance < math.inf:
            raise ConfigError(f"sketch.params.recompute_tolerance={recompute_tolerance!r} is not a distance")
        self.k = k
        self.recompute_tolerance = recompute_tolerance

    def sketch(self, view: StateView, key: bytes) -> Sketch:
        """Sum of the shards at hand in canonical order; every group of the manifest is there. float64, on the CPU.

        Raises:
            ConfigError: a key that does not have 32 bytes.
            StateError: an empty state, or values that are not finite or too large.
        """
        if not view.manifest.entries:
            raise StateError("the state has no real tensors: there is nothing to sketch")
        rank = {(entry.role, entry.name): position for position, entry in enumerate(view.manifest.entries)}
        ordered = sorted(view.shards, key=lambda shard: (rank[shard.entry.role, shard.entry.name], shard.offsets))
        return self._sketch(view.manifest.entries, ordered, key)

    def partial(self, shard: Shard, key: bytes) -> Sketch:
        """The sketch of one shard, its own group alone. Errors as for `sketch`."""
        return self._sketch((shard.entry,), (shard,), key)

    def distance(self, a: Sketch, b: Sketch) -> dict[str, float]:
        """Estimated L2 distance per group. Raises StateError for different groups."""
        if a.values.keys() != b.values.keys():
            raise StateError("the two sketches have different groups")
        return {
            group: math.dist(a.values[group].tolist(), b.values[group].tolist()) / math.sqrt(self.k)
            for group in a.values
        }

    def describe(self) -> SketchProperties:
        """Linear within rounding; neither shard-additive nor exact. Two operations a row, without the generator's."""
        return SketchProperties(
            linear=True,
            shard_additive=False,
            exact=False,
            bytes_per_group=8 * self.k,
            operations_per_value=2.0 * self.k,
            bytes_read_per_value=0.0,
        )

    def _sketch(self, entries: Iterable[Entry], shards: Iterable[Shard], key: bytes) -> Sketch:
        check_key(key)
        sums = {entry.group: torch.zeros(self.k, dtype=torch.float64) for entry in entries}
        for shard in shards:
            sums[shard.entry.group] += self._rows_times(shard, key)
        return Sketch(sums)

    def _rows_times(self, shard: Shard, key: bytes) -> Tensor:
        philox_key = stream_key(TAG, "g", key, shard.entry)
        total = torch.zeros(self.k, dtype=torch.float64)
        bad = 0
        for piece in pieces(shard, max(1, _CHUNK // self.k)):
            z = piece.values.double()
            z = z.sqrt() if shard.entry.transform == "sqrt" else z
            bad += int((~(z.abs() < _LIMIT)).sum())
            if not bad:
                total += (normals(philox_key, _indices(piece), self.k) * z).sum(dim=1).cpu()
        if bad:
            raise StateError(f"{label(shard.entry)} holds {bad} values that are not finite or break |z| < {_LIMIT:g}")
        return total


def normals(key: tuple[int, int], indices: Tensor, k: int) -> Tensor:
    """The first k rows at some values.

    Args:
        key: the tensor's Philox key.
        indices: (n,) int64, global row-major indices of the values.
        k: rows.

    Returns:
        (k, n) float64, standard normal.
    """
    device = indices.device
    low, high = address(indices)
    pair = torch.arange(-(-k // 2), device=device)[:, None]
    w0, w1, w2, w3 = philox4x32((low, high, pair, scalar(0, device)), (scalar(key[0], device), scalar(key[1], device)))
    u = ((w0 << 21 | w1 >> 11) + 1).double() * 2.0**-53
    angle = (w2 << 21 | w3 >> 11).double() * (2.0**-52 * math.pi)
    radius = torch.log(u).mul_(-2).sqrt_()
    return torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=1).view(-1, len(indices))[:k]


def _indices(piece: Piece) -> Tensor:
    if piece.indices is not None:
        return piece.indices
    return torch.arange(piece.start, piece.start + piece.values.numel(), device=piece.values.device)
