"""Tolerances on a tape: a genesis whose tau makes no sense, and verdicts and policies that go by the unit's phase."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.protocol.synthetic import Fields, Synthetic, edit, pinned, plus
from witbench.protocol.encoding import f64
from witbench.protocol.policy import Policy
from witbench.protocol.verifier import verify

GROUPS = Synthetic().groups
NAN = float("nan")
CALIBRATED: Fields = {"tolerance": "calibrated", "p": 1.0}
TAU = {group: f64(0.5) for group in GROUPS}


def _taus(**changes: Any) -> Fields:
    """The tau of genesis, one value of the phase after warm-up changed or left out."""
    after = {**TAU, **changes}
    return {"tau": {"warmup": TAU, "after": {group: value for group, value in after.items() if value is not None}}}


NO_TAU: Fields = {"tau": {"warmup": {}, "after": {}}}

GENESIS = {
    "tau in exact": ("needs a tau for no group", {"tau": {"warmup": {}, "after": TAU}}, {}),
    "no tau in calibrated": ("needs a tau for every group", NO_TAU, CALIBRATED),
    "tau of a group missing": ("needs a tau for every", _taus(**{GROUPS[1]: None}), CALIBRATED),
    "tau not a number": ("not finite", _taus(**{GROUPS[0]: f64(NAN)}), CALIBRATED),
    "tau infinite": ("not finite", _taus(**{GROUPS[0]: f64(float("inf"))}), CALIBRATED),
    "tau negative": ("negative", _taus(**{GROUPS[0]: f64(-1.0)}), CALIBRATED),
    "no tau in warm-up": ("units and tolerances", {"tau": {"warmup": {}, "after": TAU}}, CALIBRATED),
    "other groups in warm-up": (
        "different groups",
        {"tau": {"warmup": {GROUPS[0]: f64(0.5)}, "after": TAU}},
        CALIBRATED,
    ),
    "warm-up not a number": ("not finite", {"tau": {"warmup": {**TAU, GROUPS[1]: f64(NAN)}, "after": TAU}}, CALIBRATED),
    "a longer warm-up": ("a warm-up phase of 2 units where 1 are due", {"warmup": 2}, CALIBRATED),
    "no warm-up": ("where 1 are due", {"warmup": 0, "tau": {"warmup": {}, "after": TAU}}, CALIBRATED),
    "a warm-up in fixed": (
        "where 0 are due",
        {"warmup": 1, "tau": {"warmup": TAU, "after": TAU}},
        {"tolerance": "fixed"},
    ),
    "a tolerance for evaluations in exact": ("none for evaluations", {"evaluation_tau": {"loss": f64(1.0)}}, {}),
    "an evaluation's tolerance not a number": ("not finite", {"evaluation_tau": {"loss": f64(NAN)}}, CALIBRATED),
    "no calibration": ("needs calibration", {"calibration": None}, CALIBRATED),
    "calibration in exact": ("has no calibration", {"calibration": bytes(32)}, {}),
}


@pytest.mark.parametrize(("reason", "genesis", "options"), GENESIS.values(), ids=GENESIS.keys())
def test_lies_in_genesis(tmp_path: Path, reason: str, genesis: Fields, options: Fields) -> None:
    certificate = Synthetic(genesis=genesis, **options).build()
    report = verify(certificate.write(tmp_path / "cert"))
    assert (report.status, report.record) == ("invalid", 0)
    assert reason in (report.reason or "")


def test_a_huge_tau(tmp_path: Path) -> None:
    """Sound, but one token's distance would pass: the policy refuses it at the first verdict."""
    certificate = Synthetic(genesis=_taus(**{group: f64(1e4) for group in GROUPS}), **CALIBRATED).build()
    report = verify(certificate.write(tmp_path / "cert"), pinned())
    assert (report.status, report.check) == ("invalid", "policy.tau")
    assert report.record is not None
    assert certificate.records[report.record]["kind"] == "replay"
    lenient = Policy(tau_over_token=float("inf"))
    assert verify(tmp_path / "cert", pinned(), lenient).accepted


def test_a_huge_tau_in_warm_up_alone(tmp_path: Path) -> None:
    """The warm-up's own tau is held against one token, too: its name excuses nothing."""
    loose = {"tau": {"warmup": {group: f64(1e4) for group in GROUPS}, "after": TAU}}
    certificate = Synthetic(genesis=loose, **CALIBRATED).build()
    report = verify(certificate.write(tmp_path / "cert"), pinned())
    assert (report.status, report.check) == ("invalid", "policy.tau")
    assert report.record is not None
    assert certificate.records[report.record]["unit"] == 1


@pytest.mark.parametrize(("unit", "accepted"), [(1, True), (2, False)])
def test_each_phase_has_its_own_tau(tmp_path: Path, unit: int, accepted: bool) -> None:
    between = edit("replay", {"unit": unit}, distances=plus("distances", **{GROUPS[1]: f64(0.75)}))
    report = verify(Synthetic(tamper=between, **CALIBRATED).build().write(tmp_path / "cert"), pinned())
    assert report.accepted == accepted, report.reason


def test_one_tight_group_is_enough_and_exact_needs_none(tmp_path: Path) -> None:
    tight = Synthetic(genesis=_taus(**{GROUPS[0]: f64(1.0), GROUPS[1]: f64(1e4)}), **CALIBRATED).build()
    assert verify(tight.write(tmp_path / "tight"), pinned()).accepted
    still = edit("replay", {"unit": 3}, yardstick={group: f64(0.0) for group in GROUPS})
    assert verify(Synthetic(tamper=still).build().write(tmp_path / "exact"), pinned()).accepted
