"""Verdicts: digests, sketches and distances of raw tensors. Nothing here runs code of the trainer's.

The replayer hands back a raw state; this module alone decides whether it is the state that was committed and
sketched. Every check fails closed: a missing tensor, a wrong dtype or shape, a non-finite value or a distance that
is not a number is a failed check with a name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from witbench.errors import ProtocolError, StateError, TapeError
from witbench.kernels.base import Sketch
from witbench.kernels.manifest import full_view
from witbench.protocol.commitments import commit_state, exact_digest
from witbench.protocol.encoding import decode, encode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from witbench.kernels.base import Manifest, SketchDesign
    from witbench.protocol.switches import Tolerance
    from witbench.protocol.tau import Tau
    from witbench.training.state import State


def sketch_to_bytes(sketch: Sketch) -> bytes:
    """Canonical CBOR of a sketch: group -> [dtype, little-endian bytes]."""
    fields = {}
    for group, values in sketch.values.items():
        fields[group] = [str(values.dtype).removeprefix("torch."), values.contiguous().numpy().tobytes()]
    return encode(fields)


def sketch_from_bytes(data: bytes, like: Sketch) -> Sketch:
    """Parse an untrusted sketch that must have the groups, dtypes and lengths of `like`.

    Raises:
        ProtocolError: `sketch.form`, when it does not.
    """
    try:
        fields = decode(data)
    except TapeError as error:
        raise ProtocolError("sketch.form", str(error)) from None
    if fields.keys() != like.values.keys():
        raise ProtocolError("sketch.form", "the sketch's groups are not the manifest's")
    values = {}
    for group, expected in like.values.items():
        dtype = str(expected.dtype).removeprefix("torch.")
        size = expected.numel() * expected.element_size()
        entry = fields[group]
        wanted = isinstance(entry, list) and len(entry) == 2 and entry[0] == dtype and isinstance(entry[1], bytes)
        if not wanted or len(entry[1]) != size:
            raise ProtocolError("sketch.form", f"group {group} must hold {expected.numel()} values of {dtype}")
        values[group] = torch.frombuffer(bytearray(entry[1]), dtype=expected.dtype)
        if not bool(torch.isfinite(values[group]).all()):
            raise ProtocolError("sketch.form", f"group {group} holds values that are not finite")
    return Sketch(values, like.unit_bits)


@dataclass(frozen=True)
class Committed:
    """What the tape holds of the end of one unit.

    Attributes:
        state: the digest c.
        exact: the exact-part digest.
        key: kappa, 32 bytes.
        sketch: sigma as taped.
    """

    state: bytes
    exact: bytes
    key: bytes
    sketch: bytes


@dataclass(frozen=True)
class Verdict:
    """Outcome of the checks of one unit, in the order they ran.

    Attributes:
        checks: check name -> passed; checks after the first failure do not run.
        failed: the first failing check, or None.
        detail: why, for the log.
        distances: group -> distance of the replayed state's sketch to the taped one (empty when not reached).
    """

    checks: Mapping[str, bool]
    failed: str | None = None
    detail: str = ""
    distances: Mapping[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return self.failed is None


class Checks:
    """Collects named checks and stops at the first failure by raising ProtocolError."""

    def __init__(self) -> None:
        self.results: dict[str, bool] = {}
        self.distances: dict[str, float] = {}

    def require(self, name: str, passed: bool, reason: str) -> None:
        """Record a check; raises ProtocolError when it failed."""
        self.results[name] = passed
        if not passed:
            raise ProtocolError(name, reason)

    def verdict(self, error: ProtocolError | None = None) -> Verdict:
        """The verdict so far; `error` is the failure that ended the checks, if any."""
        if error is None:
            return Verdict(self.results, distances=self.distances)
        results = {**self.results, error.check: False}
        return Verdict(results, error.check, error.reason, self.distances)


@dataclass(frozen=True)
class Comparator:
    """Compares states with what the tape holds of them.

    Attributes:
        design: the sketch design.
        manifest: the prover's own manifest, from its own S_0.
        tolerance: the tolerance switch.
        tau: the tolerances, by unit.
    """

    design: SketchDesign
    manifest: Manifest
    tolerance: Tolerance
    tau: Tau

    def sketch(self, state: State, key: bytes) -> Sketch:
        """Sketch a state under a key. Raises StateError when it does not fit the manifest or is not finite."""
        return self.design.sketch(full_view(self.manifest, state.real), key)

    def check_opened(
        self, checks: Checks, prefix: str, state: State, committed: Committed, wanted: Collection[str]
    ) -> None:
        """Those of `<prefix>.digest` and `<prefix>.sketch` that are wanted: the state is the one committed, sketched.

        The digest is always held, wanted or not.
        """
        try:
            digest = commit_state(state, self.manifest).state
        except StateError as error:
            raise ProtocolError(f"{prefix}.digest", str(error)) from None
        checks.require(f"{prefix}.digest", digest == committed.state, "the opened state is not the committed one")
        if f"{prefix}.sketch" in wanted:
            self._check_sketch(checks, f"{prefix}.sketch", state, committed)

    def _check_sketch(self, checks: Checks, name: str, state: State, committed: Committed) -> None:
        try:
            own = self.sketch(state, committed.key)
        except StateError as error:
            raise ProtocolError(name, str(error)) from None
        if self.design.describe().exact:
            same = sketch_to_bytes(own) == committed.sketch
        else:
            distances = self.design.distance(own, sketch_from_bytes(committed.sketch, own))
            same = all(value <= self.design.recompute_tolerance for value in distances.values())
        checks.require(name, same, "the taped sketch is not the sketch of the committed state")

    def check_replayed(self, checks: Checks, replayed: State, committed: Committed, unit: int) -> None:
        """The transition checks of a unit: exact part, then distance or digest as the tolerance switch says."""
        try:
            own = self.sketch(replayed, committed.key)
            digest = commit_state(replayed, self.manifest).state
        except StateError as error:
            raise ProtocolError("replay.state", str(error)) from None
        same_exact = exact_digest(replayed) == committed.exact
        checks.require("replay.exact_part", same_exact, "the replayed exact part is not the committed one")
        checks.distances = self.design.distance(own, sketch_from_bytes(committed.sketch, own))
        tau = self.tau.of(unit)
        for name, passed in self.tolerance.judge(checks.distances, tau, digest == committed.state).items():
            checks.require(name, passed, _farthest(checks.distances, tau))

    def check_exact_distances(
        self, checks: Checks, replayed: State, end: State, committed: Committed, unit: int
    ) -> None:
        """With `open: both`: the opened end state is the committed one, and near the replayed one tensor by tensor."""
        self.check_opened(checks, "open.end", end, committed, ("open.end.sketch",))
        for entry in self.manifest.entries:
            key = (entry.role, entry.name)
            ours, theirs = replayed.real[key].double(), end.real[key].double()
            if entry.transform == "sqrt":
                ours, theirs = ours.sqrt(), theirs.sqrt()
            distance = float((ours - theirs).norm())
            near = distance <= self.tau.of(unit).get(entry.group, 0.0)
            checks.require("replay.exact_distance", near, f"{entry.role} {entry.name} is {distance:.3g} off")

    def yardstick(self, replayed: State, changed: State, key: bytes) -> dict[str, float]:
        """Per-group distance between an honest replay and one with a single token changed."""
        return self.design.distance(self.sketch(replayed, key), self.sketch(changed, key))


def _farthest(distances: Mapping[str, float], tau: Mapping[str, float]) -> str:
    """The group that stands out most, in words."""
    if not tau:
        return f"largest distance {max(distances.values()):.3g}"
    group = max(distances, key=lambda each: distances[each] / tau[each] if tau.get(each) else distances[each])
    return f"{group} is {distances[group]:.3g} off, tau is {tau.get(group, 0.0):.3g}"
