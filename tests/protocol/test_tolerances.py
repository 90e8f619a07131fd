"""Calibration files: what is read, and what is refused in one line that names what is wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from witbench.config import RunConfig, compose
from witbench.errors import ConfigError
from witbench.kernels.base import Manifest
from witbench.kernels.manifest import build_manifest, group_names
from witbench.protocol.tolerances import identity, identity_digest, tolerances
from witbench.training.source import builtin_spec, procedure_from

TINY = ("model.layers=1", "model.width=16", "model.heads=2", "model.context=16", "training.updates=20")


def manifest(config: RunConfig) -> Manifest:
    return build_manifest(procedure_from(builtin_spec(config.procedure_plain())).init(0).real, config.sketch.groups)


@pytest.fixture
def fields() -> dict[str, Any]:
    """A calibration of the tiny configuration."""
    config = compose(TINY)
    made_for, groups = identity(config, manifest(config)), group_names(manifest(config))
    return {
        "format": 0,
        "identity": made_for,
        "identity_sha256": identity_digest(made_for),
        "tau": {"warmup": dict.fromkeys(groups, 1e-5), "after": dict.fromkeys(groups, 1e-6)},
        "evaluation_tau": {"loss": 1e-6},
    }


Take = Callable[..., Any]


@pytest.fixture
def take(tmp_path: Path) -> Take:
    """Write a calibration and take it for a run of these overrides."""
    path = tmp_path / "tau.json"

    def take(fields: object, *overrides: str) -> Any:
        path.write_text(fields if isinstance(fields, str) else json.dumps(fields))
        config = compose([*TINY, *overrides, "tolerance=calibrated", f"tolerance.calibration={path}"])
        return tolerances(config, manifest(config))

    return take


def test_a_calibration(fields: dict[str, Any], take: Take) -> None:
    tau, digest = take(fields)
    assert (tau.of(2)["norm/parameter"], tau.of(3)["norm/parameter"]) == (1e-5, 1e-6)
    assert tau.units == 2
    assert tau.evaluation == {"loss": 1e-6}
    assert digest == hashlib.sha256(json.dumps(fields).encode()).digest()


@pytest.mark.parametrize(
    "overrides",
    [("seed=7",), ("training.threads=2",), ("protocol.p=1.0",), ("protocol.lag=0",), ("training.eval_batches=3",)],
)
def test_what_a_calibration_does_not_depend_on(overrides: tuple[str, ...], fields: dict[str, Any], take: Take) -> None:
    take(fields, *overrides)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("sketch.params.k=512",), "sketch.params.k=256, where this run has 512"),
        (("sketch=gaussian",), "sketch.name=rht"),
        (("sketch.groups=tensor",), "sketch.groups=layer_role, where this run has tensor"),
        (("protocol.unit=2",), "protocol.unit=1, where this run has 2"),
        (("optimizer=sgd",), "optimizer.name=adamw"),
        (("optimizer.lr=0.004",), "optimizer.lr=0.003"),
        (("model.dtype=bfloat16",), "model.dtype=float32, where this run has bfloat16"),
        (("model.layers=2",), "model.layers=1"),
        (("model.dropout=0.1",), "model.dropout"),
        (("training.updates=21",), "training.updates=20"),
        (("training.sequences=4",), "training.sequences=8"),
        (("training.micro_batches=2",), "training.micro_batches=1"),
    ],
)
def test_a_calibration_of_another_run(
    overrides: tuple[str, ...], named: str, fields: dict[str, Any], take: Take
) -> None:
    with pytest.raises(ConfigError, match="made for another run") as caught:
        take(fields, *overrides)
    assert named in str(caught.value)
    assert "run `witbench calibrate`" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_an_edited_identity(fields: dict[str, Any], take: Take) -> None:
    fields["identity"]["sketch.params.k"] = 512
    with pytest.raises(ConfigError, match="identity is not the one its hash names"):
        take(fields, "sketch.params.k=512")


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("phase", "value"),
    [("after", -1e-9), ("warmup", -1.0), ("after", NAN), ("warmup", INFINITE), ("after", "1"), ("after", True)],
)
def test_a_tau_that_is_none(phase: str, value: object, fields: dict[str, Any], take: Take) -> None:
    fields["tau"][phase]["norm/parameter"] = value
    with pytest.raises(ConfigError, match=rf"tau\.{phase} of norm/parameter .* not a finite number"):
        take(fields)


@pytest.mark.parametrize("change", [{"tau": None}, {"tau": {"after": {}}}, {"evaluation_tau": {"loss": -1.0}}])
def test_other_shapes(change: dict[str, Any], fields: dict[str, Any], take: Take) -> None:
    with pytest.raises(ConfigError, match=r"its (tau|evaluation_tau)"):
        take({**fields, **change})


def test_a_group_too_few(fields: dict[str, Any], take: Take) -> None:
    del fields["tau"]["after"]["norm/parameter"]
    with pytest.raises(ConfigError, match=r"tau\.after does not have exactly the groups"):
        take(fields)


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{}", '{"format": 1}', "[" * 100_000])
def test_what_is_no_calibration(text: str, take: Take) -> None:
    with pytest.raises(ConfigError, match="`witbench calibrate` makes one"):
        take(text)


def test_by_hand_and_none() -> None:
    config = compose([*TINY, "tolerance=fixed", "tolerance.tau=0.25"])
    tau, digest = tolerances(config, manifest(config))
    assert (set(tau.of(1).values()), tau.units, digest) == ({0.25}, 0, None)
    exact = compose(TINY)
    assert tolerances(exact, manifest(exact))[0].after == {}


def test_without_a_file_the_command_is_named() -> None:
    with pytest.raises(ConfigError, match="witbench calibrate"):
        compose([*TINY, "tolerance=calibrated"])
