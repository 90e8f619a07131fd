"""A tiny model on real text, for attacks from end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from witbench.attacks.base import Outcome, Scene, drawn
from witbench.config import RunConfig, compose
from witbench.protocol.prover import Home
from witbench.protocol.sandbox import Limits, Sandbox
from witbench.registry import ATTACKS, build

TINY = (
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "model.context=48",
    "training.sequences=4",
    "training.updates=8",
    "training.eval_batches=1",
    "sketch.params.k=64",
    "protocol.p=1.0",
)
Make = Callable[..., RunConfig]
Run = Callable[[RunConfig], Outcome]


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few real source files."""
    folder = tmp_path_factory.mktemp("texts")
    for path in sorted((Path(pytest.__file__).parent.parent / "_pytest").glob("*.py"))[:12]:
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def make(texts: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Composes a tiny configuration."""
    monkeypatch.setenv("WITBENCH_CACHE", str(cache))
    return lambda *overrides: compose([*TINY, "data=folder", f"data.path={texts}", *overrides])


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(limits=Limits(seconds=60)) as sandbox:
        yield sandbox


@pytest.fixture
def run(tmp_path: Path, sandbox: Sandbox) -> Run:
    """Runs the attack of a configuration from end to end."""

    def attack(config: RunConfig) -> Outcome:
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        home = Home(folder / "broker", drawn(config.seed, "broker"))
        made = build(ATTACKS, config.attack.name, config.attack.params)
        outcome: Outcome = made(Scene(config, folder / "run", home, sandbox))
        return outcome

    return attack


def with_seed(config: RunConfig, seed: int) -> RunConfig:
    return replace(config, seed=seed)
