"""A tiny procedure on real text, for the tests of this folder."""

from __future__ import annotations

import copy
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from witbench.training.data import Dataset
from witbench.training.determinism import set_deterministic
from witbench.training.procedure import GPTProcedure

CONFIG: dict[str, Any] = {
    "model": {
        "name": "tiny",
        "layers": 2,
        "heads": 2,
        "width": 16,
        "context": 32,
        "vocab": 256,
        "tie_embeddings": True,
        "dropout": 0.0,
        "dtype": "float32",
    },
    "optimizer": {
        "name": "adamw",
        "lr": 1e-2,
        "betas": (0.9, 0.95),
        "eps": 1e-8,
        "weight_decay": 0.1,
        "momentum": 0.0,
        "clip": 1.0,
        "warmup": 4,
        "min_lr_ratio": 0.1,
    },
    "training": {"updates": 48, "sequences": 4, "micro_batches": 1, "loss_scale_bits": 0, "eval_batches": 4},
}

Make = Callable[..., GPTProcedure]


@pytest.fixture(autouse=True)
def deterministic() -> None:
    """One thread, deterministic algorithms."""
    set_deterministic(1)


@pytest.fixture
def make() -> Make:
    """`make(model={...}, optimizer={...}, training={...})`: the tiny procedure with some settings changed."""

    def made(**changes: dict[str, Any]) -> GPTProcedure:
        config = copy.deepcopy(CONFIG)
        for group, values in changes.items():
            config[group].update(values)
        return GPTProcedure(config)

    return made


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The source of one real module, as bytes."""
    source = Path(sysconfig.get_paths()["stdlib"]) / "argparse.py"
    path = tmp_path_factory.mktemp("data") / "argparse.bin"
    path.write_bytes(source.read_bytes())
    return Dataset(path)
