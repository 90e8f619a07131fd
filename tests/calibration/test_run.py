"""`witbench calibrate` on a tiny model: what the file holds, what is refused, what Ctrl-C leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from witbench.calibration.honest import manifest_of
from witbench.calibration.plot import CSV_FIELDS, draw
from witbench.calibration.run import Calibrated, Settings, calibrate
from witbench.calibration.variations import VARIATIONS, Order
from witbench.config import RunConfig, compose
from witbench.errors import ConfigError
from witbench.kernels.manifest import group_names
from witbench.protocol.tau import AFTER, WARMUP
from witbench.protocol.tolerances import tolerances
from witbench.training.state import State

from .conftest import QUICK, silent


def test_the_file_holds_what_tau_rests_on(calibrated: Calibrated, config: RunConfig) -> None:
    fields = json.loads(calibrated.path.read_text())
    assert fields == calibrated.fields
    groups = set(group_names(manifest_of(config)))
    for phase in (WARMUP, AFTER):
        part = fields["phases"][phase]
        assert set(fields["tau"][phase]) == set(part["groups"]) == groups
        assert sum(part["by_variation"].values()) == part["distances"]
        for group, found in part["groups"].items():
            expected = fields["factor"] * max(found["largest"], fields["floor"][group])
            assert fields["tau"][phase][group] == expected > 0
            assert found["quantiles"]["1"] == found["largest"]
    assert fields["phases"][AFTER]["distances"] == 24
    assert fields["phases"][AFTER]["by_variation"].keys() == set(QUICK)
    assert fields["seeds"] == list(range(24)), "three whole runs, and 21 first units"
    assert fields["phases"][WARMUP]["units"] == 24
    assert fields["false_rejects"]["rejected"] == 0
    assert fields["evaluation_tau"]["loss"] > 0


def test_a_tau_that_no_verifier_accepts_is_counted(
    calibrated: Calibrated, tiny: list[str], settings: Settings, tmp_path: Path
) -> None:
    assert calibrated.fields["phases"][AFTER]["within_policy"] == {"of": 21, "met": 21}
    coarse = calibrate(compose([*tiny, "model.dtype=bfloat16"]), settings, tmp_path / "tau.json", silent)
    found = coarse.fields["phases"][AFTER]["within_policy"]
    assert (found["of"], found["met"]) == (21, 0), "storage rounds by more than a token moves"


def test_noise_is_far_below_one_token(calibrated: Calibrated) -> None:
    for phase in (WARMUP, AFTER):
        part = calibrated.fields["phases"][phase]["groups"]
        tau = calibrated.fields["tau"][phase]
        assert max(found["one_token"]["min"] / tau[group] for group, found in part.items()) > 100
        assert part["norm/exp_avg"]["largest"] > 0


def test_the_same_seeds_give_the_same_file(config: RunConfig, settings: Settings, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one.json", "two.json")]
    small = replace(settings, distances=6, runs=2, variations=("order",))
    for path, workers in zip(paths, (1, 2), strict=True):
        calibrate(config, replace(small, workers=workers), path, silent)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_the_file_is_taken_by_runs_of_its_configuration(calibrated: Calibrated, tiny: list[str]) -> None:
    given = compose([*tiny, "tolerance=calibrated", f"tolerance.calibration={calibrated.path}", "seed=5"])
    tau, digest = tolerances(given, manifest_of(given))
    assert digest is not None
    assert tau.of(1) == calibrated.fields["tau"][WARMUP]
    assert tau.of(2) == calibrated.fields["tau"][AFTER]
    assert tau.units == 1


def test_a_sketch_without_distances(tiny: list[str], settings: Settings, tmp_path: Path) -> None:
    config = compose([*tiny, "sketch=digest", "~sketch.params.k"])
    with pytest.raises(ConfigError, match="sketch=digest: tells equal from different"):
        calibrate(config, settings, tmp_path / "tau.json", silent)
    assert not list(tmp_path.iterdir())


def test_a_configuration_with_nothing_to_vary(config: RunConfig, settings: Settings, tmp_path: Path) -> None:
    single = replace(config, training=replace(config.training, sequences=1))
    with pytest.raises(ConfigError, match="none applies"):
        calibrate(single, replace(settings, variations=("order",)), tmp_path / "tau.json", silent)


class Forgets(Order):
    """Loses count of its updates."""

    def __call__(self, *arguments: Any) -> State:
        end = super().__call__(*arguments)
        return State({**end.exact, "step": 0}, end.real)


def test_a_variation_that_changes_the_exact_part(
    config: RunConfig, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VARIATIONS, "order", Forgets)
    with pytest.raises(ConfigError, match="order changes the exact part of unit 1"):
        calibrate(config, settings, tmp_path / "tau.json", silent)
    assert not list(tmp_path.iterdir())


def test_the_picture_shows_every_distance(calibrated: Calibrated) -> None:
    files = draw(calibrated)
    assert files.png.read_bytes()[:4] == b"\x89PNG"
    assert files.pdf.read_bytes()[:4] == b"%PDF"
    lines = files.csv.read_text().splitlines()
    assert lines[0] == ",".join(CSV_FIELDS)
    rows = sum(len(run.honest) + len(run.token) for run in calibrated.measured)
    assert len(lines) - 1 == rows * len(calibrated.fields["floor"])
    before = files.pdf.read_bytes()
    assert draw(calibrated).pdf.read_bytes() == before


def test_an_interruption_leaves_nothing(tiny: list[str], tmp_path: Path) -> None:
    script = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script += "from witbench.cli.main import entry\nif __name__ == '__main__':\n    entry()\n"
    (tmp_path / "run.py").write_text(script)
    out = tmp_path / "out"
    command = [sys.executable, str(tmp_path / "run.py"), "calibrate", *tiny, "training.updates=64", f"out={out}/t.json"]
    process = subprocess.Popen(
        [*command, "variations=order", "runs=30"], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    time.sleep(8)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.strip() == "witbench: interrupted: nothing was written; run the command again"
    assert not out.exists() or not list(out.iterdir())
