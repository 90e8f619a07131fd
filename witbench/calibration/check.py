"""`witbench calibrate check`: honest replays on other seeds, judged as challenges are; whether a token is caught."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from witbench.calibration.honest import Honest, Unit, manifest_of
from witbench.calibration.plan import Share, first_shares, phase_of, share, ways_of
from witbench.calibration.pool import run_all
from witbench.calibration.run import Show, bare, write_json
from witbench.calibration.variations import THREADS, VARIATIONS, Threads, chosen, run_unit, thread_count
from witbench.config import RunConfig
from witbench.errors import ConfigError, ProtocolError
from witbench.evaluation.rates import clopper_pearson
from witbench.protocol.commitments import commit_state
from witbench.protocol.comparator import Checks, Committed, Comparator, sketch_to_bytes
from witbench.protocol.ledger import Plan
from witbench.protocol.policy import Policy, PolicyError
from witbench.protocol.replayer import change_one_token
from witbench.protocol.switches import Calibrated
from witbench.protocol.tau import AFTER, WARMUP, Tau
from witbench.protocol.tolerances import read_calibration, tolerances

if TYPE_CHECKING:
    from witbench.training.state import State

FEWEST_RUNS = 16
FIRST_PART = 10
"""One replay in so many is of a run's first unit, each on a seed of its own; see `plan.FIRST`."""

CONFIDENCE = 0.95

Numerics = tuple[int, str | None]
"""Thread count and variation under which a unit is computed again; no variation is the procedure as it is."""


@dataclass(frozen=True)
class Replay:
    """One honest unit, judged.

    Attributes:
        seed, unit, phase: which unit of which run.
        numerics: thread count and variation, as text.
        failed: the failed check, or None.
    """

    seed: int
    unit: int
    phase: str
    numerics: str
    failed: str | None


@dataclass(frozen=True)
class Token:
    """One unit with a token changed, judged.

    Attributes:
        phase: of the unit.
        failed: the failed check, or None when the change stayed within tau.
        beyond: groups in which it is beyond tau.
        meets_policy: whether the default policy accepts this tau beside this token.
    """

    phase: str
    failed: str | None
    beyond: tuple[str, ...]
    meets_policy: bool


@dataclass(frozen=True)
class CheckRun:
    """Judge the units of one run.

    Attributes:
        config: the configuration, `calibrated` tolerance and file included.
        seed: of the run.
        numerics: what `share` indexes into.
        share: which units are judged how; the run ends after the last of them unless it is whole.
        whole: whether a token is changed in every unit of the run, too.
    """

    config: RunConfig
    seed: int
    numerics: tuple[Numerics, ...]
    share: Share
    whole: bool = True

    def __call__(self) -> tuple[list[Replay], list[Token]]:
        """Run it."""
        honest = Honest(bare(self.config), self.seed)
        tau, _ = tolerances(self.config, honest.manifest)
        comparator = Comparator(honest.design, honest.manifest, Calibrated(), tau)
        variations = {name: VARIATIONS[name](bare(self.config)) for _, name in self.numerics if name}
        random = np.random.default_rng([self.seed, self.config.protocol.unit, 1])
        replays, tokens = [], []
        for unit in honest.units(None if self.whole else max(self.share)):
            key = random.bytes(32)
            committed = _commit(comparator, unit.end, key)
            phase = phase_of(unit.number, self.config)
            for index, draw in self.share.get(unit.number, ()):
                threads, name = self.numerics[index]
                with thread_count(threads):
                    if name is None:
                        state = run_unit(honest.procedure, unit.start, unit.batches)
                    else:
                        state = variations[name](honest.procedure, unit.start, unit.batches, draw, random)
                failed = _judge(comparator, state, committed, unit.number)[0]
                replays.append(Replay(self.seed, unit.number, phase, named(threads, name), failed))
            tokens.append(_token(honest, comparator, unit, random, phase))
        return replays, tokens


def named(threads: int, variation: str | None) -> str:
    """Numerics as text."""
    return f"threads={threads}" + (f" {variation}" if variation else "")


def check(path: Path, units: int, first: int | None, rate: float, workers: int, show: Show) -> dict[str, Any]:
    """Judge honest units on seeds that the calibration did not see, and write `<file>.check.json`.

    Args:
        path: the calibration.
        units: honest replays to judge.
        first: first seed; the one after the calibration's last when None.
        rate: the false-reject rate that is to be claimed.
        workers: processes.
        show: takes the runs done and all of them.

    Raises:
        ConfigError: no calibration, one that its own configuration does not fit, or seeds it was made from.
    """
    fields, digest = _read(path)
    config = _config(fields, path)
    tau, _ = tolerances(config, manifest_of(bare(config)))
    numerics, draws = _numerics(config, fields)
    ways = ways_of(draws)
    all_units = range(1, Plan(config.training.updates, config.protocol.unit).units + 1)
    firsts = units // FIRST_PART
    runs = max(FEWEST_RUNS, math.ceil((units - firsts) / (len(all_units) * len(ways))))
    parts = [share(all_units, math.ceil((units - firsts) / runs), ways, run, runs) for run in range(runs)]
    parts += first_shares(firsts, ways)
    seeds = _seeds(fields["seeds"], first, len(parts))
    replays: list[Replay] = []
    tokens: list[Token] = []
    show(0, len(parts))
    work = [
        CheckRun(config, seed, numerics, part, number < runs)
        for number, (seed, part) in enumerate(zip(seeds, parts, strict=True))
    ]
    for number, (judged, changed) in enumerate(run_all(work, workers), 1):
        replays += judged
        tokens += changed
        show(number, len(parts))
    result = {
        "calibration_sha256": digest.hex(),
        "seeds": [seeds[0], seeds[-1]],
        **_false_rejects(replays, rate),
        "one_token": {phase: _tokens([t for t in tokens if t.phase == phase], tau) for phase in (WARMUP, AFTER)},
        "versions": fields["versions"],
    }
    write_json(sidecar(path), result)
    return result


