"""Work in processes: what dies or fails, what is repeatable, which branch speaks for a unit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from witbench.attacks.base import Attack, Outcome, Scene
from witbench.errors import ConfigError
from witbench.trials.executor import ExecutorConfig
from witbench.trials.plan import Trial, plan
from witbench.trials.pool import run_all
from witbench.trials.work import Branch, RunWork, look_up


def test_a_branch_speaks_for_the_units_near_it() -> None:
    branches = [Branch(None, boundary, size) for boundary in (0, 9) for size in (1, 4, 16)]
    assert look_up(branches, 2, 5) == Branch(None, 0, 4)
    assert look_up(branches, 8, 3) == Branch(None, 9, 1)
    assert look_up(branches, 50, 1000) == Branch(None, 9, 16)


def die() -> None:
    os._exit(3)


def fail() -> None:
    raise ConfigError("no such thing")


def number() -> int:
    return 7


def device() -> str | None:
    time.sleep(1)
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def test_work_whose_process_dies_or_fails_is_an_error_and_the_rest_goes_on() -> None:
    done = {each.index: each for each in run_all([number, die, fail, number], ExecutorConfig(workers=2))}
    assert done[0].result == done[3].result == 7
    assert "died" in str(done[1].error)
    assert "no such thing" in str(done[2].error)


def test_each_process_sees_the_gpu_of_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    executor = ExecutorConfig(workers=2, gpu_slots=1)
    assert {done.result for done in run_all([device] * 4, executor)} == {"4", "7"}
    assert executor.devices() == ["4", "7"]
    assert ExecutorConfig(gpu_slots=2).devices() == ["4", "4", "7", "7"]
    assert ExecutorConfig().devices() == []


PARENT = """
import sys
from tests.trials.test_work import wait
from witbench.trials.executor import ExecutorConfig
from witbench.trials.pool import run_all
if __name__ == "__main__":
    list(run_all([wait], ExecutorConfig(workers=1)))
"""


def wait() -> None:
    Path("pid").write_text(str(os.getpid()))
    time.sleep(300)


def test_processes_do_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    parent = subprocess.Popen([sys.executable, "parent.py"], cwd=tmp_path, env=environment)
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    child = int((tmp_path / "pid").read_text())
    while time.monotonic() < deadline and _alive(child):
        time.sleep(0.1)
    assert not _alive(child)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_attack_cannot_grade_itself() -> None:
    assert getattr(Attack.__call__, "__final__", False)
    assert Scene.__dataclass_params__.frozen


def raw_trial(overrides: list[str], *, attacked: bool) -> Trial:
    trials = plan(["bench_smoke"], overrides).trials
    return next(t for t in trials if t.estimator == "raw" and bool(t.amount) is attacked)


def test_a_raw_trial_is_a_function_of_its_config(overrides: list[str], tmp_path: Path) -> None:
    trial = raw_trial(overrides, attacked=True)
    heads, outcomes = [], []
    for name in ("one", "other"):
        outcomes.append(RunWork(trial.key, trial.config, tmp_path / name)())
        heads.append((tmp_path / name / "run" / "cert" / "tape").read_bytes())
    assert heads[0] == heads[1], "coins hash the tape, so only the same tape has the same coins"
    told = [(o.detected, o.check, o.payload, o.cost_gradients) for o in outcomes]
    assert told[0] == told[1]
    assert isinstance(outcomes[0], Outcome)


def test_a_kept_run_that_was_cut_short_at_either_end(overrides: list[str], tmp_path: Path) -> None:
    trial = raw_trial(overrides, attacked=False)
    first, again = (RunWork(trial.key, trial.config, tmp_path / "kept")() for _ in range(2))
    (tmp_path / "kept" / "run" / "prover" / "run.cbor").unlink()
    (tmp_path / "kept" / "run" / "cert" / "checkpoint").unlink()
    once_more = RunWork(trial.key, trial.config, tmp_path / "kept")()
    assert (once_more.detected, once_more.check) == (False, None), "a start cut short begins again"
    assert (first.detected, first.check) == (again.detected, again.check) == (False, None)
