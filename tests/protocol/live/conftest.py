"""A tiny world for live runs: real text, a tiny model, one sandbox for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from witbench.config import RunConfig, compose
from witbench.protocol.certify import Certified, WitnessedRun
from witbench.protocol.policy import Policy
from witbench.protocol.prover import Home
from witbench.protocol.report import Report
from witbench.protocol.sandbox import Limits, Sandbox
from witbench.protocol.tape import iter_records
from witbench.protocol.trainer import Trainer
from witbench.protocol.verifier import verify
from witbench.training.source import ProcedureSpec

TINY = (
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "model.context=16",
    "training.sequences=2",
    "training.updates=4",
    "training.eval_batches=1",
    "sketch.params.k=64",
    "protocol.p=1.0",
)


@dataclass
class World:
    """Where live runs of one test take place."""

    folder: Path
    texts: Path
    sandbox: Sandbox

    @property
    def home(self) -> Home:
        return Home(self.folder / "home")

    def config(self, *overrides: str) -> RunConfig:
        return compose([*TINY, "data=folder", f"data.path={self.texts}", *overrides])

    def begin(
        self,
        config: RunConfig,
        trainer: Callable[..., Trainer] = Trainer,
        spec: ProcedureSpec | None = None,
        sandbox: Sandbox | None = None,
        name: str = "run",
    ) -> WitnessedRun:
        return WitnessedRun(config, self.folder / name, self.home, sandbox or self.sandbox, spec, trainer)

    def run(self, config: RunConfig, trainer: Callable[..., Trainer] = Trainer, **more: Any) -> Certified:
        return self.begin(config, trainer, **more)()

    def verify(self, certified: Certified, policy: Policy | None = None) -> Report:
        return verify(certified.cert, self.home.key.public_key, policy, certified.weights)


def records(certified: Certified, kind: str | None = None) -> list[dict[str, Any]]:
    """The records of a run's tape, of one kind or all."""
    with (certified.cert / "tape").open("rb") as stream:
        return [record for _, record in iter_records(stream) if kind in (None, record["kind"])]


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few real source files."""
    folder = tmp_path_factory.mktemp("texts")
    library = Path(pytest.__file__).parent
    for number, path in enumerate(sorted(library.parent.glob("_pytest/*.py"))[:12]):
        (folder / f"{number:02}.py").write_bytes(path.read_bytes())
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(limits=Limits(seconds=60)) as sandbox:
        yield sandbox


@pytest.fixture
def world(tmp_path: Path, texts: Path, sandbox: Sandbox, cache: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("WITBENCH_CACHE", str(cache))
    return World(tmp_path, texts, sandbox)
