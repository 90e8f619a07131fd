"""The main job on its small scale: rates on the law, positive control, nothing done twice, and a kill survived."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from witbench.attacks.base import Attack, Outcome, Scene
from witbench.bench import run as bench_run
from witbench.bench.plan import SCALES, make_plan
from witbench.bench.pool import run_all
from witbench.bench.run import publish, run_bench
from witbench.bench.work import RunWork, look_up
from witbench.cli.main import main
from witbench.errors import ConfigError
from witbench.evaluation.deviation import standard_errors
from witbench.evaluation.rows import read_rows

TEXTS = Path(pytest.__file__).parent.parent / "_pytest"


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("texts")
    for path in sorted(TEXTS.glob("*.py"))[:12]:
        (folder / path.name).write_bytes(path.read_bytes())
    os.environ.setdefault("WITBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
    return ["data=folder", f"data.path={folder}"]


def silent(done: int, total: int) -> None:
    """Show nothing."""


@pytest.fixture(scope="module")
def result(overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> bench_run.Result:
    return run_bench("smoke", overrides, tmp_path_factory.mktemp("bench"), silent)


def test_rates_lie_on_the_law_and_the_control_is_beaten(result: bench_run.Result) -> None:
    attacked = [s for s in result.summaries if s.cell.attack == "substitution"]
    witnessed = [s for s in attacked if s.cell.protocol == "witness"]
    assert {s.cell.placement for s in witnessed} == {"uniform", "burst"}
    for summary in witnessed:
        assert summary.errors == 0
        assert standard_errors(summary) < 4, summary
    (control,) = [s for s in attacked if s.cell.protocol == "unchecked"]
    assert control.rate is not None
    assert control.rate.detections == 0, "nothing is checked but the last unit, which a burst leaves alone"
    honest = [s for s in result.summaries if s.cell.attack == "none"]
    assert {s.cell.estimator for s in honest} == {"raw", "conditional"}
    assert all(s.rate is not None and s.rate.detections == 0 for s in honest)


def test_one_token_is_seen_in_every_checked_unit(result: bench_run.Result) -> None:
    rows = read_rows([result.folder / "rows.jsonl"]).values()
    touched = [v for row in rows if row.attack == "substitution" and row.estimator == "conditional" for v in row.v]
    assert touched
    assert set(touched) == {1.0}
    assert {row.check for row in rows if row.attack == "substitution" and row.v} == {"replay.digest"}


def test_a_second_run_does_nothing_again(
    result: bench_run.Result, overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (result.folder / "rows.jsonl").read_bytes()
    monkeypatch.setattr(bench_run, "run_all", lambda work, workers: pytest.fail("trained again") if work else [])
    again = run_bench("smoke", overrides, result.folder, silent)
    assert again.worked == 0
    assert (result.folder / "rows.jsonl").read_bytes() == before
    assert again.table == result.table


def test_a_lost_row_is_the_only_one_run_again(result: bench_run.Result, overrides: list[str]) -> None:
    path = result.folder / "rows.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lost = next(line for line in lines if json.loads(line)["estimator"] == "raw" and json.loads(line)["amount"] == 16)
    path.write_bytes(b"".join(line for line in lines if line != lost))
    again = run_bench("smoke", overrides, result.folder, silent)
    assert again.worked == 1
    found = read_rows([path])[json.loads(lost)["key"]]
    assert found.outcome() == read_rows([_alone(path, lost)])[found.key].outcome(), "the same trial, the same outcome"


def _alone(path: Path, line: bytes) -> Path:
    alone = path.with_name("alone.jsonl")
    alone.write_bytes(line)
    return alone


def test_a_killed_bench_goes_on(overrides: list[str], result: bench_run.Result, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "witbench", "bench", "scale=smoke", f"out={tmp_path / 'b'}", *overrides]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    rows = tmp_path / "b" / "rows.jsonl"
    deadline = time.monotonic() + 120
    while not (rows.exists() and rows.stat().st_size) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert rows.stat().st_size > 0
    with rows.open("ab") as file:
        file.write(b'{"torn": ')
    done = run_bench("smoke", overrides, tmp_path / "b", silent)
    assert [row.error for row in read_rows([rows]).values() if row.error] == []
    kept = ("cell", "theory", "check", "clusters", "errors")
    for mine, theirs in zip(done.summaries, result.summaries, strict=True):
        for name in kept:
            assert getattr(mine, name) == getattr(theirs, name)
        assert mine.rate == theirs.rate


def test_a_kept_run_that_was_cut_short_at_either_end(overrides: list[str], tmp_path: Path) -> None:
    plan = make_plan("smoke", overrides)
    trial = next(t for t in plan.trials if t.estimator == "raw" and not t.amount)
    first, again = (RunWork(trial.key, trial.config, tmp_path / "kept")() for _ in range(2))
    (tmp_path / "kept" / "run" / "prover" / "run.cbor").unlink()
    (tmp_path / "kept" / "run" / "cert" / "checkpoint").unlink()
    once_more = RunWork(trial.key, trial.config, tmp_path / "kept")()
    assert (once_more.detected, once_more.check) == (False, None), "a start cut short begins again"
    assert (first.detected, first.check) == (again.detected, again.check) == (False, None)


def test_what_it_prints(
    result: bench_run.Result, overrides: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", "scale=smoke", f"out={result.folder}", *overrides]) == 0
    printed = capsys.readouterr().out
    assert "…" not in printed, "no cell of the table is cut"
    lines = [line for line in printed.splitlines() if line.startswith("witbench verify ")]
    for line, status in zip(lines, (0, 1), strict=True):
        assert main(line.split()[1:]) == status
    said = capsys.readouterr().out
    assert "ACCEPTED" in said
    assert "self-certified" in said
    for path in (result.figure.png, result.figure.pdf, result.figure.csv, result.figure.caption):
        assert path.stat().st_size > 0


def test_overrides_that_the_bench_sets_itself_are_refused() -> None:
    for text in ("attack=none", "placement=tail", "protocol.p=0.5", "tolerance=fixed", "seed=3"):
        with pytest.raises(ConfigError, match="bench sets"):
            make_plan("full", [text])
    with pytest.raises(ConfigError, match="choose from full, smoke"):
        make_plan("huge", [])


def test_the_full_plan_has_hundreds_of_trials_and_a_key_of_its_own() -> None:
    plan = make_plan("full", [])
    conditional = [t for t in plan.trials if t.estimator == "conditional" and t.amount]
    assert len(conditional) >= 300
    assert len({trial.key for trial in plan.trials}) == len(plan.trials)
    assert {t.config.protocol.p for t in conditional} == set(SCALES["full"].probabilities)
    assert make_plan("full", []).key == plan.key
    assert make_plan("full", ["training.updates=32"]).key != plan.key


def test_only_a_clean_working_copy_publishes(
    result: bench_run.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_run, "git_state", lambda: ("abc", True))
    with pytest.raises(ConfigError, match="clean working copy"):
        publish(result, tmp_path)
    monkeypatch.setattr(bench_run, "git_state", lambda: ("abc", False))
    folder = publish(result, tmp_path)
    names = {path.name for path in folder.iterdir()}
    assert {"manifest.json", "rows.jsonl", "table.txt", "fig5-substitution.png"} <= names
    assert json.loads((folder / "manifest.json").read_text())["commit"] == "abc"


def test_a_branch_speaks_for_the_units_near_it() -> None:
    branches = [{"unit": u, "size": s, "detected": s >= 4} for u in (1, 10) for s in (0, 1, 4, 16)]
    assert look_up(branches, 3, 5) == {"unit": 1, "size": 4, "detected": True}
    assert look_up(branches, 9, 3) == {"unit": 10, "size": 1, "detected": False}
    assert look_up(branches, 50, 1000) == {"unit": 10, "size": 16, "detected": True}


def die() -> None:
    os._exit(3)


def fail() -> None:
    raise ConfigError("no such thing")


def number() -> int:
    return 7


def test_work_whose_process_dies_or_fails_is_an_error_and_the_rest_goes_on() -> None:
    done = {each.index: each for each in run_all([number, die, fail, number], 2)}
    assert done[0].result == done[3].result == 7
    assert "died" in str(done[1].error)
    assert "no such thing" in str(done[2].error)


def test_an_attack_cannot_grade_itself() -> None:
    assert getattr(Attack.__call__, "__final__", False)


def test_a_raw_trial_is_a_function_of_its_config(overrides: list[str], tmp_path: Path) -> None:
    plan = make_plan("smoke", overrides)
    trial = next(t for t in plan.trials if t.estimator == "raw" and t.amount)
    heads = []
    outcomes = []
    for name in ("one", "other"):
        outcomes.append(RunWork(trial.key, trial.config, tmp_path / name)())
        heads.append((tmp_path / name / "run" / "cert" / "tape").read_bytes())
    assert heads[0] == heads[1], "coins hash the tape, so only the same tape has the same coins"
    assert [(o.detected, o.check, o.payload, o.cost_gradients) for o in outcomes[:1]] == [
        (o.detected, o.check, o.payload, o.cost_gradients) for o in outcomes[1:]
    ]
    assert isinstance(outcomes[0], Outcome)
    assert Scene.__dataclass_params__.frozen
