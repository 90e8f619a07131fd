"""Datasets: flat memory-mapped token files, and the builders that make them from text that is at hand.

Text becomes bytes, one token each. A builder reads its documents once, writes a training and a held-out file into the
cache under names that are digests of their content, and finds them again as long as no document's size or time changed.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from witbench.errors import DataError
from witbench.kernels.digest import merkle_root

LEAF_BYTES = 65536
"""Bytes of a dataset that one leaf of its root covers."""

STDLIB, FOLDER, BIN = "stdlib", "folder", "bin"
_DTYPES: dict[str, np.dtype[np.unsignedinteger[Any]]] = {"uint8": np.dtype("u1"), "uint16": np.dtype("<u2")}
_SKIPPED = {"site-packages", "dist-packages", "__pycache__"}
_VOCAB = {"uint8": 256, "uint16": 65536}


class DataChoice(Protocol):
    """What `load_data` needs to know; the configuration's group `data` has it."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str | None: ...
    @property
    def dtype(self) -> str: ...
    @property
    def held_out(self) -> float: ...


class Dataset:
    """A flat file of tokens.

    Args:
        path: the file.
        dtype: `uint8` or `uint16` (little-endian).
        vocab: tokens are below this.
    """

    def __init__(self, path: Path, dtype: str = "uint8", vocab: int = 256) -> None:
        self.path = Path(path)
        with _opened(self.path) as file:
            self._map(file.fileno(), dtype, vocab)

    @classmethod
    def from_fd(cls, fd: int, dtype: str, vocab: int) -> Dataset:
        """The dataset in an open file; the descriptor may be closed afterwards."""
        dataset = cls.__new__(cls)
        dataset.path = Path(f"/dev/fd/{fd}")
        dataset._map(fd, dtype, vocab)
        return dataset

    def _map(self, fd: int, dtype: str, vocab: int) -> None:
        if dtype not in _DTYPES:
            raise DataError(f"data.dtype={dtype}: choose from {', '.join(_DTYPES)}")
        size = os.fstat(fd).st_size
        if size == 0 or size % _DTYPES[dtype].itemsize:
            raise DataError(f"{self.path}: {size} bytes are no whole number of {dtype} tokens, or none at all")
        self.dtype, self.vocab = dtype, vocab
        self.tokens: NDArray[np.unsignedinteger[Any]] = np.frombuffer(
            mmap.mmap(fd, 0, access=mmap.ACCESS_READ), dtype=_DTYPES[dtype]
        )

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    @cached_property
    def root(self) -> bytes:
        """32 bytes: SHA-256 of tag, dtype, vocabulary, count and the RFC 6962 root over BLAKE3 of 64 KiB ranges."""
        data = self.tokens.view(np.uint8).data
        leaves = [blake3(data[start : start + LEAF_BYTES]).digest() for start in range(0, len(data), LEAF_BYTES)]
        header = f"witbench/dataset/v0\n{self.dtype}\n{self.vocab}\n{len(self)}\n".encode()
        return hashlib.sha256(header + merkle_root(leaves)).digest()


def load_data(choice: DataChoice, vocab: int | None = None) -> tuple[Dataset, Dataset]:
    """The training and the held-out data of a configuration.

    Args:
        choice: which data.
        vocab: vocabulary of the model that is to read it; all values of the token type when None.

    Raises:
        DataError: there is no such data, not enough, or a token beyond the vocabulary; the message says what to do.
    """
    if choice.name != BIN and choice.dtype != "uint8":
        raise DataError(f"data.dtype={choice.dtype}: text is read as bytes; only data=bin has other tokens")
    sides = _bin(choice) if choice.name == BIN else _built(_documents(choice), choice.held_out)
    if vocab is None:
        return sides
    largest = max(int(side.tokens.max()) for side in sides)
    if largest >= vocab:
        raise DataError(
            f"model.vocab={vocab}: the data holds token {largest}; set model.vocab to at least {largest + 1}"
        )
    training, held_out = (Dataset(side.path, side.dtype, vocab) for side in sides)
    return training, held_out


