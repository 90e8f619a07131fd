from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from witbench import groups
from witbench.config import RunConfig, compose
from witbench.errors import ConfigError
from witbench.protocol.switches import WITNESS, Switches
from witbench.registry import ATTACKS, PLACEMENTS, PROTOCOLS, SKETCHES
from witbench.training.model import GPT

PARAMETERS = {"k": 1e3, "m": 1e6, "b": 1e9}

BAD = [
    # overrides, what the message must hold: the key, its value, what is allowed
    (["protocol.p=1.5"], ["protocol.p=1.5", "[0, 1]"]),
    (["protocol.p=-0.1"], ["protocol.p=-0.1", "[0, 1]"]),
    (["protocol.p=nan"], ["protocol.p=nan", "finite"]),
    (["protocol.p=half"], ["protocol.p=half", "number"]),
    (["protocol.unit=0"], ["protocol.unit=0", "at least 1"]),
    (["protocol.unit=65"], ["protocol.unit=65", "training.updates=64"]),
    (["protocol.lag=-1"], ["protocol.lag=-1", "at least 0"]),
    (["protocol.deadline_s=0"], ["protocol.deadline_s=0", "positive"]),
    (["protocol.opening=end"], ["protocol.opening=end", "both, start"]),
    (["protocol.switches.coin=dice"], ["coin=dice", "beacon"]),
    (["+protocol.switches.opening=both"], ["protocol.switches.opening", "protocol.opening=NAME"]),
    (["sketch.params.k=100"], ["sketch.params.k=100", "power of two from 64 to 4096"]),
    (["sketch.params.k=8192"], ["sketch.params.k=8192", "power of two from 64 to 4096"]),
    (["sketch.params.rows=64"], ["sketch.params.rows=64", "takes k"]),
    (["sketch=digest", "sketch.params.k=64"], ["sketch.params.k=64", "takes none"]),
    (["sketch.groups=layers"], ["sketch.groups=layers", "layer_role", "did you mean layer_role?"]),
    (["sketch=rth"], ["sketch=rth", "digest, gaussian, rht", "did you mean rht?"]),
    (["model=gpt_2m"], ["model=gpt_2m", "gpt_3m", "did you mean"]),
    (["model.heads=5"], ["model.heads=5", "divisor of model.width=64"]),
    (["model.heads=64"], ["model.heads=64", "even quotient"]),
    (["model.vocab=1"], ["model.vocab=1", "2 to 65536"]),
    (["model.dropout=1"], ["model.dropout=1", "[0, 1)"]),
    (["model.dtype=float8"], ["model.dtype=float8", "float32"]),
    (["model.layers=0"], ["model.layers=0", "at least 1"]),
    (["data=folder"], ["data.path", "must be given"]),
    (["data=folder", "data.path=null"], ["data.path=null", "path of your folder"]),
    (["data=folder", "data.path=/does/not/exist"], ["data.path=/does/not/exist", "a folder that exists"]),
    (["data=bin", "data.path=/does/not/exist"], ["data.path=/does/not/exist", "a file that exists"]),
    (["data.path=here"], ["data.path=here", "null with data=stdlib"]),
    (["data.held_out=1"], ["data.held_out=1", "(0, 1)"]),
    (["data.dtype=int64"], ["data.dtype=int64", "uint16, uint8"]),
    (["optimizer=adam"], ["optimizer=adam", "adamw, sgd", "did you mean adamw?"]),
    (["optimizer.lr=0"], ["optimizer.lr=0", "positive"]),
    (["optimizer.lr=inf"], ["optimizer.lr=inf", "finite"]),
    (["optimizer.betas=[0.9]"], ["optimizer.betas=[0.9]", "2 numbers"]),
    (["optimizer.betas=[0.9,1]"], ["optimizer.betas=[0.9, 1.0]", "[0, 1)"]),
    (["optimizer.warmup=65"], ["optimizer.warmup=65", "training.updates=64"]),
    (["optimizer=sgd", "optimizer.eps=1"], ["optimizer.eps", "unknown key"]),
    (["training.updates=0"], ["training.updates=0", "at least 1"]),
    (["training.updates=2.5"], ["training.updates=2.5", "an integer"]),
    (["training.updates=true"], ["training.updates=true", "an integer"]),
    (["training.updates=many"], ["training.updates=many", "an integer"]),
    (["training.updates=8,16"], ["training.updates=8,16", "one value at a time"]),
    (["training.micro_batches=3"], ["training.micro_batches=3", "divisor of sequences=8"]),
    (["training.loss_scale_bits=31"], ["training.loss_scale_bits=31", "0 to 30"]),
    (["training.update=8"], ["training.update", "unknown key", "did you mean updates?"]),
    (["tolerance=fixed"], ["tolerance.tau", "must be given"]),
    (["tolerance=fixed", "tolerance.tau=-1"], ["tolerance.tau=-1", "at least 0"]),
    (["tolerance=fixed", "tolerance.tau=inf"], ["tolerance.tau=inf", "finite"]),
    (["tolerance=calibrated"], ["tolerance.calibration", "must be given"]),
    (["tolerance=calibrated", "tolerance.calibration=none.json"], ["tolerance.calibration=none.json", "exists"]),
    (["tolerance.tau=1"], ["tolerance.tau=1", "null with tolerance=exact"]),
    (["attack=substituton"], ["attack=substituton", "reorder, substitution", "did you mean substitution?"]),
    (["attack.params.amount=1"], ["attack.params", "empty without an attack"]),
    (["placement=spread", "placement.params.units=0"], ["units=0", "at least 1"]),
    (["placement=tail", "placement.params.fraction=2"], ["fraction=2", "(0, 1]"]),
    (["placement.params.units=8"], ["placement.params.units=8", "takes none"]),
    (["seed=-1"], ["seed=-1", "2^63"]),
    (["sead=1"], ["sead", "unknown key", "did you mean seed?"]),
    (["+colour=red"], ["colour", "unknown key"]),
    (["hydra.run.dir=x"], ["hydra", "unknown key"]),
    (["seed.x=1"], ["seed.x", "single value"]),
    (["seed"], ["seed", "key=value"]),
    (["model@other=gpt_3m"], ["model@other=gpt_3m", "model=NAME"]),
    (["seed=${no.such}"], ["no.such"]),
    (["~model"], ["model", "must be given"]),
    (["~training"], ["training", "must be given"]),
]


