"""What tau follows from, on distances made up by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from witbench.calibration.honest import manifest_of
from witbench.calibration.measure import Distance, Evaluated, Measured
from witbench.calibration.result import calibration, held_out, taus
from witbench.config import RunConfig
from witbench.kernels.manifest import group_names
from witbench.protocol.tau import AFTER, WARMUP
from witbench.registry import SKETCHES, build

FLOOR = {"g": 1e-9, "h": 1e-8}


def run(seed: int, *distances: tuple[str, float, float], token: float = 1.0) -> Measured:
    rows = tuple(Distance(phase, "order", seed, 2, {"g": g, "h": h}) for phase, g, h in distances)
    changed = (Distance(AFTER, "one token", seed, 2, {"g": token, "h": token}),)
    return Measured(seed, rows, changed, FLOOR, {"loss": Evaluated(4.0, 0.0)})


def test_tau_is_the_factor_times_the_largest_or_the_floor() -> None:
    largest = {WARMUP: {"g": 3e-7, "h": 0.0}, AFTER: {"g": 2e-9, "h": 1e-9}}
    assert taus(largest, FLOOR, 10.0, WARMUP) == pytest.approx({"g": 3e-6, "h": 1e-7})
    assert taus(largest, FLOOR, 10.0, AFTER) == pytest.approx({"g": 2e-8, "h": 1e-7})


def test_a_phase_without_units_has_the_tau_of_the_other() -> None:
    largest: dict[str, dict[str, float]] = {WARMUP: {"g": 3e-7, "h": 0.0}, AFTER: {}}
    assert taus(largest, FLOOR, 10.0, AFTER) == taus(largest, FLOOR, 10.0, WARMUP)


def test_a_run_is_judged_by_the_others() -> None:
    calm = [run(seed, (AFTER, 1e-8, 1e-8), (AFTER, 2e-8, 1e-8)) for seed in range(3)]
    assert (held_out(calm, FLOOR, 10.0)["rejected"], held_out(calm, FLOOR, 10.0)["of"]) == (0, 6)
    wild = [*calm, run(3, (AFTER, 2e-7, 1e-8), (AFTER, 2.1e-7, 1e-8))]
    found = held_out(wild, FLOOR, 10.0)
    assert (found["rejected"], found["of"]) == (1, 8), "ten times what the others show is enough, a little more is not"
    assert found["at_most"] == pytest.approx(0.4707, abs=1e-3)
    assert held_out(calm[:1], FLOOR, 10.0)["at_most"] == 1.0


def full(config: RunConfig, distance: float, rounding: float, **design: Any) -> dict[str, Any]:
    groups = group_names(manifest_of(config))
    same = dict.fromkeys(groups, distance)
    rows = tuple(Distance(phase, "order", 0, unit, same) for phase, unit in ((WARMUP, 1), (AFTER, 2)))
    measured = Measured(0, rows, (), dict.fromkeys(groups, rounding), {"loss": Evaluated(4.0, 1e-9)})
    sketch = build(SKETCHES, design.pop("name", "rht"), design)
    return calibration(config, manifest_of(config), sketch, 10.0, [measured], {})


def test_no_tau_is_zero(config: RunConfig) -> None:
    """The grid's own step is the least floor, the sketch's recomputation tolerance another one."""
    still = full(config, 0.0, 0.0)
    assert still["tau"][AFTER]["norm/parameter"] == 10 * 2.0**-40
    assert still["tau"][AFTER]["norm/exp_avg"] == 10 * 2.0**-44
    rounded = full(config, 0.0, 1e-7)
    assert set(rounded["tau"][WARMUP].values()) == {10 * 1e-7}
    recomputed = full(config, 0.0, 0.0, name="gaussian", k=16, recompute_tolerance=1e-9)
    assert set(recomputed["tau"][AFTER].values()) == {10 * 1e-9}
    assert still["evaluation_tau"]["loss"] == pytest.approx(10 * 4 * 2.0**-23)
    assert all(math.isfinite(value) for value in still["floor"].values())
