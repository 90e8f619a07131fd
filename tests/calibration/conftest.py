"""One tiny configuration, calibrated once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from witbench.calibration.run import Calibrated, Settings, calibrate
from witbench.config import RunConfig, compose

TINY = (
    "training.updates=8",
    "training.sequences=4",
    "training.eval_batches=1",
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "model.context=32",
    "sketch.params.k=64",
)
QUICK = ("threads", "micro_batches", "order")
"""The variations without a compiler, which takes half a minute."""


def silent(done: int, total: int) -> None:
    """Show nothing."""


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few real source files."""
    folder = tmp_path_factory.mktemp("texts")
    library = Path(pytest.__file__).parent
    for number, path in enumerate(sorted(library.parent.glob("_pytest/*.py"))[:12]):
        (folder / f"{number:02}.py").write_bytes(path.read_bytes())
    return folder


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WITBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny(texts: Path) -> list[str]:
    """Its overrides."""
    return [*TINY, "data=folder", f"data.path={texts}"]


@pytest.fixture(scope="session")
def config(tiny: list[str]) -> RunConfig:
    return compose(tiny)


@pytest.fixture(scope="session")
def settings() -> Settings:
    return Settings(distances=24, runs=3, variations=QUICK, workers=1)


@pytest.fixture(scope="session")
def calibrated(config: RunConfig, settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    return calibrate(config, settings, tmp_path_factory.mktemp("calibrated") / "tau.json", silent)
