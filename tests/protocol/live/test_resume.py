"""A run that stops anywhere is taken up again: nothing is lost, nothing doubled, the same weights bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest

from witbench.errors import ProtocolError
from witbench.protocol.certify import Certified, WitnessedRun, ended
from witbench.protocol.tape import TapeWriter
from witbench.protocol.trainer import Trainer
from witbench.training.state import Batch, State

from .conftest import World, records

VARIANTS = {
    "challenged": ("training.updates=3", "protocol.p=1.0", "protocol.lag=1"),
    "by coin": ("training.updates=4", "protocol.p=0.4", "protocol.lag=0"),
    "units, both": ("training.updates=4", "protocol.unit=2", "protocol.opening=both", "protocol.lag=2"),
}


class Stop(Exception):
    """Stands for a kill: nothing after it runs."""


def draw(label: str) -> bytes:
    """The prover's draws, fixed, so that an uninterrupted run can be compared."""
    return hashlib.sha256(f"test/{label}".encode()).digest()


def fresh(world: World, name: str, *overrides: str, trainer: type[Trainer] = Trainer) -> WitnessedRun:
    run = world.begin(world.config(*overrides), trainer, name=name)
    run.draw = lambda label: draw(f"{label}" if label != "run" else name)
    return run


def stop_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Stop at the record after the next `count` ones."""
    append, left = TapeWriter.append, [count]

    def stopping(self: TapeWriter, kind: str, **fields: Any) -> bytes:
        if left[0] == 0:
            raise Stop
        left[0] -= 1
        return append(self, kind, **fields)

    monkeypatch.setattr(TapeWriter, "append", stopping)


def check_whole(world: World, certified: Certified, weights: bytes, rewound: bool) -> None:
    assert certified.failed is None, certified.detail
    report = world.verify(certified)
    assert report.accepted, report.reason
    assert certified.weights.read_bytes() == weights
    assert report.numbers is not None
    assert (report.numbers.rewinds > 0) == rewound
    numbers = [record["number"] for record in records(certified) if record["kind"] in ("key", "coin")]
    assert numbers == sorted(set(numbers)), "no reveal is used twice"
    assert not list((certified.folder / "openings" / "snapshots").iterdir()), "nothing is kept that nobody can ask for"


@pytest.mark.parametrize("variant", VARIANTS)
def test_stopped_at_any_record_it_ends_the_same(variant: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every third record; the slow test below stops at every one."""
    overrides = VARIANTS[variant]
    whole = fresh(world, "whole", *overrides)()
    weights, size = whole.weights.read_bytes(), len(records(whole))
    opening = next(i for i, record in enumerate(records(whole)) if record["kind"] == "commit")
    for count in range(0, size, 3):
        name = f"stopped-{count}"
        with monkeypatch.context() as patch:
            stop_after(patch, count)
            try:
                fresh(world, name, *overrides)()
            except Stop:
                pass
            else:
                # Coins hash the tape, the run id included: this run drew fewer challenges and has fewer records.
                assert count > size - 4
                continue
        stopped = Certified(world.folder / name)
        if count:
            report = world.verify(stopped)
            assert report.status == "incomplete", (count, report.reason)
        certified = fresh(world, name, *overrides)()
        assert certified.resumed
        kept = len(records(certified))
        check_whole(world, certified, weights, rewound=opening < count and kept > count)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_stopped_twice_at_any_two_records_it_ends_the_same(
    variant: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = VARIANTS[variant]
    whole = fresh(world, "whole", *overrides)()
    weights, size = whole.weights.read_bytes(), len(records(whole))
    opening = next(i for i, record in enumerate(records(whole)) if record["kind"] == "commit")
    twice = 0
    for count in range(1, size):
        name, stops = f"stopped-{count}", []
        for again in (count, 1 + count % 5):
            with monkeypatch.context() as patch:
                stop_after(patch, again)
                try:
                    fresh(world, name, *overrides)()
                except Stop:
                    stops.append(len(records(Certified(world.folder / name))))
                else:
                    break  # coins hash the run id: this run had fewer records to write than the whole one
        twice += len(stops) == 2
        certified = ended(world.folder / name) or fresh(world, name, *overrides)()
        kept = len(records(certified))
        # A stop before S_0 is committed, or after the last record, leaves nothing to go back from.
        check_whole(world, certified, weights, rewound=any(opening < stop < kept for stop in stops))
    assert twice > size - 6


@pytest.mark.parametrize(
    "target", ["run.cbor", "statement.json", "checkpoint", "weights.safetensors", "boundary-000000001"]
)
def test_stopped_while_a_file_is_written(target: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from witbench.protocol import certify, prover, runfiles, snapshots

    overrides = VARIANTS["challenged"]
    weights = fresh(world, "whole", *overrides)().weights.read_bytes()
    write = snapshots.write_durably

    def stopping(path: Any, *rest: Any, **more: Any) -> None:
        if path.name.startswith(target):
            path.with_name(path.name + ".part").write_bytes(b"half")
            raise Stop
        write(path, *rest, **more)

    with monkeypatch.context() as patch:
        for module in (certify, prover, runfiles, snapshots):
            patch.setattr(module, "write_durably", stopping)
        with pytest.raises(Stop):
            fresh(world, "stopped", *overrides)()
    name = "stopped" if target != "run.cbor" else "other"
    certified = fresh(world, name, *overrides)()
    assert certified.failed is None, certified.detail
    assert world.verify(certified).accepted
    assert certified.weights.read_bytes() == weights


def test_a_reveal_that_was_counted_but_not_taped_is_never_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    append = TapeWriter.append

    def stopping(self: TapeWriter, kind: str, **fields: Any) -> bytes:
        if kind == "coin":
            raise Stop
        return append(self, kind, **fields)

    with monkeypatch.context() as patch:
        patch.setattr(TapeWriter, "append", stopping)
        with pytest.raises(Stop):
            fresh(world, "run")()
    certified = fresh(world, "run")()
    numbers = [record["number"] for record in records(certified) if record["kind"] in ("key", "coin")]
    assert numbers[:2] == [1, 3]
    assert world.verify(certified).accepted


def test_the_start_state_is_durable_before_its_unit_is_committed(world: World) -> None:
    seen: list[tuple[int, list[int]]] = []

    class Watching(Trainer):
        def commit(self, unit: int, state: State) -> State:
            kept = sorted((world.folder / "run" / "openings" / "snapshots").glob("*"))
            seen.append((unit, [int(path.stem.split("-")[1]) for path in kept]))
            return state

    world.run(world.config(), Watching)
    assert all(unit - 1 in kept for unit, kept in seen)
    assert len(seen) == 4


@pytest.mark.parametrize("open_challenge", [True, False])
def test_a_lost_start_state_is_a_refusal_or_ends_the_run(
    open_challenge: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = () if open_challenge else ("protocol.p=0.0",)
    append, seen = TapeWriter.append, [0]

    def stopping(self: TapeWriter, kind: str, **fields: Any) -> bytes:
        seen[0] += kind == "coin"
        if seen[0] == 2:
            raise Stop
        return append(self, kind, **fields)

    with monkeypatch.context() as patch:
        patch.setattr(TapeWriter, "append", stopping)
        with pytest.raises(Stop):
            fresh(world, "run", *overrides)()
    for path in (world.folder / "run" / "openings" / "snapshots").glob("*"):
        path.unlink()
    if open_challenge:
        assert fresh(world, "run", *overrides)().failed == "challenge.refused"
    else:
        with pytest.raises(ProtocolError, match=r"run\.snapshot: no start state was kept"):
            fresh(world, "run", *overrides)()


def test_a_liar_gains_nothing_by_stopping(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A challenge that was open at the stop is answered before the run goes on."""

    class Liar(Trainer):
        def open(self, unit: int, start: State, batches: Sequence[Batch]) -> Any:
            raise Stop

        def train(self, t: int, state: State, declared: Batch) -> State:
            return super().train(t, state, self.procedure.batch(self.dataset, self.order_seed, t + 9))

    with pytest.raises(Stop):
        fresh(world, "run", trainer=Liar)()
    honest_now = fresh(world, "run")()
    assert honest_now.failed == "replay.digest"


def test_what_has_ended_is_not_run_again(world: World) -> None:
    certified = fresh(world, "run")()
    assert ended(certified.folder) == Certified(certified.folder)
    assert ended(world.folder / "nothing") is None
    with pytest.raises(ProtocolError, match="has ended"):
        fresh(world, "run")()
    rejected = world.run(world.config(), _Boasts, name="boasts")
    assert ended(rejected.folder).failed == "evaluation.value"


class _Boasts(Trainer):
    def evaluate(self, state: State) -> dict[str, float]:
        return {"loss": 0.0}


def test_attempts_stay_visible(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 12)
        with pytest.raises(Stop):
            world.begin(world.config(), name="abandoned")()
    second = world.run(world.config(), name="second")
    (genesis,) = records(second, "genesis")
    assert genesis["attempt"] == 2
    numbers = world.verify(second).numbers
    assert numbers is not None
    assert numbers.attempts == 2
    kinds = [(entry["kind"], entry.get("status")) for entry in world.home.registry.entries()]
    assert kinds == [("register", None), ("register", None), ("close", "complete")]


def test_two_processes_do_not_share_a_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Nested(Trainer):
        def commit(self, unit: int, state: State) -> State:
            if unit == 2:
                with pytest.raises(ProtocolError, match="another process"):
                    fresh(world, "run")()
            return state

    assert fresh(world, "run", trainer=Nested)().failed is None
