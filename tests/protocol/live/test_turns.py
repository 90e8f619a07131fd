"""Messages out of turn change nothing, and the worker signs no head over records it did not see."""

from __future__ import annotations

from typing import Any

import pytest
from safetensors.torch import load, save

from witbench.errors import ProtocolError
from witbench.protocol import worker
from witbench.protocol.certify import Certified
from witbench.protocol.messages import FinalOpening, Opening
from witbench.protocol.notes import SigningKey, add_signature
from witbench.protocol.sandbox import Job
from witbench.protocol.trainer import Trainer
from witbench.protocol.worker import Worker
from witbench.training.serialize import state_to_bytes
from witbench.training.state import State

from .conftest import World, records


def test_messages_out_of_turn_append_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers: list[Any] = []
    begin = Worker.begin

    def remembering(self: Worker, state: State) -> None:
        brokers.append(self.broker)
        begin(self, state)

    monkeypatch.setattr(Worker, "begin", remembering)

    class Impatient(Trainer):
        def commit(self, unit: int, state: State) -> State:
            """Between the last DECLARE and COMMIT of a unit, everything but COMMIT is out of turn."""
            broker = brokers[0]
            before = broker.files.tape.size
            commitment = broker.ledger.units[unit].declared[0]
            for message in (
                lambda: broker.begin(bytes(32), bytes(32)),
                lambda: broker.declare(unit, unit - 1, commitment),
                lambda: broker.declare(unit + 1, unit, commitment),
                lambda: broker.commit(unit + 1, bytes(32), bytes(32)),
                lambda: broker.sketch(unit, b""),
                lambda: broker.cosign(""),
                lambda: broker.open(unit, None),
                lambda: broker.open(99, Opening(b"", (), ())),
                lambda: broker.rewind(unit + 5),
                lambda: broker.finish(FinalOpening(b"", b"", {})),
                lambda: broker.seal(""),
            ):
                with pytest.raises(ProtocolError, match=r"message\.order"):
                    message()
            assert broker.files.tape.size == before
            return state

    certified = world.run(world.config("protocol.lag=0"), Impatient)
    assert certified.failed is None
    assert world.verify(certified).accepted


def test_a_challenge_is_answered_once(world: World) -> None:
    class Twice(Trainer):
        def open(self, unit: int, start: State, batches: Any) -> Any:
            return start, batches

    run = world.begin(world.config(), Twice)
    opened: list[int] = []
    original = Worker.open

    def twice(self: Worker, unit: int, answer: Any) -> None:
        original(self, unit, answer)
        with pytest.raises(ProtocolError, match=r"message\.order"):
            original(self, unit, answer)
        opened.append(unit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "open", twice)
        assert run().failed is None
    assert opened == [1, 2, 3, 4]


def test_the_worker_signs_no_head_over_other_records(world: World) -> None:
    from witbench.protocol.broker import LocalBroker

    flush = LocalBroker._flush

    def withholding(self: LocalBroker) -> tuple[bytes, ...]:
        return flush(self)[1:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalBroker, "_flush", withholding)
        with pytest.raises(ProtocolError, match=r"head\.follow"):
            world.run(world.config())


def test_the_broker_takes_no_head_that_somebody_else_signed(world: World) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stranger = SigningKey.generate("witbench-trainer")
        patch.setattr(Worker, "_cosigned", lambda self, head: add_signature(head, stranger))
        with pytest.raises(ProtocolError, match=r"head\.signature"):
            world.run(world.config())
    assert not records(Certified(world.folder / "run"), "checkpoint"), "refused before it is on the tape"


def test_nothing_rides_into_the_sandbox_beside_a_state(world: World) -> None:
    """What a worker serialised itself could carry the answer: tensors are read from it, and serialised anew."""
    jobs: list[Job] = []
    run = world.sandbox.run

    def smuggling(state: State) -> bytes:
        return save(load(state_to_bytes(state)), metadata={"answer": "forty-two"})

    def spying(job: Job) -> bytes | memoryview:
        jobs.append(job)
        return run(job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "state_to_bytes", smuggling)
        patch.setattr(world.sandbox, "run", spying)
        assert world.run(world.config()).failed is None
    carried = [bytes(part) for job in jobs if job.kind in ("update", "evaluate") for part in job.parts]
    assert len([job for job in jobs if job.kind == "update"]) == 8, "each unit and its yardstick"
    assert not [part for part in carried if b"forty-two" in part]


def test_unit_1_starts_from_the_provers_own_state_whatever_is_opened(world: World) -> None:
    class OpensElse(Trainer):
        def open(self, unit: int, start: State, batches: Any) -> Any:
            if unit == 1:
                start = State(start.exact, {key: tensor + 1 for key, tensor in start.real.items()})
            return start, batches

    assert world.run(world.config(), OpensElse).failed is None


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_verdicts_stand_at_their_lag(lag: int, world: World) -> None:
    certified = world.run(world.config(f"protocol.lag={lag}", "training.updates=5"))
    begun, places = 0, {}
    for record in records(certified)[1:]:
        if record["kind"] == "declare":
            begun = record["unit"]
        if record["kind"] == "replay" and record["unit"]:
            places[record["unit"]] = begun
    # Before the first DECLARE of unit u + 1 + lag, that is, while unit u + lag was the last one begun.
    assert places == {unit: min(unit + lag, 5) for unit in range(1, 6)}
