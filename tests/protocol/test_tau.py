"""Tolerances by unit."""

from __future__ import annotations

import pytest

from witbench.protocol.tau import Tau

TAU = Tau({"g": 1.0, "h": 2.0}, {"g": 10.0, "h": 20.0}, 3, {"loss": 0.5})


def test_a_unit_has_the_tolerances_of_its_phase() -> None:
    assert [TAU.of(unit)["g"] for unit in (1, 3, 4, 1000)] == [10.0, 10.0, 1.0, 1.0]
    assert [Tau({"g": 1.0}).of(unit) for unit in (1, 9)] == [{"g": 1.0}] * 2
    assert Tau().of(1) == {}
    assert TAU.phases() == {"warmup": {"g": 10.0, "h": 20.0}, "after": {"g": 1.0, "h": 2.0}}


def test_totals() -> None:
    assert TAU.total(2) == {"g": 20.0, "h": 40.0}
    assert TAU.total(5) == {"g": 32.0, "h": 64.0}
    assert Tau().total(5) == {}


@pytest.mark.parametrize(
    ("tau", "trouble"),
    [
        (TAU, None),
        (Tau(), None),
        (Tau({"g": 0.0}), None),
        (Tau({"g": 1.0}, {}, 1), "units and tolerances"),
        (Tau({"g": 1.0}, {"g": 1.0}, 0), "units and tolerances"),
        (Tau({"g": 1.0}, {"h": 1.0}, 1), "different groups"),
        (Tau({"g": -1.0}), "negative"),
        (Tau({"g": float("nan")}), "not finite"),
        (Tau({"g": 1.0}, {"g": float("inf")}, 1), "not finite"),
        (Tau({"g": 1.0}, evaluation={"loss": float("nan")}), "not finite"),
    ],
)
def test_what_makes_no_sense(tau: Tau, trouble: str | None) -> None:
    assert (tau.trouble() is None) == (trouble is None)
    assert (trouble or "") in (tau.trouble() or "")
