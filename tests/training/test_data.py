"""Datasets: what they hold, when their roots change, and what is refused."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from witbench.errors import DataError
from witbench.training.data import Dataset, Document, load_data, stdlib_documents


@dataclass
class Choice:
    name: str
    path: str | None = None
    dtype: str = "uint8"
    held_out: float = 0.25


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WITBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    (folder / "inner").mkdir(parents=True)
    for number in range(20):
        (folder / "inner" / f"{number:02}.txt").write_text(f"text {number} äöü\n" * 20)
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0binary")
    return folder


def test_a_folder_becomes_its_bytes_split_by_document(texts: Path) -> None:
    training, held_out = load_data(Choice("folder", str(texts)))
    whole = sorted((texts / "inner").glob("*.txt"))
    held = [path for path in whole if Document(f"inner/{path.name}", path).held_out(0.25)]
    assert 0 < len(held) < len(whole)
    assert held_out.tokens.tobytes() == b"".join(path.read_bytes() for path in held)
    assert training.tokens.tobytes() == b"".join(path.read_bytes() for path in whole if path not in held)


def test_the_root_is_stable_and_follows_every_change(texts: Path) -> None:
    before = load_data(Choice("folder", str(texts)))
    assert load_data(Choice("folder", str(texts)))[0].root == before[0].root
    path = next(p for p in sorted((texts / "inner").iterdir()) if not Document(f"inner/{p.name}", p).held_out(0.25))
    text = path.read_bytes()
    path.write_bytes(text.replace(b"text", b"Text", 1))
    os.utime(path, ns=(1, 1))
    changed = load_data(Choice("folder", str(texts)))
    assert changed[0].root != before[0].root
    assert changed[1].root == before[1].root, "a document stays on its side"
    path.write_bytes(text)
    assert load_data(Choice("folder", str(texts)))[0].root == before[0].root


def test_the_root_binds_form_and_every_byte(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 200_000, dtype=np.uint8)
    (tmp_path / "a").write_bytes(data.tobytes())
    root = Dataset(tmp_path / "a").root
    assert Dataset(tmp_path / "a", "uint16", 65536).root != root
    assert Dataset(tmp_path / "a", "uint8", 255).root != root
    for place in (0, 65_535, 65_536, 199_999):
        other = data.copy()
        other[place] ^= 1
        (tmp_path / "b").write_bytes(other.tobytes())
        assert Dataset(tmp_path / "b").root != root


def test_what_is_built_is_built_once(texts: Path, cache: Path) -> None:
    load_data(Choice("folder", str(texts)))
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*.bin")}
    assert len(before) == 2
    assert not list(cache.rglob("*.part"))
    load_data(Choice("folder", str(texts)))
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.bin")} == before
    for path in before:
        path.unlink()
    assert len(load_data(Choice("folder", str(texts)))[0]) > 0, "a cleaned cache is built again"


def test_the_standard_library_is_there() -> None:
    documents = stdlib_documents()
    assert len(documents) > 300
    assert any(document.name == "argparse.py" for document in documents)
    assert not any("site-packages" in document.name for document in documents)


def test_token_files_as_nanogpt_writes_them(tmp_path: Path) -> None:
    tokens = np.arange(1000, dtype="<u2") * 50
    (tmp_path / "tokens.bin").write_bytes(tokens.tobytes())
    training, held_out = load_data(Choice("bin", str(tmp_path / "tokens.bin"), "uint16", 0.1))
    assert np.array_equal(np.concatenate([training.tokens, held_out.tokens]), tokens)
    assert len(held_out) == 100
    (tmp_path / "train.bin").write_bytes(tokens.tobytes())
    (tmp_path / "val.bin").write_bytes(tokens[:10].tobytes())
    both = load_data(Choice("bin", str(tmp_path), "uint16"))
    assert [len(side) for side in both] == [1000, 10]


def test_a_token_beyond_the_models_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens.bin").write_bytes(np.arange(1000, dtype="<u2").tobytes())
    choice = Choice("bin", str(tmp_path / "tokens.bin"), "uint16", 0.1)
    with pytest.raises(
        DataError, match=r"model\.vocab=256: the data holds token 999; set model\.vocab to at least 1000"
    ):
        load_data(choice, 256)
    training, _ = load_data(choice, 1000)
    assert training.vocab == 1000
    assert training.root != load_data(choice)[0].root


def test_a_dataset_outlives_the_descriptor_it_came_from(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"some tokens")
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    dataset = Dataset.from_fd(fd, "uint8", 256)
    os.close(fd)
    assert dataset.tokens.tobytes() == b"some tokens"
    assert dataset.root == Dataset(tmp_path / "a").root
    assert not dataset.tokens.flags.writeable


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice("folder"), "data.path"),
        (Choice("folder", "/no/such/folder"), "no such folder"),
        (Choice("folder", "EMPTY"), "holds no UTF-8 text"),
        (Choice("folder", "TEXTS", "uint16"), "data.dtype"),
        (Choice("bin"), "data.path"),
        (Choice("bin", "/no/such.bin", "uint16"), "cannot be read"),
        (Choice("bin", "ODD", "uint16"), "no whole number"),
        (Choice("bin", "ZERO", "uint16"), "or none at all"),
        (Choice("shakespeare"), "witbench data fetch shakespeare"),
    ],
)
def test_what_cannot_be_used_says_what_to_do(choice: Choice, message: str, texts: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd.bin").write_bytes(b"abc")
    (tmp_path / "zero.bin").write_bytes(b"")
    places = {"EMPTY": "empty", "ODD": "odd.bin", "ZERO": "zero.bin", "TEXTS": "texts"}
    if choice.path in places:
        choice.path = str(tmp_path / places[choice.path])
    with pytest.raises(DataError, match=message):
        load_data(choice)
