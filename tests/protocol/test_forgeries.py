"""Lies that are chained, numbered and signed like the truth: only the check that they are about can catch them.

The forger of the tables holds every key, the broker's too, and everything after the lie is formed honestly anew; that
is how each check is shown to bite by itself. The forger at the end holds the trainer's key alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.synthetic import (
    BROKER,
    TRAINER,
    Certificate,
    Fields,
    Synthetic,
    Tamper,
    digest,
    drop,
    edit,
    honest,
    pinned,
    plus,
    rechained,
    without,
)
from witbench.protocol.encoding import encode, f64
from witbench.protocol.notes import Checkpoint, SigningKey, VerifyKey, sign_note
from witbench.protocol.records import CHUNK
from witbench.protocol.switches import WITNESS
from witbench.protocol.verifier import verify

ORIGIN = "witbench/run/test-run"
GROUPS = Synthetic().groups
NAN = float("nan")


@dataclass(frozen=True)
class Lie:
    """A lie and what the verifier must say: the kind of record at fault, and part of the reason."""

    kind: str
    reason: str
    tamper: Tamper = honest
    options: Fields | None = None
    made_by: type[Synthetic] = Synthetic


def _note(head: Callable[[Checkpoint], Checkpoint], *keys: SigningKey) -> Tamper:
    """Sign another head, or the right one by other keys, at unit 2."""
    count = 0

    def tamper(kind: str, fields: Fields) -> Fields:
        nonlocal count
        count += kind == "checkpoint"
        if kind != "checkpoint" or count != 2:
            return fields
        body = fields["note"].rpartition("\n\n")[0] + "\n"
        return {"note": sign_note(head(Checkpoint.parse(body)).body, *(keys or (BROKER, TRAINER)))}

    return tamper


def _zero(kind: str, fields: Fields) -> Fields:
    """A size with a leading zero, signed."""
    if kind != "checkpoint":
        return fields
    origin, size, root = fields["note"].splitlines()[:3]
    return {"note": sign_note(f"{origin}\n0{size}\n{root}\n", BROKER, TRAINER)}


def _sketched(**groups: Any) -> Tamper:
    return edit("sketch", {"unit": 2}, data=encode(groups))


SMALL_ORDER = VerifyKey("weak", bytes([1] + [0] * 31)).vkey
CALIBRATED: Fields = {"tolerance": "calibrated", "p": 1.0}
TAU = {group: f64(0.5) for group in GROUPS}
GENESIS = {
    "one key for both": ("same key", {"trainer_key": BROKER.vkey}, {}),
    "small-order broker key": ("small order", {"broker_key": SMALL_ORDER}, {}),
    "small-order trainer key": ("small order", {"trainer_key": SMALL_ORDER}, {}),
    "unknown switch choice": ("unknown", {"switches": {**WITNESS, "chain": "none"}}, {}),
    "a switch less": ("missing", {"switches": {"tolerance": "exact"}}, {}),
    "p above 1": ("at most 2^64", {"p": b"\xff" * 9}, {}),
    "no groups": ("no sketch group", {"groups": []}, {}),
    "too few reveals": ("fewer than the 76", {"reveals": 75}, {}),
    "loose exact sketch": (
        "recomputation tolerance",
        {"sketch": {"name": "rht", "config": "{}", "exact": True, "tolerance": f64(1.0)}},
        {},
    ),
    "sketch tolerance not a number": (
        "recomputation tolerance",
        {"sketch": {"name": "gaussian", "config": "{}", "exact": False, "tolerance": f64(NAN)}},
        {},
    ),
}


@pytest.mark.parametrize(("reason", "genesis", "options"), GENESIS.values(), ids=GENESIS.keys())
def test_lies_in_genesis(tmp_path: Path, reason: str, genesis: Fields, options: Fields) -> None:
    certificate = Synthetic(genesis=genesis, **options).build()
    report = verify(certificate.write(tmp_path / "cert"))
    assert (report.status, report.record) == ("invalid", 0)
    assert reason in (report.reason or "")


class Skips(Synthetic):
    """Leaves out the second reveal."""

    def _reveal(self) -> Fields:
        self.drawn += self.drawn == 1
        return super()._reveal()


class GoesOn(Synthetic):
    """Appends a record after `final`."""

    def _closed(self, status: str) -> Certificate:
        self.tape.append("rewind", boundary=0)
        return Certificate(self.tape.getvalue(), sign_note(self._head().body, BROKER, TRAINER))


class RewindsEarly(Synthetic):
    """Goes back while a challenge is open, and forgets it."""

    def _settle(self, unit: int) -> bool:
        if unit == 2 and 2 in self.open and self.count_rewinds == 0:
            self.open.clear()
            return True
        return super()._settle(unit)


class Breaks(Synthetic):
    """Tapes the verdict on unit 1 in the midst of unit 2, before the record of the kind in `before`."""

    before = ""

    def _append(self, kind: str, **fields: Any) -> None:
        late = kind != "declare" or fields["t"] % self.unit > 0
        if kind == self.before and 2 in (fields.get("unit"), fields.get("boundary")) and late:
            self._settle(1)
        super()._append(kind, **fields)


LIES: dict[str, Lie] = {
    # blobs and S_0
    "another config": Lie("blob", "not the one that genesis names", edit("blob", {"name": "config"}, data=b"{}")),
    "another procedure": Lie("blob", "not the one that genesis names", edit("blob", {"name": "procedure"}, data=b"x")),
    "blobs in another order": Lie(
        "blob", "blob procedure where config", edit("blob", {"name": "config"}, name="procedure")
    ),
    "blob left out": Lie("blob", "blob procedure where manifest", drop("blob", name="manifest")),
    "last blob left out": Lie("commit", "where blob is due", drop("blob", name="procedure")),
    "blob part numbered wrong": Lie("blob", "part 1 of 2 where part 0", edit("blob", part=1, parts=2)),
    "another boundary of S_0": Lie("commit", "boundary 1 where 0", edit("commit", {"boundary": 0}, boundary=1)),
    "S_0 not checked": Lie("declare", "where replay is due", drop("replay", unit=0)),
    "S_0 without init.digest": Lie("replay", "without init.digest", edit("replay", {"unit": 0}, checks={})),
    "S_0 with distances": Lie("replay", "distances", edit("replay", {"unit": 0}, distances=TAU)),
    "S_0 with a yardstick": Lie("replay", "yardstick", edit("replay", {"unit": 0}, yardstick=TAU)),
    "verdict on another unit for S_0": Lie("replay", "unit 1 where 0", edit("replay", {"unit": 0}, unit=1)),
    # DECLARE and COMMIT
    "declares another unit": Lie("declare", "unit 3 where 2", edit("declare", {"unit": 2}, unit=3)),
    "declares another update": Lie("declare", "update 7 where 1", edit("declare", {"unit": 2}, t=7)),
    "declares an update twice": Lie(
        "declare", "update 2 where 3", edit("declare", {"t": 3}, t=2), {"updates": 4, "unit": 2}
    ),
    "an update undeclared": Lie("commit", "where declare or", drop("declare", t=3), {"updates": 4, "unit": 2}),
    "commits another boundary": Lie("commit", "boundary 5 where 2", edit("commit", {"boundary": 2}, boundary=5)),
    "no COMMIT": Lie("key", "where commit or", drop("commit", boundary=2)),
    "a unit too many": Lie(
        "declare", "after the last unit", options={"p": 1.0, "updates": 4, "genesis": {"updates": 3}}
    ),
    # KEY and COIN
    "a reveal made up": Lie("key", "does not hash", edit("key", {"unit": 2}, reveal=digest("made up"))),
    "a reveal used twice": Lie("key", "used before", edit("key", {"unit": 2}, number=2)),
    "a reveal renumbered": Lie("key", "reveal 4 where reveal 3", edit("key", {"unit": 2}, number=4)),
    "a reveal left out": Lie("coin", "reveal 3 where reveal 2", made_by=Skips),
    "a coin's reveal made up": Lie("coin", "does not hash", edit("coin", {"unit": 2}, reveal=digest("made up"))),
    "a key for another unit": Lie("key", "unit 3 where 2", edit("key", {"unit": 2}, unit=3)),
    "a coin for another unit": Lie("coin", "unit 3 where 2", edit("coin", {"unit": 2}, unit=3)),
    "no KEY": Lie("sketch", "where key or", drop("key", unit=2)),
    "no COIN": Lie("checkpoint", "where coin or", drop("coin", unit=2)),
    "a challenge called off": Lie("coin", "is challenged", edit("coin", {"unit": 2}, challenged=False), {"p": 1.0}),
    "a challenge made up": Lie("coin", "is not challenged", edit("coin", {"unit": 2}, challenged=True), {"p": 0.01}),
    "the last unit unchallenged": Lie(
        "coin", "is challenged", edit("coin", {"unit": 3}, challenged=False), {"p": 0.01}
    ),
    # SKETCH
    "a sketch for another unit": Lie("sketch", "unit 3 where 2", edit("sketch", {"unit": 2}, unit=3)),
    "no SKETCH": Lie("coin", "where sketch or", drop("sketch", unit=2)),
    "a group unsketched": Lie("sketch", "groups are not those", _sketched(**{GROUPS[0]: ["int64", bytes(32)]})),
    "a group too many": Lie(
        "sketch", "groups are not those", _sketched(**{g: ["int64", bytes(32)] for g in (*GROUPS, "another")})
    ),
    "a sketch of another dtype": Lie("sketch", "another form", _sketched(**{g: ["int32", bytes(32)] for g in GROUPS})),
    "a shorter sketch": Lie("sketch", "another form", _sketched(**{g: ["int64", bytes(16)] for g in GROUPS})),
    "an empty sketch": Lie("sketch", "not a dtype and its bytes", _sketched(**{g: ["int64", b""] for g in GROUPS})),
    "a sketch of no form": Lie("sketch", "not a dtype and its bytes", _sketched(**{g: bytes(32) for g in GROUPS})),
    "a sketch that is no CBOR": Lie("sketch", "not canonical CBOR", edit("sketch", {"unit": 2}, data=b"\xff" * 40)),
    "a short first part": Lie(
        "sketch",
        "a part of 100 bytes",
        edit("sketch", {"unit": 2, "part": 0}, data=lambda fields: fields["data"][:100]),
        {"sketch_size": 50_000},
    ),
    "a part left out": Lie(
        "sketch", "where part 0 of 3 is due", drop("sketch", unit=2, part=0), {"sketch_size": CHUNK + 64}
    ),
    "parts recounted": Lie(
        "sketch", "part 1 of 9 where", edit("sketch", {"unit": 2, "part": 1}, parts=9), {"sketch_size": 50_000}
    ),
    # heads
    "no head": Lie("declare", "where checkpoint is due", drop("checkpoint")),
    "a head of another run": Lie(
        "checkpoint", "origin", _note(lambda head: Checkpoint("witbench/run/x", head.size, head.root))
    ),
    "a head of another size": Lie(
        "checkpoint", "size", _note(lambda head: Checkpoint(ORIGIN, head.size - 1, head.root))
    ),
    "a head of another root": Lie("checkpoint", "root", _note(lambda head: Checkpoint(ORIGIN, head.size, bytes(32)))),
    "a size with a leading zero": Lie("checkpoint", "leading zeros", _zero),
    "a head without the broker": Lie("checkpoint", "must be signed by", _note(lambda head: head, TRAINER)),
    "a head without the trainer": Lie("checkpoint", "must be signed by", _note(lambda head: head, BROKER)),
    # REPLAY
    "no verdict on a challenge": Lie("declare", "unit 1 is overdue", drop("replay", unit=1), {"p": 1.0, "updates": 4}),
    "no verdict on the last unit": Lie("evaluation", "unit 3 is still open", drop("replay", unit=3)),
    "no verdict, nothing shown": Lie(
        "final", "unit 3 is still open", drop("replay", unit=3), {"shows_evaluation": False}
    ),
    "a verdict too early": Lie(
        "declare", "before its place", options={"p": 1.0, "updates": 5, "lag": 0, "genesis": {"lag": 2}}
    ),
    "a verdict too late": Lie(
        "declare", "is overdue", options={"p": 1.0, "updates": 5, "lag": 2, "genesis": {"lag": 0}}
    ),
    "a verdict on an unchallenged unit": Lie(
        "replay", "verdict on unit 2 where that of unit 3", edit("replay", {"unit": 3}, unit=2), {"p": 0.01}
    ),
    "passed with a failed check": Lie(
        "replay",
        "in which open.leaf failed",
        edit("replay", {"unit": 3}, checks=plus("checks", **{"open.leaf": False})),
    ),
    "passed with an unknown failed check": Lie(
        "replay", "in which other failed", edit("replay", {"unit": 3}, checks=plus("checks", other=False))
    ),
    "passed that names a failure": Lie("replay", "names open.leaf", edit("replay", {"unit": 3}, failed="open.leaf")),
    "failed without a name": Lie("replay", "does not name", edit("replay", {"unit": 3}, verdict="failed")),
    "failed that names a passed check": Lie(
        "replay", "does not name", edit("replay", {"unit": 3}, verdict="failed", failed="open.leaf")
    ),
    "goes on after a failure": Lie(
        "evaluation",
        "where final is due",
        edit("replay", {"unit": 3}, verdict="failed", failed="x", checks=plus("checks", x=False)),
    ),
    "no attempt": Lie("replay", "0 attempts", edit("replay", {"unit": 3}, attempts=0)),
    "too many attempts": Lie("replay", "4 attempts", edit("replay", {"unit": 3}, attempts=4)),
    "digest check false in exact": Lie(
        "replay", "replay.digest failed", edit("replay", {"unit": 3}, checks=plus("checks", **{"replay.digest": False}))
    ),
    "no distances": Lie("replay", "groups of its distances", edit("replay", {"unit": 3}, distances={})),
    "no yardstick": Lie("replay", "groups of its yardstick", edit("replay", {"unit": 3}, yardstick={})),
    "a distance above tau": Lie(
        "replay",
        "replay.distance is taped as passed",
        edit("replay", {"unit": 2}, distances=plus("distances", **{GROUPS[1]: f64(0.50001)})),
        CALIBRATED,
    ),
    "a distance that is no number": Lie(
        "replay",
        "replay.distance is taped as passed",
        edit("replay", {"unit": 2}, distances=plus("distances", **{GROUPS[1]: f64(NAN)})),
        CALIBRATED,
    ),
    # rewinds
    "a rewind past an open challenge": Lie(
        "rewind", "unit 1 is still open", options={"p": 1.0, "rewinds": {2: 1}, "spare": 4}, made_by=RewindsEarly
    ),
    "a rewind into the future": Lie(
        "rewind", "boundary 9 was not reached", edit("rewind", boundary=9), {"rewinds": {2: 1}, "spare": 4}
    ),
    # evaluation and end
    "another evaluation set": Lie("evaluation", "evaluation set", edit("evaluation", set=digest("easy"))),
    "an evaluation without a set": Lie("evaluation", "evaluation set", options={"genesis": {"evaluation_root": None}}),
    "an evaluation of another state": Lie("evaluation", "boundary 2 where 3", edit("evaluation", boundary=2)),
    "an evaluation that was not re-run": Lie("evaluation", "without evaluation.value", edit("evaluation", checks={})),
    "goes on after a failed evaluation": Lie(
        "final", "evaluation.value failed", edit("evaluation", checks={"evaluation.value": False})
    ),
    "another number of units": Lie("final", "units 2 where 3", edit("final", units=2)),
    "another boundary": Lie("final", "boundary 2 where 3", edit("final", boundary=2)),
    "a rewind uncounted": Lie("final", "rewinds 0 where 1", edit("final", rewinds=0), {"rewinds": {2: 1}, "spare": 4}),
    "a final state that was not committed": Lie("final", "not the one committed", edit("final", state=digest("other"))),
    "a final exact part that was not committed": Lie(
        "final", "not the one committed", edit("final", exact=digest("other"))
    ),
    "complete with a failed check": Lie("final", "in which x failed", edit("final", checks=plus("checks", x=False))),
    "complete that names a failure": Lie("final", "names x as failed", edit("final", failed="x")),
    "rejected without a name": Lie("final", "does not name", edit("final", status="rejected")),
    "complete before its end": Lie(
        "final", "boundary 3 where 5", options={"p": 1.0, "genesis": {"updates": 5}, "spare": 2}
    ),
    "a record after final": Lie("rewind", "where nothing is due", made_by=GoesOn),
}


def _check(folder: Path, certificate: Certificate, kind: str, reason: str) -> None:
    report = verify(certificate.write(folder / "cert"), pinned())
    assert report.status == "invalid"
    assert reason in (report.reason or ""), report.reason
    assert report.record is not None
    assert certificate.records[report.record]["kind"] == kind, (report.record, report.reason)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_lies(tmp_path: Path, lie: Lie) -> None:
    certificate = lie.made_by(tamper=lie.tamper, **(lie.options or {})).build()
    _check(tmp_path, certificate, lie.kind, lie.reason)


@pytest.mark.parametrize("before", ["declare", "commit", "key", "sketch", "coin"])
def test_no_verdict_within_a_unit(tmp_path: Path, before: str) -> None:
    run = Breaks(p=1.0, lag=5, unit=2, updates=6)
    run.before = before
    _check(tmp_path, run.build(), before, "the verdict on unit 1 is out of place")


SWITCHED = {"exact": {}, "calibrated": CALIBRATED, "both": {**CALIBRATED, "opening": "both"}}


@pytest.mark.parametrize("options", SWITCHED.values(), ids=SWITCHED.keys())
@pytest.mark.parametrize("unit", [1, 3])
def test_no_check_of_a_verdict_may_be_missing(tmp_path: Path, options: Fields, unit: int) -> None:
    options = {**options, "p": 1.0}
    honest = Synthetic(**options)
    honest.build()
    for number, check in enumerate(honest.switches.replay_checks(unit)):
        lie = edit("replay", {"unit": unit}, checks=without("checks", check))
        _check(tmp_path / str(number), Synthetic(tamper=lie, **options).build(), "replay", f"without {check}")


@pytest.mark.parametrize("check", ["final.digest", "final.sketch", "final.weights"])
def test_no_check_of_the_end_may_be_missing(tmp_path: Path, check: str) -> None:
    lie = edit("final", checks=without("checks", check))
    _check(tmp_path, Synthetic(tamper=lie).build(), "final", f"without {check}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"boundary": 1}, "boundary 1 where 3"),
        ({"units": 1}, "units 1 where 3"),
        ({"rewinds": 1}, "rewinds 1 where 0"),
        ({"state": digest("other")}, "not the one committed"),
        ({"status": "complete"}, "replay.digest failed"),
    ],
)
def test_a_rejected_run_is_held_to_its_tape_too(tmp_path: Path, change: Fields, reason: str) -> None:
    certificate = Synthetic(p=1.0, updates=5, fails=(2, "replay.digest"), tamper=edit("final", **change)).build()
    _check(tmp_path, certificate, "final", reason)


def test_a_rejected_run_names_the_check_that_failed(tmp_path: Path) -> None:
    lie = edit("final", failed="open.leaf", checks={"open.leaf": False})
    certificate = Synthetic(p=1.0, fails=(2, "replay.digest"), tamper=lie).build()
    _check(tmp_path, certificate, "final", "failed check open.leaf where replay.digest")


def test_reveals_may_be_lost_in_a_crash_before_a_rewind(tmp_path: Path) -> None:
    class Crashes(Synthetic):
        def _append(self, kind: str, **fields: Any) -> None:
            super()._append(kind, **fields)
            self.drawn += 2 * (kind == "rewind")

    certificate = Crashes(rewinds={2: 1}, spare=6).build()
    assert verify(certificate.write(tmp_path / "cert"), pinned()).accepted


# -- the forger who holds the trainer's key, and not the broker's


def _dropped_unit(records: list[Fields]) -> list[Fields]:
    return [record for record in records if record.get("unit") != 2 and record.get("boundary") != 2]


def _unchallenged(records: list[Fields]) -> list[Fields]:
    kept = [record for record in records if record["kind"] != "replay" or record["unit"] != 1]
    return [{**r, "challenged": False} if r["kind"] == "coin" and r["unit"] == 1 else r for r in kept]


FORGERIES: dict[str, Callable[[list[Fields]], list[Fields]]] = {
    "nothing but other data": lambda records: [
        {**r, "root": digest("other")} if r["kind"] == "declare" and r["unit"] == 3 else r for r in records
    ],
    "another final state": lambda records: [
        {**r, "weights": digest("other")} if r["kind"] == "final" else r for r in records
    ],
    "a unit left out": _dropped_unit,
    "a challenge called off": _unchallenged,
    "a rewind hidden": lambda records: [r for r in records if r["kind"] != "rewind"],
    "genesis changed": lambda records: [{**r, "attempt": 9} if r["kind"] == "genesis" else r for r in records],
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forger_without_the_broker_s_key(tmp_path: Path, forge: Callable[[list[Fields]], list[Fields]]) -> None:
    """Numbers, links and the trainer's own signatures are patched; the broker's are the old ones."""
    certificate = Synthetic(updates=4, p=1.0, rewinds={3: 2}, spare=4).build()
    tape = rechained(forge(certificate.records), resign=TRAINER)
    forged = Certificate(tape, certificate.checkpoint, certificate.statement)
    report = verify(forged.write(tmp_path / "cert"), pinned())
    assert report.status == "invalid"
    assert report.reason
    assert report.record is not None


def test_rechaining_nothing_changes_nothing() -> None:
    certificate = Synthetic(updates=4, rewinds={3: 2}, spare=4).build()
    assert rechained(certificate.records, resign=TRAINER) == certificate.tape