def cache_folder() -> Path:
    """Where datasets are kept: WITBENCH_CACHE, or `witbench` in the user's cache folder."""
    own = os.environ.get("WITBENCH_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(own) if own else Path(base) / "witbench"


@dataclass(frozen=True)
class Document:
    """One text file; `name` (its path below the corpus) decides its place and side."""

    name: str
    path: Path

    def held_out(self, fraction: float) -> bool:
        """Whether it belongs to the held-out side: a hash of its name, so that adding documents moves none."""
        drawn = int.from_bytes(hashlib.sha256(b"witbench/split/v0\n" + self.name.encode()).digest()[:8], "big")
        return drawn < fraction * 2**64


def stdlib_documents() -> list[Document]:
    """Every source file of Python's standard library, in order of its path."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return _below(folder, (path for path in _walk(folder) if path.suffix == ".py"))


def folder_documents(folder: Path) -> list[Document]:
    """Every UTF-8 text file below a folder, in order of its path."""
    if not folder.is_dir():
        raise DataError(f"data.path={folder}: no such folder")
    found = _below(folder, (path for path in _walk(folder) if path.is_file() and _is_text(path)))
    if not found:
        raise DataError(f"data.path={folder}: holds no UTF-8 text; name a folder with text files")
    return found


def _below(folder: Path, paths: Iterable[Path]) -> list[Document]:
    return sorted((Document(path.relative_to(folder).as_posix(), path) for path in paths), key=lambda d: d.name)


def _walk(folder: Path) -> Iterator[Path]:
    for parent, inner, files in os.walk(folder):
        inner[:] = [name for name in inner if name not in _SKIPPED]
        yield from (Path(parent, name) for name in files)


def _is_text(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(4096)
    # A character may be cut at the end of the piece; a NUL byte is in no text.
    return bool(head) and b"\0" not in head and "\ufffd" not in head.decode("utf-8", "replace").rstrip("\ufffd")


def _documents(choice: DataChoice) -> list[Document]:
    if choice.name == STDLIB:
        return stdlib_documents()
    if choice.name == FOLDER:
        if choice.path is None:
            raise DataError("data.path: data=folder needs a folder, as in data.path=texts")
        return folder_documents(Path(choice.path))
    corpus = cache_folder() / "corpora" / choice.name
    if not corpus.is_dir():
        raise DataError(f"data={choice.name}: not here yet; run `witbench data fetch {choice.name}`")
    return folder_documents(corpus)


def _bin(choice: DataChoice) -> tuple[Dataset, Dataset]:
    """A folder with `train.bin` and `val.bin` as nanoGPT writes them, or one file whose end is held out."""
    if choice.path is None:
        raise DataError("data.path: data=bin needs a token file, as in data.path=train.bin")
    path, vocab = Path(choice.path), _VOCAB[choice.dtype]
    if path.is_dir():
        return Dataset(path / "train.bin", choice.dtype, vocab), Dataset(path / "val.bin", choice.dtype, vocab)
    whole = Dataset(path, choice.dtype, vocab)
    cut = round(len(whole) * (1 - choice.held_out))
    parts = []
    for tokens in (whole.tokens[:cut], whole.tokens[cut:]):
        if not len(tokens):
            raise DataError(f"data.path={path}: too short to hold a part of it out")
        parts.append(Dataset(_kept([tokens.tobytes()]), choice.dtype, vocab))
    return parts[0], parts[1]


def _built(documents: Sequence[Document], fraction: float) -> tuple[Dataset, Dataset]:
    index = cache_folder() / "index" / f"{_fingerprint(documents, fraction)}.json"
    paths = _indexed(index)
    if paths is None:
        sides = [[d for d in documents if d.held_out(fraction) is held] for held in (False, True)]
        if len(documents) == 1:
            data = documents[0].path.read_bytes()
            cut = round(len(data) * (1 - fraction))
            paths = [_kept([data[:cut]]), _kept([data[cut:]])]
        elif not sides[0] or not sides[1]:
            raise DataError(f"{len(documents)} documents leave one side of the split empty; change data.held_out")
        else:
            paths = [_kept(document.path.read_bytes() for document in side) for side in sides]
        _write(index, json.dumps([path.name for path in paths]).encode())
    return Dataset(paths[0]), Dataset(paths[1])


def _fingerprint(documents: Sequence[Document], fraction: float) -> str:
    lines = [f"{fraction!r}"]
    for document in documents:
        stat = document.path.stat()
        lines.append(f"{document.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0{document.path}")
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _indexed(index: Path) -> list[Path] | None:
    try:
        names = json.loads(index.read_bytes())
    except (OSError, ValueError):
        return None
    paths = [cache_folder() / "tokens" / name for name in names]
    return paths if all(path.is_file() for path in paths) else None


def _kept(pieces: Iterable[bytes | memoryview]) -> Path:
    """Write bytes into the cache under the digest of their content."""
    folder = cache_folder() / "tokens"
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{os.getpid()}.part"
    digest = hashlib.sha256()
    try:
        with temporary.open("wb") as file:
            for piece in pieces:
                digest.update(piece)
                file.write(piece)
        path = folder / f"{digest.hexdigest()}.bin"
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"{folder}: the dataset cannot be kept here ({error.strerror}); set WITBENCH_CACHE") from None
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    temporary.write_bytes(data)
    temporary.replace(path)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