@pytest.mark.parametrize(("overrides", "parts"), BAD, ids=lambda value: " ".join(value)[:60])
def test_what_is_wrong_is_named_with_what_is_allowed(overrides: list[str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_composing_twice_gives_the_same_and_leaves_hydra_free() -> None:
    assert compose(["model=gpt_3m"]) == compose(["model=gpt_3m"]) != compose()


def test_overrides_reach_their_field() -> None:
    config = compose(["protocol.p=1", "training.updates=16", "sketch.params.k=64", "optimizer=sgd", "attack=none"])
    assert (config.protocol.p, config.training.updates, config.sketch.params) == (1.0, 16, {"k": 64})
    assert (config.optimizer.name, config.optimizer.momentum, config.optimizer.warmup) == ("sgd", 0.9, 2)
    assert isinstance(config.protocol.p, float)


def test_plain_form_is_json_and_comes_back_equal() -> None:
    config = compose(["placement=spread", "tolerance=fixed", "tolerance.tau=0.25", "optimizer.betas=[0.5,0.75]"])
    text = json.dumps(config.to_plain(), sort_keys=True, allow_nan=False)
    assert RunConfig.from_plain(json.loads(text)) == config
    assert json.loads(text)["tolerance"] == {"name": "fixed", "tau": 0.25, "calibration": None}


def test_the_procedure_sees_neither_protocol_nor_seed() -> None:
    plain = compose().procedure_plain()
    assert set(plain) == {"model", "optimizer", "training"}
    assert plain == compose(["protocol.p=0.5", "seed=7", "sketch=digest"]).procedure_plain()
    assert plain != compose(["training.updates=8"]).procedure_plain()


@pytest.mark.parametrize(
    "change", [{"extra": 1}, {"seed": "0"}, {"training": 3}, {"sketch": {"name": "rht", "params": []}}]
)
def test_foreign_plain_forms_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        RunConfig.from_plain({**compose().to_plain(), **change})
    with pytest.raises(ConfigError, match="must be a mapping"):
        RunConfig.from_plain([])  # type: ignore[arg-type]


def test_configs_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        compose().seed = 1  # type: ignore[misc]


def test_every_choice_composes_or_names_what_it_needs(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"0123")
    given = {
        "data=folder": [f"data.path={tmp_path}"],
        "data=bin": [f"data.path={file}"],
        "tolerance=fixed": ["tolerance.tau=0.1"],
        "tolerance=calibrated": [f"tolerance.calibration={file}"],
        "protocol=loose_tolerance": [f"tolerance.calibration={file}"],
    }
    for group in groups.group_names():
        for name in groups.choices(group):
            choice = f"{group}={name}"
            assert bool(groups.missing_keys([choice])) == (choice in given)
            compose([choice, *given.get(choice, [])])
            assert groups.compose_plain([choice, *given.get(choice, [])])[group]["name"] == name


def test_files_are_named_as_their_choice_and_registries_have_them() -> None:
    found = {group: set(groups.choices(group)) for group in groups.group_names()}
    assert found["sketch"] == set(SKETCHES.names())
    assert found["placement"] == set(PLACEMENTS.names())
    assert found["attack"] == {"none", *ATTACKS.names()}
    assert found["protocol"] == set(PROTOCOLS.names())


def test_presets_change_what_the_registry_says_and_nothing_else() -> None:
    reference = groups.compose_plain(["protocol=witness"])["protocol"]
    for name in PROTOCOLS.names():
        preset = groups.compose_plain([f"protocol={name}", "tolerance=fixed", "tolerance.tau=0.1"])["protocol"]
        changes = dict(PROTOCOLS.get(name))
        switches = {**reference["switches"], **changes.pop("switches", {})}
        assert preset == {**reference, "name": name, "switches": switches, **changes}


def test_the_reference_preset_has_the_reference_switches() -> None:
    names = compose().switch_names()
    assert names == {**WITNESS, "tolerance": "exact"}
    assert Switches.from_names(names).names() == names


@pytest.mark.parametrize("name", groups.choices("model"))
def test_models_have_the_parameters_of_their_name(name: str) -> None:
    with torch.device("meta"):
        model = GPT(compose([f"model={name}"]).to_plain()["model"])
    named = float(name.removeprefix("gpt_")[:-1]) * PARAMETERS[name[-1]]
    count = sum(parameter.numel() for parameter in model.parameters())
    assert 0.8 * named < count < 1.2 * named


def test_an_update_has_1024_target_tokens() -> None:
    config = compose()
    assert config.training.sequences * config.model.context == 1024


def test_configs_are_found_beside_the_package() -> None:
    assert (groups.config_dir() / "config.yaml").is_file()
    assert all((groups.config_dir() / group).is_dir() for group in groups.group_names())
