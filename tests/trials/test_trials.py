"""Trials from plan to rows: artifacts shared and found again, two runs at once, kills, and keys that follow content."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.trials.conftest import silent
from witbench.errors import ConfigError
from witbench.evaluation.deviation import standard_errors
from witbench.evaluation.store import read_study, shards
from witbench.evaluation.summary import summarise
from witbench.trials import work
from witbench.trials.artifacts import Artifacts
from witbench.trials.plan import TrialPlan, plan
from witbench.trials.run import Run

STUDY = "fig5_smoke"


@pytest.fixture(scope="module")
def made(overrides: list[str]) -> TrialPlan:
    return plan([STUDY], [*overrides, "study.runs=2", "executor.workers=1"])


@pytest.fixture(scope="module")
def folder(made: TrialPlan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    assert Run(made, folder, folder / "artifacts")(silent) == 2
    return folder


def test_every_attack_route_and_placement_lies_on_the_law(made: TrialPlan, folder: Path) -> None:
    summaries = [each for each in summarise(read_study(folder)) if each.cell.attack != "none"]
    cells = {(each.cell.attack, each.cell.placement.partition(":")[0]) for each in summaries}
    routes = ("substitution", "insertion:in_batch", "insertion:hidden", "deletion:mask")
    assert cells == {(route, placement) for route in routes for placement in ("uniform", "burst", "spread")}
    for summary in summaries:
        assert summary.theory is not None
        assert standard_errors(summary) < 4, summary


def test_honest_units_pass(folder: Path) -> None:
    honest = [row for row in read_study(folder) if row.attack == "none"]
    assert [row.probability for row in honest] == [0.0, 0.0]
    assert all(row.units for row in honest)


def test_a_branch_is_measured_once_and_states_are_found_again(
    made: TrialPlan, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = tmp_path / "artifacts"
    shutil.copytree(folder / "artifacts", artifacts)
    monkeypatch.setattr(work.TrajectoryWork, "__call__", lambda self: pytest.fail("measured again"))
    assert Run(made, tmp_path / "elsewhere", artifacts)(silent) == 0, "another folder, the same artifacts"
    one, two = ({row.key: row.outcome() for row in read_study(at)} for at in (folder, tmp_path / "elsewhere"))
    assert one == two


def test_states_are_those_of_the_run(made: TrialPlan, folder: Path, tmp_path: Path) -> None:
    run = Run(made, tmp_path, folder / "artifacts")
    (part,) = made.parts
    first = run._trajectory(part, 0)
    kept = first.artifacts.states()
    assert kept == [boundary for boundary in part.boundaries(0) if boundary]
    fresh = Artifacts(tmp_path / "fresh", first.artifacts.key)
    again = work.TrajectoryWork(part.base, 0, first.branches, tmp_path / "fresh", first.version)
    again()
    assert [fresh.load(t) for t in kept] == [first.artifacts.load(t) for t in kept]
    told = [{k: v for k, v in each.items() if k != "seconds"} for each in fresh.branches().values()]
    assert told == [{k: v for k, v in each.items() if k != "seconds"} for each in first.artifacts.branches().values()]


def test_a_torn_measurement_is_measured_again(made: TrialPlan, folder: Path, tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    shutil.copytree(folder / "artifacts", artifacts)
    (torn, _) = sorted(artifacts.glob("*/branches.jsonl"))
    whole = torn.read_bytes()
    torn.write_bytes(whole[:-40])
    assert Run(made, tmp_path / "again", artifacts)(silent) == 1
    lines = [line for line in torn.read_bytes().splitlines() if _parses(line)]
    assert len(lines) == len(whole.splitlines())
    assert {row.key for row in read_study(tmp_path / "again")} == {trial.key for trial in made.trials}


def _parses(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def test_a_key_follows_content_not_paths(overrides: list[str], made: TrialPlan, tmp_path: Path) -> None:
    source = Path(overrides[1].partition("=")[2])
    shutil.copytree(source, tmp_path / "copy")
    same = plan([STUDY], ["data=folder", f"data.path={tmp_path / 'copy'}", "study.runs=2"])
    assert same.key == made.key
    with (tmp_path / "copy" / "more.py").open("w") as file:
        file.write("x = 1\n" * 400)
    assert plan([STUDY], ["data=folder", f"data.path={tmp_path / 'copy'}", "study.runs=2"]).key != made.key


COMMAND = [sys.executable, "-m", "witbench", "figure", "fig5", "scale=smoke", "study.runs=2", "executor.workers=1"]


def heed_interrupts() -> None:
    """Undo that a shell without job control makes what it runs in the background ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(overrides: list[str], tmp_path: Path, out: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    return subprocess.Popen(
        [*COMMAND, *overrides, f"out={tmp_path / out}"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )


def test_two_runs_at_once_lose_and_double_nothing(overrides: list[str], tmp_path: Path) -> None:
    both = [start(overrides, tmp_path, "shared") for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert "Traceback" not in out + err
    rows = read_study(tmp_path / "shared")
    planned = plan([STUDY, "fig5_raw_smoke"], [*overrides, "study.runs=2"])
    assert [row.key for row in rows] == sorted(trial.key for trial in planned.trials)
    assert not [row for row in rows if row.error]
    for path in (tmp_path / "shared" / "artifacts").glob("*/branches.jsonl"):
        keys = Counter(json.loads(line)["key"] for line in path.read_bytes().splitlines())
        assert max(keys.values()) == 1, "one process measures a training run, the other one waits and reads"


def test_kill_9_again_and_again(overrides: list[str], tmp_path: Path) -> None:
    for delay in (6.0, 9.0, 12.0):
        process = start(overrides, tmp_path, "killed")
        try:
            process.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    done = start(overrides, tmp_path, "killed")
    _out, err = done.communicate(timeout=300)
    assert done.returncode == 0, err
    planned = plan([STUDY, "fig5_raw_smoke"], [*overrides, "study.runs=2"])
    assert [row.key for row in read_study(tmp_path / "killed")] == sorted(trial.key for trial in planned.trials)
    assert len(shards(tmp_path / "killed")) >= 1


def test_a_study_that_cannot_be_is_refused(overrides: list[str]) -> None:
    for override, said in (
        ("study.runs=0", "study.runs=0: must be at least 1"),
        ("study.placements=[spread:x]", "placement=spread:x: spread takes a number"),
        ("study.placements=[uniform:3]", "uniform takes nothing"),
        ("study.probabilities=[1.5]", "study.probabilities"),
        ("study.variants=[{attack: substitutoin}]", "did you mean substitution"),
        ("executor.workers=0", "executor.workers=0"),
        ("executor.name=slurm", "executor.name=slurm"),
    ):
        with pytest.raises(ConfigError, match=said.replace("[", r"\[")):
            plan([STUDY], [*overrides, override])


def test_whole_runs_stop_by_a_rule_that_may_be_looked_at(overrides: list[str], tmp_path: Path) -> None:
    point = "{attack: substitution, placement: burst, amount: 4, p: 1.0, trials: 40, width: 0.75}"
    few = [*overrides, "study.runs=1", f"study.raw=[{point}]", "executor.workers=2"]
    made = plan(["fig5_raw_smoke"], few)
    (rule,) = {trial.rule for trial in made.trials if trial.estimator == "raw" and trial.variant}
    assert rule is not None
    needed = rule.stop([True] * 40)
    assert needed is not None
    assert needed > 2
    run = Run(made, tmp_path, tmp_path / "artifacts")
    run(silent)
    whole = [row for row in read_study(tmp_path) if row.estimator == "raw" and row.amount]
    assert needed <= len(whole) <= needed + 1, "two at a time, and none once it is enough"
    assert all(row.detected for row in whole)
    assert run(silent) == 0, "and a second run knows it"
    with pytest.raises(ConfigError, match="width=2"):
        plan(["fig5_raw_smoke"], [*overrides, f"study.raw=[{point.replace('0.75', '2')}]"])


def test_ctrl_c_is_one_line_and_nothing_is_lost(overrides: list[str], tmp_path: Path) -> None:
    process = start(overrides, tmp_path, "interrupted")
    deadline = time.monotonic() + 120
    while not list((tmp_path / "interrupted").glob("artifacts/*/branches.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert len(err.strip().splitlines()) == 1, err
    assert "the same command does only what is missing" in err
