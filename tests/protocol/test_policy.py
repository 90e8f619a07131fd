"""Policies and pinned keys: what they refuse, and what is no policy."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.protocol.synthetic import BROKER
from witbench.errors import ConfigError
from witbench.protocol.policy import Policy, PolicyError, load_trust
from witbench.protocol.switches import WITNESS, Switches, coin_threshold

REFERENCE = Switches.from_names(WITNESS)


def test_p_just_enough_and_just_not() -> None:
    Policy().check_terms(REFERENCE, coin_threshold(0.01))
    with pytest.raises(PolicyError, match=r"below the policy's 0\.01") as caught:
        Policy().check_terms(REFERENCE, coin_threshold(0.01) - 1)
    assert (caught.value.check, caught.value.record) == ("policy.p", 0)


def test_only_reference_switches() -> None:
    for changes in ({"opening": "both"}, {"tolerance": "exact"}):
        Policy().check_terms(Switches.from_names({**WITNESS, **changes}), 2**64)
    with pytest.raises(PolicyError, match="tolerance is fixed") as caught:
        Policy().check_terms(Switches.from_names({**WITNESS, "tolerance": "fixed"}), 2**64)
    assert caught.value.check == "policy.switches"


@pytest.mark.parametrize(
    ("tau", "token", "accepted"),
    [
        ({"g": 1.0}, {"g": 10.0}, True),
        ({"g": 1.0001}, {"g": 10.0}, False),
        ({"g": 5.0, "h": 0.01}, {"g": 10.0, "h": 0.2}, True),
        ({"g": 1.0}, {"g": math.nan}, False),
        ({"g": 1.0}, {"g": 0.0}, False),
        ({"g": 1.0, "constant": 0.0}, {"g": 9.0, "constant": 0.0}, False),
        ({"g": 1.0}, {"g": -100.0}, False),
    ],
)
def test_tau_against_one_token(tau: dict[str, float], token: dict[str, float], accepted: bool) -> None:
    if accepted:
        Policy().check_tau(tau, token, 3, 40)
        return
    with pytest.raises(PolicyError, match="unit 3: tau") as caught:
        Policy().check_tau(tau, token, 3, 40)
    assert (caught.value.check, caught.value.record) == ("policy.tau", 40)


def test_a_policy_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"p": 0.05, "switches": {"tolerance": ["fixed"]}}))
    policy = Policy.load(path)
    assert (policy.p, policy.tau_over_token, policy.switches["tolerance"]) == (0.05, 0.1, ("fixed",))
    assert policy.switches["opening"] == ("both", "start")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not json", "not a readable JSON file"),
        ("[" * 100_000, "not a readable JSON file"),
        ("[]", "must be an object"),
        ('{"q": 1}', "keys among p, tau_over_token, switches"),
        ('{"p": "1%"}', "p must be a number"),
        ('{"p": true}', "p must be a number"),
        ('{"p": 2}', r"policy.p must be in \[0, 1\]"),
        ('{"p": NaN}', r"policy.p must be in \[0, 1\]"),
        ('{"tau_over_token": -1}', "must not be negative"),
        ('{"switches": []}', "must map each switch"),
        ('{"switches": {"tolerance": "exact"}}', "must map each switch"),
        ('{"switches": {"tolerance": ["exakt"]}}', "unknown exakt; there are calibrated, exact, fixed"),
        ('{"switches": {"colour": ["red"]}}', "must name each of"),
    ],
)
def test_what_is_no_policy(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "policy.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        Policy.load(path)


def test_a_pinned_key(tmp_path: Path) -> None:
    path = tmp_path / "broker.vkey"
    path.write_text(BROKER.vkey + "\n")
    assert load_trust(path) == BROKER.public_key
    path.write_text("nonsense")
    with pytest.raises(ConfigError, match="not a broker key"):
        load_trust(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_trust(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_trust(tmp_path / "missing")
