"""What the witness costs its trainer: paired, interleaved runs with and without it, and the parts of one unit.

Each pair trains the same updates twice, in turn; the ratio of a pair is that of its median times a unit. Replays run
at the prover and are left out (p = 0, so that only the last unit is replayed, after the clock stops).
"""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scipy.stats import t as student

from witbench.config import RunConfig
from witbench.kernels.manifest import build_manifest, full_view
from witbench.protocol.certify import WitnessedRun
from witbench.protocol.commitments import commit_batch, commit_state
from witbench.protocol.ledger import Plan
from witbench.protocol.prover import Home
from witbench.protocol.run import run_units
from witbench.protocol.snapshots import write_durably
from witbench.protocol.tape import TapeWriter
from witbench.protocol.trainer import Trainer
from witbench.registry import SKETCHES, build
from witbench.training.data import load_data
from witbench.training.determinism import set_deterministic
from witbench.training.serialize import state_to_bytes
from witbench.training.source import builtin_spec, procedure_from
from witbench.trials.work import shared_sandbox

_REPEATS = 20
_RECORDS = 5
"""Records of an unchallenged unit of one update: declare, commit, key, coin, checkpoint; its sketch comes on top."""


@dataclass(frozen=True)
class Overhead:
    """What was measured.

    Attributes:
        ratios: time a unit with the witness over without, one a pair.
        plain: median seconds of a unit without it.
        parts: part of a unit -> median seconds.
    """

    ratios: tuple[float, ...]
    plain: float
    parts: dict[str, float]

    def interval(self, confidence: float = 0.95) -> tuple[float, float, float]:
        """Mean ratio and its Student t interval, formed on logarithms."""
        logs = [math.log(ratio) for ratio in self.ratios]
        mean = statistics.fmean(logs)
        reach = float(student.ppf((1 + confidence) / 2, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
        return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def measure(config: RunConfig, pairs: int, show: Callable[[int, int], None]) -> Overhead:
    """Measure on one configuration; the tape's folder is a scratch folder of the system."""
    config = replace(config, protocol=replace(config.protocol, p=0.0))
    set_deterministic(config.training.threads)
    ratios, plains = [], []
    for pair in range(pairs):
        times = {}
        # The order within a pair alternates, so that a drift of the machine favours neither.
        for witness in (False, True) if pair % 2 else (True, False):
            times[witness] = statistics.median(_witnessed(config) if witness else _plain(config))
        ratios.append(times[True] / times[False])
        plains.append(times[False])
        show(pair + 1, pairs)
    return Overhead(tuple(ratios), statistics.median(plains), _parts(config))


class _Clock:
    """Collects the time between calls; the first unit, which warms caches, is left out."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def __call__(self, unit: int, units: int) -> None:
        self._marks.append(time.perf_counter())

    def times(self) -> Sequence[float]:
        return [after - before for before, after in zip(self._marks, self._marks[1:], strict=False)]


def _plain(config: RunConfig) -> Sequence[float]:
    clock = _Clock()
    trainer = Trainer(
        procedure_from(builtin_spec(config.procedure_plain())), *load_data(config.data, config.model.vocab), bytes(32)
    )
    run_units(trainer, None, Plan(config.training.updates, config.protocol.unit), trainer.start(0), progress=clock)
    return clock.times()


def _witnessed(config: RunConfig) -> Sequence[float]:
    clock = _Clock()
    folder = Path(tempfile.mkdtemp(prefix="witbench-"))
    try:
        WitnessedRun(config, folder / "run", Home(folder / "home"), shared_sandbox(config.training.threads))(clock)
    finally:
        shutil.rmtree(folder)
    return clock.times()


def _parts(config: RunConfig) -> dict[str, float]:
    """Median seconds of each part of a unit, measured alone on a state of the configuration."""
    procedure = procedure_from(builtin_spec(config.procedure_plain()))
    training, _ = load_data(config.data, config.model.vocab)
    batch = procedure.batch(training, bytes(32), 0)
    state = procedure.update(procedure.init(0), batch)
    manifest = build_manifest(state.real, config.sketch.groups)
    design = build(SKETCHES, config.sketch.name, config.sketch.params)
    with tempfile.TemporaryDirectory(prefix="witbench-") as scratch:
        snapshot, tape = Path(scratch) / "snapshot", TapeWriter(Path(scratch) / "tape", fsync=True)
        tape.append("rewind", boundary=0)
        parts: dict[str, Callable[[], object]] = {
            "update": lambda: procedure.update(state, batch),
            "batch commitment": lambda: commit_batch(batch, bytes(32)),
            "state digest": lambda: commit_state(state, manifest),
            "sketch": lambda: design.sketch(full_view(manifest, state.real), bytes(32)),
            "start snapshot, durable": lambda: write_durably(snapshot, state_to_bytes(state)),
            "tape records, durable": lambda: [tape.append("rewind", boundary=0) for _ in range(_RECORDS)],
        }
        return {name: _median(part) for name, part in parts.items()}


def _median(part: Callable[[], object]) -> float:
    part()
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        part()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def report(config: RunConfig, overhead: Overhead) -> str:
    """The measurement as text."""
    mean, low, high = overhead.interval()
    lines = [
        f"model {config.model.name}, sketch {config.sketch.name} (the readable reference, not a compiled kernel),",
        f"{config.protocol.unit} update(s) a unit, {config.training.threads} thread(s), {len(overhead.ratios)} pairs",
        "",
        f"time a unit, with the witness over without: {mean:.2f}  (95% t interval {low:.2f} to {high:.2f})",
        f"a unit without it: {1000 * overhead.plain:.1f} ms",
        "",
        "parts of a unit, each alone, over the update itself:",
    ]
    update = overhead.parts["update"]
    for name, seconds in overhead.parts.items():
        lines.append(f"  {name:<24} {1000 * seconds:8.2f} ms  {seconds / update:6.3f}")
    return "\n".join(lines)
