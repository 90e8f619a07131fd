"""The check judges honest units on other seeds, and says what it does not show."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from witbench.calibration.check import check, passed, sidecar
from witbench.calibration.run import Calibrated
from witbench.errors import ConfigError
from witbench.protocol.tau import AFTER, WARMUP

from .conftest import silent


@pytest.fixture
def copied(calibrated: Calibrated, tmp_path: Path) -> Path:
    return Path(shutil.copy(calibrated.path, tmp_path / "tau.json"))


def edited(path: Path, factor: float) -> Path:
    """The calibration with every tau scaled."""
    fields = json.loads(path.read_text())
    for tau in fields["tau"].values():
        tau.update({group: value * factor for group, value in tau.items()})
    path.write_text(json.dumps(fields))
    return path


def test_honest_units_pass_and_tokens_do_not(copied: Path) -> None:
    result = check(copied, 64, None, 1e-3, 1, silent)
    assert passed(result)
    assert json.loads(sidecar(copied).read_text()) == json.loads(json.dumps(result))
    assert result["replays"] == 70, "six first units, and four units of each of sixteen runs"
    assert result["seeds"] == [24, 45], "the calibration has 0 to 23"
    assert result["first_units"]["replays"] >= 6
    assert set(result["numerics"]) == {
        "threads=2",
        *(f"threads={threads} {name}" for threads in (1, 2) for name in ("micro_batches", "order")),
    }
    assert result["at_most"] == pytest.approx(1 - 0.05 ** (1 / 70))
    assert result["extrapolated"]
    assert result["replays_for_rate"] == 2995
    for phase, units in ((WARMUP, 16 + 6), (AFTER, 112)):
        found = result["one_token"][phase]
        assert found["of"] == found["caught"] == found["meets_policy"] == units
    assert result["one_token"][AFTER]["groups"]["rotary/buffer"] == 0
    assert not check(copied, 64, 100, 0.2, 1, silent)["extrapolated"]


def test_a_tau_below_the_noise_rejects_honest_units(copied: Path) -> None:
    result = check(edited(copied, 1e-3), 32, None, 1e-3, 1, silent)
    assert result["rejected"] > 0
    assert not passed(result)
    assert {reject["failed"] for reject in result["rejects"]} == {"replay.distance"}


def test_a_tau_above_a_token_misses_it(copied: Path) -> None:
    result = check(edited(copied, 1e8), 16, None, 1e-3, 1, silent)
    assert result["rejected"] == 0
    assert result["one_token"][AFTER]["caught"] == result["one_token"][AFTER]["meets_policy"] == 0
    assert not passed(result)


@pytest.mark.parametrize("first", [0, 23])
def test_seeds_of_the_calibration_are_refused(copied: Path, first: int) -> None:
    with pytest.raises(ConfigError, match=r"made the calibration.*take first=24"):
        check(copied, 16, first, 1e-3, 1, silent)
    assert not sidecar(copied).exists()


def test_what_is_no_calibration(tmp_path: Path) -> None:
    for text in ("", "[]", '{"format": 1}'):
        (tmp_path / "tau.json").write_text(text)
        with pytest.raises(ConfigError, match="calibrat"):
            check(tmp_path / "tau.json", 16, None, 1e-3, 1, silent)
