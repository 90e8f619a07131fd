"""The transcript says what the report says, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.protocol.synthetic import WEIGHTS, Synthetic, digest, pinned
from witbench.protocol.transcript import transcript
from witbench.protocol.verifier import verify


def _transcript(folder: Path, trusted: bool = True, **options: Any) -> str:
    certificate = Synthetic(**options).build()
    return transcript(verify(certificate.write(folder / "cert"), pinned() if trusted else None))


def test_an_accepted_run(tmp_path: Path) -> None:
    text = _transcript(tmp_path, p=1.0, updates=12, genesis={"attempt": 2})
    lines = text.splitlines()
    assert lines[0] == "ACCEPTED"
    for line in (
        "  run id               test-run (attempt 2 at this job, 1 of this trainer)",
        f"  dataset root         {digest('data').hex()} (4,096 tokens)",
        "  plan                 12 updates in 12 units of 1",
        "  p                    1 a unit, the last unit always",
        "  tolerance            exact",
        "  units                12 (12 updates, 12,288 tokens)",
        "  challenged           12, all passed: 11 by coin, and the last unit",
        "  longest unchecked    0 units",
        "  attempts             2",
        "  failing units        with 99% confidence at most 38.22% of units would fail replay",
        "  1 touched unit       caught with 100.0000%, at worst",
        "  10 touched units     caught with 100.0000%, at worst",
        "  uncertified drift    none: replays are held to the committed bits",
        "  loss                 2.5 (re-run by the prover)",
        "  a broker that colludes with the trainer",
    ):
        assert line in lines
    assert WEIGHTS.decode() not in text


def test_drift_is_stated_as_a_lower_bound(tmp_path: Path) -> None:
    text = _transcript(tmp_path, p=1.0, updates=4, tolerance="calibrated")
    # One warm-up unit with a tau of 1, three units with 0.5.
    assert "2.5 in head/parameter, first order: sum of tau over the units x Lambda," in text
    assert f"calibrated, the first 1 unit apart (calibration {digest('calibration').hex()})" in text
    assert "a lower bound with Lambda = 1 (not measured)" in text


@pytest.mark.parametrize(
    ("options", "trusted", "first"),
    [
        ({}, False, "NOT ACCEPTED: self-certified: no security against the trainer"),
        ({"ends": "cut"}, True, "REJECTED: incomplete: verifies up to unit 3 (record 23)"),
        ({"p": 0.0}, True, "REJECTED: p = 0 is below the policy's 0.01"),
        ({"p": 1.0, "fails": (2, "open.root")}, True, "REJECTED: the run was rejected: open.root failed"),
        ({"genesis": {"groups": []}}, True, "REJECTED: genesis: there is no sketch group"),
    ],
)
def test_what_is_not_accepted(tmp_path: Path, options: dict[str, Any], trusted: bool, first: str) -> None:
    text = _transcript(tmp_path, trusted, **options)
    assert text.startswith(first)
    assert text.endswith("\n")
    if trusted:
        assert "at record" in text
        assert "Proved" not in text
