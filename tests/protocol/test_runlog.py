"""The registry: attempts, durability, and logs that were edited."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tests.protocol.synthetic import BROKER, TRAINER, digest, frames, joined
from witbench.errors import ProtocolError, TapeError
from witbench.protocol.encoding import encode
from witbench.protocol.notes import Checkpoint, sign_note
from witbench.protocol.runlog import Attempts, RunLog, log_origin, read_run_log

DATA, PROCEDURE = digest("data"), digest("procedure")
OTHER = TRAINER.vkey.replace("trainer", "other")


def _log(folder: Path) -> RunLog:
    return RunLog(folder / "registry", BROKER)


def _filled(folder: Path) -> RunLog:
    log = _log(folder)
    log.register("one", DATA, PROCEDURE, TRAINER.vkey)
    log.close("one", "rejected", 9, digest("root"))
    log.register("two", DATA, PROCEDURE, TRAINER.vkey)
    return log


def test_attempts_are_counted_per_job_and_per_trainer(tmp_path: Path) -> None:
    log = _log(tmp_path)
    assert log.register("one", DATA, PROCEDURE, TRAINER.vkey) == Attempts(1, 1)
    assert log.register("two", DATA, PROCEDURE, TRAINER.vkey) == Attempts(2, 2)
    assert log.register("three", DATA, PROCEDURE, OTHER) == Attempts(3, 1)
    assert log.register("four", digest("elsewhere"), PROCEDURE, TRAINER.vkey) == Attempts(1, 3)
    assert _log(tmp_path).register("five", DATA, digest("x"), TRAINER.vkey) == Attempts(1, 4)


def test_rejected_and_abandoned_runs_stay(tmp_path: Path) -> None:
    entries = _filled(tmp_path).entries()
    assert [(entry["kind"], entry["run"]) for entry in entries] == [
        ("register", "one"),
        ("close", "one"),
        ("register", "two"),
    ]
    assert read_run_log(tmp_path / "registry", BROKER.public_key) == entries


@pytest.mark.parametrize(("run", "reason"), [("three", "not registered"), ("one", "closed already")])
def test_only_a_running_run_is_closed(tmp_path: Path, run: str, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        _filled(tmp_path).close(run, "complete", 1, bytes(32))


def test_a_run_id_is_used_once(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="registered already"):
        _filled(tmp_path).register("one", DATA, PROCEDURE, TRAINER.vkey)


def test_a_stop_between_entry_and_head_is_mended(tmp_path: Path) -> None:
    log = _filled(tmp_path)
    head = (tmp_path / "registry" / "head").read_bytes()
    log.close("two", "complete", 4, bytes(32))
    (tmp_path / "registry" / "head").write_bytes(head)
    with pytest.raises(TapeError, match="not over its entries"):
        read_run_log(tmp_path / "registry", BROKER.public_key)
    assert len(_log(tmp_path).entries()) == 4


def test_a_torn_entry_is_cut(tmp_path: Path) -> None:
    log = _filled(tmp_path)
    path = tmp_path / "registry" / "log"
    path.write_bytes(path.read_bytes() + b"\x00\x50torn")
    with pytest.raises(TapeError, match="cut inside"):
        read_run_log(tmp_path / "registry", BROKER.public_key)
    log.close("two", "complete", 4, bytes(32))
    assert len(log.entries()) == 4


def test_every_byte_of_the_log_counts(tmp_path: Path) -> None:
    _filled(tmp_path)
    path = tmp_path / "registry" / "log"
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(TapeError):
            read_run_log(tmp_path / "registry", BROKER.public_key)


def test_a_broker_does_not_go_on_with_an_edited_log(tmp_path: Path) -> None:
    log = _filled(tmp_path)
    path = tmp_path / "registry" / "log"
    raws = frames(path.read_bytes())
    for edited in (raws[:2], [], [raws[0].replace(b"one", b"uno"), *raws[1:]]):
        path.write_bytes(joined(edited))
        with pytest.raises(TapeError):
            log.register("three", DATA, PROCEDURE, TRAINER.vkey)


def test_more_than_one_entry_beyond_the_head_is_no_crash(tmp_path: Path) -> None:
    log = _filled(tmp_path)
    (tmp_path / "registry" / "head").unlink()
    with pytest.raises(TapeError, match="more than one entry"):
        log.entries()


@pytest.mark.parametrize("signer", [TRAINER, BROKER])
def test_heads_of_others_and_of_other_logs(tmp_path: Path, signer: object) -> None:
    _filled(tmp_path)
    origin = "witbench/registry/elsewhere" if signer is BROKER else log_origin(BROKER.public_key)
    note = sign_note(Checkpoint(origin, 3, bytes(32)).body, BROKER if signer is BROKER else TRAINER)
    (tmp_path / "registry" / "head").write_text(note, encoding="utf-8")
    with pytest.raises(TapeError, match="another log" if signer is BROKER else "not signed by the broker"):
        read_run_log(tmp_path / "registry", BROKER.public_key)


def test_what_is_no_entry(tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    folder.mkdir()
    for value in ({"kind": "register"}, {"kind": "other"}, {"kind": 3}):
        (folder / "log").write_bytes(joined([encode(value)]))
        with pytest.raises(TapeError):
            read_run_log(folder, BROKER.public_key)


def _register_many(folder: Path, name: str) -> None:
    for number in range(5):
        _log(folder).register(f"{name}-{number}", DATA, PROCEDURE, TRAINER.vkey)


def test_several_processes_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_register_many, args=(tmp_path, name)) for name in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    entries = _log(tmp_path).entries()
    assert sorted(entry["attempt"] for entry in entries) == list(range(1, 11))