def sidecar(path: Path) -> Path:
    """Where the check of a calibration is written."""
    return path.with_name(f"{path.name}.check.json")


def passed(result: Mapping[str, Any]) -> bool:
    """No honest unit was rejected, and after warm-up every changed token was caught."""
    after = result["one_token"][AFTER]
    return result["rejected"] == 0 and after["caught"] == after["of"]


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    try:
        return read_calibration(path)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _config(fields: Mapping[str, Any], path: Path) -> RunConfig:
    """The configuration that was calibrated, with the calibration as its tolerance."""
    plain = {**fields.get("config", {}), "tolerance": {"name": "calibrated", "calibration": str(path)}}
    config = RunConfig.from_plain(plain)
    config.check()
    return config


def _numerics(config: RunConfig, fields: Mapping[str, Any]) -> tuple[tuple[Numerics, ...], list[int]]:
    """Both thread counts with each variation that was calibrated, and how many draws each has."""
    names = {name for phase in fields["phases"].values() for name in phase["by_variation"]}
    fit, _ = chosen(bare(config), sorted(names))
    others = [each for each in fit if each.name != Threads.name]
    own = config.training.threads
    plain = [((threads, None), 1) for threads in THREADS if threads != own]
    varied = [((threads, each.name), each.draws()) for threads, each in itertools.product(THREADS, others)]
    pairs = [*plain, *varied]
    return tuple(numerics for numerics, _ in pairs), [draws for _, draws in pairs]


def _seeds(used: Sequence[int], first: int | None, runs: int) -> range:
    start = max(used) + 1 if first is None else first
    seeds = range(start, start + runs)
    if shared := sorted(set(used) & set(seeds)):
        raise ConfigError(
            f"first={start}: seeds {shared[0]} to {shared[-1]} made the calibration, and a check needs others; "
            f"take first={max(used) + 1} or more"
        )
    return seeds


def _commit(comparator: Comparator, state: State, key: bytes) -> Committed:
    commitment = commit_state(state, comparator.manifest)
    return Committed(commitment.state, commitment.exact, key, sketch_to_bytes(comparator.sketch(state, key)))


def _judge(
    comparator: Comparator, state: State, committed: Committed, unit: int
) -> tuple[str | None, Mapping[str, float]]:
    checks = Checks()
    try:
        comparator.check_replayed(checks, state, committed, unit)
    except ProtocolError as error:
        return error.check, checks.distances
    return None, checks.distances


def _token(honest: Honest, comparator: Comparator, unit: Unit, random: np.random.Generator, phase: str) -> Token:
    """A trainer that trained on one other token than it declared: the honest replay against its sketch."""
    changed = change_one_token(list(unit.batches), random.bytes(32), honest.dataset.vocab)
    committed = _commit(comparator, run_unit(honest.procedure, unit.start, changed), random.bytes(32))
    failed, distances = _judge(comparator, unit.end, committed, unit.number)
    tau = comparator.tau.of(unit.number)
    try:
        Policy().check_tau(tau, distances, unit.number, 0)
        meets = True
    except PolicyError:
        meets = False
    beyond = tuple(group for group, distance in distances.items() if not distance <= tau[group])
    return Token(phase, failed, beyond, meets)


def _false_rejects(replays: Sequence[Replay], rate: float) -> dict[str, Any]:
    rejected = [replay for replay in replays if replay.failed]
    _, at_most = clopper_pearson(len(rejected), len(replays), confidence=CONFIDENCE, side="upper")
    kinds = sorted({replay.numerics for replay in replays})
    return {
        "replays": len(replays),
        "units": len({(replay.seed, replay.unit) for replay in replays}),
        "runs": len({replay.seed for replay in replays}),
        "rejected": len(rejected),
        "at_most": at_most,
        "confidence": CONFIDENCE,
        "rate": rate,
        "extrapolated": at_most > rate,
        "replays_for_rate": math.ceil(math.log(1 - CONFIDENCE) / math.log1p(-rate)),
        "numerics": {
            kind: {
                "replays": sum(replay.numerics == kind for replay in replays),
                "rejected": sum(replay.numerics == kind for replay in rejected),
            }
            for kind in kinds
        },
        "first_units": {
            "replays": sum(replay.unit == 1 for replay in replays),
            "rejected": sum(replay.unit == 1 for replay in rejected),
        },
        "rejects": [vars(replay) for replay in rejected],
    }


def _tokens(tokens: Sequence[Token], tau: Tau) -> dict[str, Any]:
    return {
        "of": len(tokens),
        "caught": sum(token.failed is not None for token in tokens),
        "meets_policy": sum(token.meets_policy for token in tokens),
        "groups": {group: sum(group in token.beyond for token in tokens) for group in tau.after},
    }
