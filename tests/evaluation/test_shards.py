"""Files of rows under kills, full disks and several processes: nothing that was promised is lost or doubled."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.samples import row
from witbench.errors import ConfigError, DataError
from witbench.evaluation.rows import Row, RowWriter, read_rows
from witbench.evaluation.store import read_store

ROOT = Path(__file__).resolve().parents[2]
CHILD = """
import os, signal, sys
from pathlib import Path
from tests.evaluation.samples import row
from witbench.evaluation.rows import RowWriter
path, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
def big(seed):  # tens of kilobytes, so that a kill may fall inside a line
    return row(seed, units=tuple(range(1, 4001)), v=(0.123456789,) * 4000)
"""
WRITE = """
with RowWriter(path) as writer:
    for seed in range(first, first + count):
        writer.write(row(seed))
        print(seed, flush=True)
"""
WRITE_BIG = """
writer = RowWriter(path)
print("open", flush=True)
seed = first
while True:
    seeds = range(seed, seed + 1 + seed % 4)
    writer.write_all(map(big, seeds))
    print(*seeds, flush=True)
    seed = seeds[-1] + 1
"""
DIE_INSIDE = """
class Half:
    def __init__(self, file): self.file = file
    def __getattr__(self, name): return getattr(self.file, name)
    def write(self, data):
        self.file.write(data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
writer = RowWriter(path)
writer.write(row(first))
writer._file = Half(writer._file)
writer.write_all([row(seed) for seed in range(first + 1, first + 4)])
"""
FULL = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = RowWriter(path)
writer.write(row(first))
size = path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size * 7 // 2, resource.RLIM_INFINITY))
try:
    writer.write_all([row(seed) for seed in range(first + 1, first + 5)])
except OSError as error:
    print(path.stat().st_size == size, error.strerror)
writer.write(row(first + 1))
"""


def child(body: str, path: Path, first: int = 0, count: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD + body, str(path), str(first), str(count)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def seeds(path: Path) -> list[int]:
    return [each.seed for each in read_rows([path]).values()]


def test_killed_writers_lose_no_row_they_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "shards" / "a.jsonl"
    delays = random.Random(8)
    confirmed: list[int] = []
    for _ in range(8):
        first = max(confirmed, default=-1) + 1
        with ended(child(WRITE_BIG, path, first)) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n", process.stderr and process.stderr.read()
            time.sleep(delays.uniform(0.01, 0.25))
            process.send_signal(signal.SIGKILL)
            said, _ = process.communicate()
        # A kill may cut the last acknowledgement, which then is none.
        lines = said.splitlines(keepends=True)
        confirmed += [int(seed) for line in lines if line.endswith("\n") for seed in line.split()]
        assert set(confirmed) <= set(seeds(path)), "before the file is opened again"
        with RowWriter(path):
            pass
        data = path.read_bytes()
        assert data == b"" or data.endswith(b"\n")
        assert set(confirmed) <= set(seeds(path))
        assert all(Row.from_json(line).seed >= 0 for line in data.splitlines())
    assert len(confirmed) > 8


def test_a_batch_cut_by_a_kill_leaves_whole_rows_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with ended(child(DIE_INSIDE, path)) as process:
        process.wait()
    assert process.returncode == -signal.SIGKILL
    assert not path.read_bytes().endswith(b"\n")
    assert seeds(path) == [0, 1], "half of three rows"
    with RowWriter(path) as writer:
        assert path.read_bytes().endswith(b"\n")
        writer.write(row(2))
    assert seeds(path) == [0, 1, 2]


def test_a_disk_that_fills_amid_a_batch_leaves_none_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with ended(child(FULL, path)) as process:
        said, complaints = process.communicate()
    assert said == "True File too large\n", complaints
    assert seeds(path) == [0, 1], "the batch is gone, the row after it is there"


def test_a_batch_is_durable_with_one_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    waits: list[int] = []
    with RowWriter(path) as writer:
        monkeypatch.setattr(os, "fsync", waits.append)
        writer.write_all(row(seed) for seed in range(50))
        assert len(waits) == 1
        assert seeds(path) == list(range(50))
        writer.write_all([])
    assert seeds(path) == list(range(50))


def test_a_row_that_cannot_be_written_keeps_its_batch_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with RowWriter(path) as writer:
        with pytest.raises(ConfigError, match="finite"):
            writer.write_all([row(0), row(1, payload={"loss": float("nan")})])
        assert path.read_bytes() == b""
        writer.write(row(2, detected=None, check=None, error="name \udcff"))
    assert [each.error for each in read_rows([path]).values()] == ["name ?"], "half a character loses no row"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_wait_leaves_whole_lines(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    with RowWriter(path) as writer:
        writer.write(row(0))
        whole = path.read_bytes()

        def fail(descriptor: int) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            for attempt in (lambda: writer.write(row(1)), lambda: writer.write_all([row(1), row(2)])):
                with pytest.raises(type(error)):
                    attempt()
                assert path.read_bytes() == whole
        writer.write(row(3))
    assert seeds(path) == [0, 3]


def test_nothing_is_written_after_a_line_that_cannot_be_cut_off(tmp_path: Path) -> None:
    class Stubborn(FileIO):
        def write(self, data: Any) -> int:
            super().write(data[:10])
            raise OSError(5, "Input/output error")

        def truncate(self, size: int | None = None) -> int:
            raise OSError(5, "Input/output error")

    path = tmp_path / "a.jsonl"
    writer = RowWriter(path)
    writer.write(row(0))
    writer._file = Stubborn(path, "a+")
    with pytest.raises(OSError, match="Input/output"):
        writer.write(row(1))
    with pytest.raises(ValueError, match="closed"):
        writer.write(row(2))
    assert seeds(path) == [0]


def test_a_second_process_is_refused_a_shard_and_told_why(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with RowWriter(path) as writer:
        with pytest.raises(ConfigError, match="another process is writing"):
            RowWriter(path)
        with ended(child(WRITE, path, first=5, count=1)) as process:
            said, complaints = process.communicate()
        assert process.returncode != 0
        assert said == ""
        assert f"{path}: another process is writing it; give each process its own file" in complaints
        writer.write(row(0))
    assert seeds(path) == [0]
    with ended(child(WRITE, path, first=5, count=1)) as process:
        process.wait()
    assert seeds(path) == [0, 5], "once the first has closed it"


def test_processes_with_their_own_shards_give_the_union(tmp_path: Path) -> None:
    """They share trials 60 to 99, and the store is read all the while."""
    shards = tmp_path / "shards"
    with (
        ended(child(WRITE, shards / "a.jsonl", 0, 100)) as one,
        ended(child(WRITE, shards / "b.jsonl", 60, 100)) as two,
    ):
        while one.poll() is None or two.poll() is None:
            if shards.is_dir() and list(shards.glob("*.jsonl")):
                read_store([tmp_path])
            time.sleep(0.01)
    assert (one.returncode, two.returncode) == (0, 0)
    rows = read_store([tmp_path])
    assert sorted(each.seed for each in rows.values()) == list(range(160))
    assert sum(len(path.read_bytes().splitlines()) for path in shards.iterdir()) == 200


def shard(folder: Path, name: str, *rows: Row) -> None:
    with RowWriter(folder / "shards" / name) as writer:
        writer.write_all(rows)


def test_the_same_result_in_two_shards_is_one_row(tmp_path: Path) -> None:
    shard(tmp_path, "b.jsonl", row(0, cost_seconds=2.0, machine="other"), row(1))
    shard(tmp_path, "a.jsonl", row(0, cost_seconds=1.0))
    rows = list(read_store([tmp_path]).values())
    assert [(each.seed, each.cost_seconds) for each in rows] == [(0, 1.0), (1, 0.0)]


@pytest.mark.parametrize(
    "change",
    [{"detected": False}, {"check": "link"}, {"payload": {"loss": 0.26}}, {"payload": {}}],
)
def test_two_results_name_both_files(change: dict[str, Any], tmp_path: Path) -> None:
    shard(tmp_path, "a.jsonl", row(7), row(0))
    shard(tmp_path, "b.jsonl", row(0, **change))
    with pytest.raises(
        DataError, match=r"b\.jsonl, line 1: another result than \S*a\.jsonl, line 2 for trial .*remove"
    ):
        read_store([tmp_path])


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_a_result_supersedes_an_error_of_another_shard(names: tuple[str, str], tmp_path: Path) -> None:
    shard(tmp_path, f"{names[0]}.jsonl", row(0))
    shard(tmp_path, f"{names[1]}.jsonl", row(0, detected=None, check=None, error="killed"))
    assert list(read_store([tmp_path]).values()) == [row(0)]
