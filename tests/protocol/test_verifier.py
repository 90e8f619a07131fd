"""Honest certificates of every shape, and what may be wrong with the files around a sound tape."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tracemalloc
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.synthetic import (
    BROKER,
    TRAINER,
    WEIGHTS,
    Certificate,
    Synthetic,
    digest,
    drop,
    edit,
    frames,
    joined,
    pinned,
)
from witbench.errors import ConfigError, DataError
from witbench.protocol.notes import Checkpoint, SigningKey, VerifyKey, sign_note
from witbench.protocol.policy import Policy
from witbench.protocol.report import Report
from witbench.protocol.switches import WITNESS, choices
from witbench.protocol.transcript import transcript
from witbench.protocol.verifier import NO_SECURITY, verify

HONEST: dict[str, dict[str, Any]] = {
    "one unit": {"updates": 1},
    "lag 0": {"lag": 0, "updates": 6},
    "lag 1": {"lag": 1, "updates": 6},
    "lag 2": {"lag": 2, "updates": 6},
    "lag beyond the run": {"lag": 9, "updates": 4, "p": 1.0},
    "longer units": {"unit": 2, "updates": 5},
    "one unit longer than the run": {"unit": 8, "updates": 5},
    "all challenged": {"p": 1.0, "updates": 5},
    "few challenged": {"p": 0.02, "updates": 8},
    "calibrated": {"tolerance": "calibrated", "p": 1.0},
    "open both": {"opening": "both", "tolerance": "calibrated"},
    "one rewind": {"updates": 5, "rewinds": {4: 2}, "spare": 8},
    "rewind to the start": {"updates": 3, "rewinds": {2: 0}, "spare": 8},
    "rewind to the same boundary": {"updates": 3, "rewinds": {2: 2, 3: 3}, "spare": 8},
    "two rewinds": {"updates": 8, "rewinds": {6: 1, 8: 5}, "spare": 16, "p": 0.4, "lag": 2},
    "sketch in parts": {"sketch_size": 50_000, "updates": 2},
    "no evaluation": {"shows_evaluation": False},
}


def _verify(folder: Path, certificate: Certificate, **options: Any) -> Report:
    return verify(certificate.write(folder / "cert"), **{"trust": pinned(), **options})


@pytest.mark.parametrize("options", HONEST.values(), ids=HONEST.keys())
def test_honest_certificates_are_accepted(tmp_path: Path, options: dict[str, Any]) -> None:
    run = Synthetic(**options)
    report = _verify(tmp_path, run.build())
    assert (report.status, report.reason) == ("accepted", None)
    numbers = report.numbers
    assert numbers is not None
    assert (numbers.updates, numbers.units) == (run.updates, run.units)
    assert numbers.tokens == 1024 * run.updates
    assert numbers.passed == numbers.drawn >= 1
    assert numbers.rewinds == len(run.rewinds)
    assert report.verified_units == run.units
    assert report.evaluation == ({"loss": 2.5} if run.shows_evaluation else {})
    if run.p == 1.0:
        assert (numbers.coins, numbers.longest_unchecked) == (run.units - 1, 0)


def test_fixed_tolerance_needs_a_policy_that_says_so(tmp_path: Path) -> None:
    certificate = Synthetic(tolerance="fixed", p=1.0).build()
    report = _verify(tmp_path, certificate)
    assert (report.status, report.record, report.check) == ("invalid", 0, "policy.switches")
    lenient = Policy(switches={**Policy().switches, "tolerance": ("fixed",)})
    assert _verify(tmp_path, certificate, policy=lenient).accepted


def test_without_a_pinned_key_it_is_self_certified(tmp_path: Path) -> None:
    report = _verify(tmp_path, Synthetic().build(), trust=None)
    assert (report.accepted, report.self_certified, report.reason) == (False, True, NO_SECURITY)
    assert report.numbers is not None
    assert "self-certified: no security against the trainer" in transcript(report)


def test_a_foreign_broker_is_not_the_pinned_one(tmp_path: Path) -> None:
    mallory = SigningKey.from_seed(BROKER.name, b"m" * 32)
    report = _verify(tmp_path, Synthetic(broker=mallory).build())
    assert (report.status, report.record, report.check) == ("invalid", 0, "trust.key")


@pytest.mark.parametrize(
    ("p", "accepted"),
    [(0.0, False), (0.0099, False), (0.01, True)],
)
def test_p_at_least_what_the_policy_says(tmp_path: Path, p: float, accepted: bool) -> None:
    report = _verify(tmp_path, Synthetic(p=p).build())
    assert report.accepted is accepted
    if not accepted:
        assert (report.record, report.check) == (0, "policy.p")


def test_a_rejected_run_is_reported_as_one(tmp_path: Path) -> None:
    certificate = Synthetic(p=1.0, updates=5, fails=(2, "replay.digest")).build()
    report = _verify(tmp_path, certificate)
    assert (report.status, report.check) == ("rejected run", "replay.digest")
    assert report.reason == "the run was rejected: replay.digest failed"
    assert report.numbers is None
    assert report.weights is None


def test_a_rejected_run_s_trainer_may_sign_or_not(tmp_path: Path) -> None:
    certificate = Synthetic(p=1.0, updates=5, fails=(1, "challenge.refused")).build()
    head = Checkpoint.parse((certificate.checkpoint or "").rpartition("\n\n")[0] + "\n")
    for note, status in (
        (sign_note(head.body, BROKER, TRAINER), "rejected run"),
        (sign_note(head.body, TRAINER), "invalid"),
        (sign_note(head.body, BROKER, BROKER), "invalid"),
    ):
        assert _verify(tmp_path, Certificate(certificate.tape, note)).status == status


@pytest.mark.parametrize("check", ["final.digest", "evaluation.value"])
def test_a_run_rejected_at_its_end(tmp_path: Path, check: str) -> None:
    def fail(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        if kind == "evaluation" and check == "evaluation.value":
            return {**fields, "checks": {check: False}}
        return (
            {**fields, "status": "rejected", "failed": check, "checks": {check: False}} if kind == "final" else fields
        )

    certificate = Synthetic(tamper=fail).build()
    report = _verify(tmp_path, certificate)
    assert (report.status, report.check) == ("rejected run", check)


def test_an_incomplete_run(tmp_path: Path) -> None:
    report = _verify(tmp_path, Synthetic(ends="cut").build())
    assert report.status == "incomplete"
    assert report.reason == "incomplete: verifies up to unit 3 (record 23), and there is no `final`"
    assert (report.verified_units, report.record, report.numbers) == (3, 23, None)


def test_a_run_that_stopped_at_its_failure(tmp_path: Path) -> None:
    certificate = Synthetic(p=1.0, updates=5, fails=(2, "replay.digest")).build()
    report = _verify(tmp_path, Certificate(joined(frames(certificate.tape)[:-1])))
    assert (report.status, report.check) == ("incomplete", "replay.digest")
    assert "replay.digest failed before it ended" in (report.reason or "")


def test_a_cut_certificate_says_that_it_was_cut(tmp_path: Path) -> None:
    whole, cut = Synthetic().build(), Synthetic(ends="cut").build()
    report = _verify(tmp_path, Certificate(cut.tape, whole.checkpoint, whole.statement))
    assert report.status == "incomplete"
    assert "its checkpoint is over 28 records, so the tape was cut" in (report.reason or "")
    garbled = _verify(tmp_path, Certificate(cut.tape, "nonsense", whole.statement))
    assert garbled.status == "incomplete"
    assert "signed note" in (garbled.reason or "")


def test_a_tape_alone_is_never_accepted(tmp_path: Path) -> None:
    certificate = Synthetic().build()
    for tape in (io.BytesIO(certificate.tape), certificate.write(tmp_path / "cert") / "tape"):
        report = verify(tape, pinned())
        assert (report.status, report.record) == ("invalid", len(certificate.records) - 1)
        assert "no closing head signs its end" in (report.reason or "")


@pytest.mark.parametrize("missing", ["checkpoint", "statement.json"])
def test_missing_files(tmp_path: Path, missing: str) -> None:
    folder = Synthetic().build().write(tmp_path / "cert")
    (folder / missing).unlink()
    report = verify(folder, pinned())
    assert report.status == "invalid"
    assert f"no file `{missing}`" in (report.reason or "")


def test_what_is_no_certificate(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such certificate"):
        verify(tmp_path / "nowhere", pinned())
    empty = verify(tmp_path, pinned())
    assert empty.status == "invalid"
    assert "no certificate here" in (empty.reason or "")
    text = tmp_path / "notes.txt"
    text.write_text("To whom it may concern: this run was honest.\n" * 50)
    report = verify(text, pinned())
    assert (report.status, report.record) == ("invalid", 0)
    assert "not a witbench tape" in (report.reason or "")
    text.write_bytes(b"")
    assert verify(text, pinned()).reason == "the tape is empty"


def test_a_newer_format_is_named(tmp_path: Path) -> None:
    report = _verify(tmp_path, Synthetic(genesis={"version": 1}).build_raw())
    assert report.record == 0
    assert "format version 1 is not the 0 that this witbench reads; use a newer witbench" in (report.reason or "")


@pytest.mark.parametrize("name", ["checkpoint", "statement"])
def test_files_that_are_too_long_or_no_text(tmp_path: Path, name: str) -> None:
    certificate = Synthetic().build()
    folder = certificate.write(tmp_path / "cert")
    path = folder / {"checkpoint": "checkpoint", "statement": "statement.json"}[name]
    for data, reason in ((bytes(200_000), "longer than"), (b"\xff\xfe", "not UTF-8")):
        path.write_bytes(data)
        assert reason in (verify(folder, pinned()).reason or "")


def test_every_byte_of_the_closing_files_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tape's own heads are the same each time; their signatures are verified once.
    monkeypatch.setattr(VerifyKey, "verify", lru_cache(64)(VerifyKey.verify))
    certificate = Synthetic(updates=1).build()
    folder, last = certificate.write(tmp_path / "cert"), len(certificate.records) - 1
    for name, text in (("checkpoint", certificate.checkpoint), ("statement.json", certificate.statement)):
        data = (text or "").encode()
        for at in range(len(data)):
            (folder / name).write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            report = verify(folder, pinned())
            assert (report.status, report.record) == ("invalid", last), (name, at)
        for changed in (data[:-1], data + b"\n", data + data, b""):
            (folder / name).write_bytes(changed)
            assert verify(folder, pinned()).status == "invalid"
        (folder / name).write_bytes(data)
    assert verify(folder, pinned()).accepted


def test_closing_files_of_another_run(tmp_path: Path) -> None:
    one, others = Synthetic().build(), (Synthetic(genesis={"init_seed": seed}).build() for seed in range(8, 40))
    other = next(each for each in others if len(each.records) == len(one.records))
    head = _verify(tmp_path, Certificate(one.tape, other.checkpoint, one.statement))
    assert "checkpoint: its root is not this log's" in (head.reason or "")
    statement = _verify(tmp_path, Certificate(one.tape, one.checkpoint, other.statement))
    assert "does not say what the tape says" in (statement.reason or "")


def test_the_weights_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(WEIGHTS)
    certificate = Synthetic().build()
    report = _verify(tmp_path, certificate, weights=path)
    assert report.accepted
    assert report.weights_checked
    assert "the given file is it" in transcript(report)
    path.write_bytes(WEIGHTS + b"x")
    swapped = _verify(tmp_path, certificate, weights=path)
    assert (swapped.status, swapped.check) == ("invalid", "weights.sha256")
    with pytest.raises(DataError, match="cannot be read"):
        _verify(tmp_path, certificate, weights=tmp_path / "missing")


def test_reports_are_json(tmp_path: Path) -> None:
    for options in ({}, {"ends": "cut"}, {"p": 0.0}, {"tolerance": "calibrated"}):
        report = _verify(tmp_path / str(len(options)), Synthetic(**options).build())  # type: ignore[arg-type]
        plain = json.loads(json.dumps(report.to_json()))
        assert plain["accepted"] is report.accepted
        assert plain["reason"] == report.reason


def test_the_allow_listed_procedure_has_no_blob(tmp_path: Path) -> None:
    def without(kind: str, fields: dict[str, Any]) -> dict[str, Any] | None:
        return None if kind == "blob" and fields["name"] == "procedure" else fields

    genesis = {"procedure_policy": "allow-listed", "procedure": digest("listed")}
    report = _verify(tmp_path, Synthetic(tamper=without, genesis=genesis).build())
    assert report.accepted
    assert "allow-list" in transcript(report)


def test_process_only_isolation_is_said(tmp_path: Path) -> None:
    def weaker(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "isolation": "process only"} if kind == "replay" and fields["unit"] == 3 else fields

    text = transcript(_verify(tmp_path, Synthetic(tamper=weaker).build()))
    assert "replay isolation     process only" in text


def _peak(units: int) -> int:
    certificate = Synthetic(updates=units, p=0.1, rewinds={units // 2: units // 2 - 3}, spare=9).build()
    tape = io.BytesIO(certificate.tape)
    tracemalloc.start()
    report = verify(tape, pinned())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.verified_units == units
    return peak


def test_memory_does_not_grow_with_the_tape() -> None:
    """Sixty times the records may cost a byte a unit and a few hashes more, but no list of anything.

    CPython's method cache keeps up to 4,096 of the names that cbor2 looks up, of at most 64 bytes, and fills while the
    long tape is read. A list of the leaf hashes alone would take three times that.
    """
    _peak(20)
    short, long = _peak(20), _peak(1200)
    assert long - short < 4096 * 64 + 1200


def test_the_verifier_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'numpy'): sys.modules[name] = None\n"
        "import witbench.protocol.verifier, witbench.protocol.transcript, witbench.protocol.runlog\n"
        "import witbench.protocol.policy, witbench.protocol.statement\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(p for p in sys.path if p)})


PARENTLESS = {"chain": "parentless"}


def _loose() -> Policy:
    return Policy(switches={name: tuple(choices(name)) for name in WITNESS})


def test_units_with_start_states_of_their_own(tmp_path: Path) -> None:
    """Only a policy that asks for nothing accepts them, and each must commit its start, once."""
    made = Synthetic(switched=PARENTLESS, p=1.0).build()
    assert _verify(tmp_path, made).check == "policy.switches"
    assert _verify(tmp_path, made, policy=_loose()).accepted
    for tamper, said in (
        (drop("start", unit=2), "comes before the unit's start state"),
        (edit("start", {"unit": 2}, unit=3), "unit 3 where 2 is due"),
    ):
        report = _verify(tmp_path, Synthetic(switched=PARENTLESS, tamper=tamper).build(), policy=_loose())
        assert said in (report.reason or ""), report.reason


def test_a_start_state_where_none_is_committed(tmp_path: Path) -> None:
    made = Synthetic(switched=PARENTLESS, genesis={"switches": Synthetic().build().records[0]["switches"]}).build()
    assert "comes where no unit commits its start state" in (_verify(tmp_path, made).reason or "")


def test_batches_in_any_order_need_no_check_of_it(tmp_path: Path) -> None:
    made = Synthetic(switched={"order": "free"}, p=1.0).build()
    assert _verify(tmp_path, made).check == "policy.switches"
    assert _verify(tmp_path, made, policy=_loose()).accepted
    assert not any("declare.order" in record.get("checks", {}) for record in made.records)
