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

from witbench.bench import run as bench_run
from witbench.bench.run import publish_bench, run_bench
from witbench.cli.main import main
from witbench.errors import ConfigError
from witbench.evaluation.deviation import standard_errors
from witbench.evaluation.store import read_study, shards
from witbench.trials import run as trials_run
from witbench.trials import stamp
from witbench.trials.plan import plan

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
    return run_bench("bench_smoke", overrides, tmp_path_factory.mktemp("bench"), silent)


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
    rows = read_study(result.folder)
    touched = [v for row in rows if row.attack == "substitution" and row.estimator == "conditional" for v in row.v]
    assert touched
    assert set(touched) == {1.0}
    assert {row.check for row in rows if row.attack == "substitution" and row.v} == {"replay.digest"}


def test_a_second_run_does_nothing_again(
    result: bench_run.Result, overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [path.read_bytes() for path in shards(result.folder)]
    monkeypatch.setattr(trials_run, "run_all", lambda work, executor: pytest.fail("trained again"))
    again = run_bench("bench_smoke", overrides, result.folder, silent)
    assert again.worked == 0
    assert [path.read_bytes() for path in shards(result.folder)] == before
    assert again.table == result.table


def test_a_lost_row_is_the_only_one_run_again(result: bench_run.Result, overrides: list[str]) -> None:
    (path,) = shards(result.folder)
    lines = path.read_bytes().splitlines(keepends=True)
    lost = next(line for line in lines if json.loads(line)["estimator"] == "raw" and json.loads(line)["amount"] == 16)
    path.write_bytes(b"".join(line for line in lines if line != lost))
    again = run_bench("bench_smoke", overrides, result.folder, silent)
    assert again.worked == 1
    (fresh,) = [each for each in shards(result.folder) if each != path]
    (found,) = read_study(fresh)
    alone = path.parent.parent / "alone.jsonl"
    alone.write_bytes(lost)
    assert found.outcome() == read_study(alone)[0].outcome(), "the same trial, the same outcome"


def written(folder: Path) -> list[Path]:
    return [path for path in shards(folder) if path.stat().st_size]


def test_a_killed_bench_goes_on(overrides: list[str], result: bench_run.Result, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "witbench", "bench", "scale=smoke", f"out={tmp_path / 'b'}", *overrides]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not written(tmp_path / "b") and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (rows,) = written(tmp_path / "b")
    with rows.open("ab") as file:
        file.write(b'{"torn": ')
    done = run_bench("bench_smoke", overrides, tmp_path / "b", silent)
    assert [row.error for row in read_study(tmp_path / "b") if row.error] == []
    kept = ("cell", "theory", "check", "clusters", "errors")
    for mine, theirs in zip(done.summaries, result.summaries, strict=True):
        for name in kept:
            assert getattr(mine, name) == getattr(theirs, name)
        assert mine.rate == theirs.rate


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


def test_overrides_that_a_study_sets_itself_are_refused() -> None:
    for text in ("attack=none", "placement=tail", "protocol.p=0.5", "protocol=unchecked", "seed=3"):
        with pytest.raises(ConfigError, match="study sets"):
            plan(["bench"], [text])
    with pytest.raises(ConfigError, match="did you mean bench"):
        plan(["bnech"], [])


def test_a_bench_without_an_honest_run_has_no_certificate_to_show(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"study\.honest=0: must be at least 1"):
        run_bench("bench_smoke", ["study.honest=0"], tmp_path, silent)


def test_the_full_plan_has_hundreds_of_trials_and_a_key_of_its_own() -> None:
    made = plan(["bench"], [])
    conditional = [t for t in made.trials if t.estimator == "conditional" and t.amount]
    assert len(conditional) >= 300
    assert len({trial.key for trial in made.trials}) == len(made.trials)
    assert {t.config.protocol.p for t in conditional} == {0.01, 0.05, 0.1}
    assert plan(["bench"], []).key == made.key
    assert plan(["bench"], ["training.updates=32"]).key != made.key
    assert plan(["bench"], ["executor.workers=1"]).key == made.key


def test_only_a_clean_working_copy_publishes(
    result: bench_run.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamp, "git_state", lambda: ("abc", True))
    with pytest.raises(ConfigError, match="clean working copy"):
        publish_bench(result, tmp_path)
    monkeypatch.setattr(stamp, "git_state", lambda: ("abc", False))
    folder = publish_bench(result, tmp_path)
    names = {path.name for path in folder.iterdir()}
    assert {"manifest.json", "rows.parquet", "table.txt", "fig5-substitution.png"} <= names
    assert json.loads((folder / "manifest.json").read_text())["commit"] == "abc"
