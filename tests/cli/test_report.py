"""`witbench report`: rows of any kind in, a table in any format out, and one line for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result
from tests.evaluation.samples import row
from witbench.cli import report
from witbench.evaluation.formats import FORMATS, render
from witbench.evaluation.rates import PRIORS
from witbench.evaluation.rows import RowWriter
from witbench.evaluation.store import collect, read_store
from witbench.evaluation.summary import summarise
from witbench.evaluation.table import plain_table

Run = Callable[..., Result]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store in two shards: ten whole runs at p = 0.1, six at p = 0.5."""
    monkeypatch.chdir(tmp_path)
    rows = [
        row(seed, p=0.1 if seed < 10 else 0.5, detected=seed % 2 == 0, placement="burst", clusters={"run": str(seed)})
        for seed in range(16)
    ]
    for name, part in (("a", rows[:7]), ("b", rows[7:])):
        with RowWriter(tmp_path / "store" / "shards" / f"{name}.jsonl") as writer:
            writer.write_all(part)
    return tmp_path / "store"


def table(folder: Path) -> str:
    return plain_table(summarise(read_store([folder]).values()))


def test_a_folder_its_parquet_file_and_its_shards_give_one_table(kept: Path, witbench: Run) -> None:
    expected = Result(0, table(kept), "")
    assert " 5/10 " in expected.out
    assert " 3/6 " in expected.out
    parquet = collect(kept)
    shards = [str(path) for path in sorted((kept / "shards").iterdir())]
    for paths in ([str(kept)], [str(parquet)], shards, [str(kept), str(parquet)]):
        assert witbench("report", *paths) == expected


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_printed_or_written(form: str, kept: Path, witbench: Run) -> None:
    expected = render(summarise(read_store([kept]).values()), form)
    assert witbench("report", str(kept), f"format={form}") == Result(0, expected, "")
    assert witbench("report", f"format={form}", str(kept), "out=new/report.txt") == Result(0, "new/report.txt\n", "")
    assert Path("new/report.txt").read_text(encoding="utf-8") == expected


def test_a_report_cut_short_leaves_the_old_file_and_nothing_else(
    kept: Path, witbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = kept.parent / "new" / "report.txt"
    assert witbench("report", str(kept), f"out={out}").status == 0
    before = out.read_bytes()

    def full(path: Path, text: str, encoding: str) -> None:
        path.write_bytes(text[:10].encode(encoding))
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", full)
    result = witbench("report", str(kept), "format=csv", f"out={out}")
    assert (result.status, result.out) == (2, "")
    assert "No space left on device" in result.err
    assert [(each, each.read_bytes()) for each in out.parent.iterdir()] == [(out, before)]


def test_its_words_are_those_of_the_packages_below() -> None:
    assert tuple(FORMATS) == report.FORMATS
    assert tuple(PRIORS) == report.PRIORS


def test_where_keeps_a_part(kept: Path, witbench: Run) -> None:
    def cells(*options: str) -> list[tuple[float, int]]:
        plain = json.loads(witbench("report", str(kept), "format=json", *options).out)
        return [(each["cell"]["p"], each["rate"]["trials"]) for each in plain]

    assert cells() == [(0.1, 10), (0.5, 6)]
    assert cells("where=p = 0.5") == [(0.5, 6)]
    assert cells("where=p=0.1 and seed < 4") == [(0.1, 4)]
    assert cells("where=\"check\" = 'replay.digest' and payload['loss'] = 0.25") == [(0.1, 10), (0.5, 6)]


def test_the_prior_is_taken(kept: Path, witbench: Run) -> None:
    plain = json.loads(witbench("report", str(kept), "format=json", "prior=jeffreys").out)
    assert {each["rate"]["prior"] for each in plain} == {"jeffreys"}


def test_trials_without_a_result_are_counted_and_no_failure_of_the_report(kept: Path, witbench: Run) -> None:
    with RowWriter(kept / "shards" / "c.jsonl") as writer:
        writer.write(row(99, detected=None, check=None, error="killed", placement="burst"))
    result = witbench("report", str(kept))
    assert (result.status, result.err) == (0, "")
    assert "errors" in result.out


def test_a_torn_last_line_is_no_mistake(kept: Path, witbench: Run) -> None:
    before = witbench("report", str(kept))
    with (kept / "shards" / "b.jsonl").open("ab") as file:
        file.write(b'{"torn": ')
    assert witbench("report", str(kept)) == before


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ((), "usage: witbench report PATH"),
        (("nothing",), "nothing: no such file or folder"),
        (("empty",), "empty: no rows in this folder; a store has shards"),
        (("store", "nothing"), "nothing: no such file or folder"),
        (("notes.txt",), "notes.txt: no file of rows; give a store's folder"),
        (("notes.jsonl",), "notes.jsonl, line 1: not a line of JSON"),
        (("other.jsonl",), "other.jsonl, line 1: not a row of this version: unknown fields"),
        (("notes.parquet",), "notes.parquet: not a Parquet file that can be read"),
        (("started.jsonl",), "started.jsonl: holds no finished trial yet"),
        (("store", "format=html"), "format=html: must be one of text, markdown, latex, csv, json"),
        (("store", "frmat=csv"), "did you mean format?"),
        (("store", "prior=flat"), "prior=flat: must be one of uniform, jeffreys"),
        (("store", "where="), "where=: must be a condition in SQL"),
        (("store", "where=p = 7"), "where=p = 7: holds for none of the 16 rows"),
        (("store", "where=q = 7"), '"q" not found'),
        (("store", "where=p ="), "syntax error"),
        (("store", "out=store"), "out=store: must be a file for the report"),
        (("store", "out=started.jsonl"), "out=started.jsonl: must be a file for the report"),
        (("store", "out=store/rows.parquet"), "must be a file for the report"),
        (("store", "conflict.jsonl"), "conflict.jsonl, line 1: another result than store/shards/a.jsonl, line 1"),
        (("store", "--cfg", "job"), "--cfg: report has no config"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(argv: tuple[str, ...], says: str, kept: Path, witbench: Run) -> None:
    Path("empty").mkdir()
    for name in ("notes.txt", "notes.jsonl", "notes.parquet"):
        Path(name).write_text("hello\n")
    Path("other.jsonl").write_text('{"loss": 1}\n')
    Path("started.jsonl").touch()
    Path("conflict.jsonl").write_text(row(0, detected=False, placement="burst").to_json() + "\n")
    result = witbench("report", *argv)
    assert (result.status, result.out) == (2, "")
    assert says in result.err
    assert result.err.startswith("witbench: ")
    assert result.err.count("\n") == 1
    assert Path("started.jsonl").read_bytes() == b""


def test_it_loads_no_more_than_it_needs(kept: Path) -> None:
    code = (
        "import sys; from witbench.cli.main import main; assert main(['report', sys.argv[1]]) == 0\n"
        "assert not [name for name in ('torch', 'hydra', 'pandas', 'pyarrow', 'duckdb') if name in sys.modules]"
    )
    subprocess.run([sys.executable, "-c", code, str(kept)], check=True, capture_output=True)


def test_the_published_bench_can_be_reported(witbench: Run) -> None:
    """Its cells and counts; what is derived from them may be derived better than when it was published."""
    published = Path(__file__).resolve().parents[2] / "results" / "cpu" / "bench"
    result = witbench("report", str(published))
    reported, kept = (
        [line.split()[:8] for line in text.splitlines() if "witness" in line or "unchecked" in line]
        for text in (result.out, (published / "table.txt").read_text())
    )
    assert reported == kept
    assert reported
