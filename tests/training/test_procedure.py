"""The functional procedure: purity, bitwise repeatability, and a State that holds everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from witbench.training.data import Dataset
from witbench.training.procedure import LOSS_SCALE_GROWTH, GPTProcedure
from witbench.training.serialize import state_from_bytes, state_to_bytes
from witbench.training.state import Batch, State

from .conftest import CONFIG

Make = Callable[..., GPTProcedure]
SEED = bytes(range(32))
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "adamw": {},
    "sgd": {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.01}},
    "momentum": {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}},
    "dropout": {"model": {"dropout": 0.2}},
    "bfloat16": {"model": {"dtype": "bfloat16"}},
    "scaled": {"training": {"loss_scale_bits": 8}},
    "accumulated": {"training": {"micro_batches": 2}},
    "untied": {"model": {"tie_embeddings": False}},
}


def walk(procedure: GPTProcedure, dataset: Dataset, updates: int, state: State | None = None, first: int = 0) -> State:
    state = state or procedure.init(7)
    for t in range(first, updates):
        state = procedure.update(state, procedure.batch(dataset, SEED, t))
    return state


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_runs_are_bitwise_equal(variant: str, make: Make, dataset: Dataset) -> None:
    changes = VARIANTS[variant]
    once, again = walk(make(**changes), dataset, 4), walk(make(**changes), dataset, 4)
    assert state_to_bytes(once) == state_to_bytes(again)


def test_two_processes_are_bitwise_equal(make: Make, dataset: Dataset) -> None:
    script = (
        "import sys, json, hashlib\n"
        "from witbench.training.procedure import GPTProcedure\n"
        "from witbench.training.data import Dataset\n"
        "from witbench.training.serialize import state_to_bytes\n"
        "from witbench.training.determinism import set_deterministic\n"
        "set_deterministic(1)\n"
        "config, path = json.loads(sys.argv[1]), sys.argv[2]\n"
        "p, d = GPTProcedure(config), Dataset(path)\n"
        "s = p.init(7)\n"
        "for t in range(4): s = p.update(s, p.batch(d, bytes(range(32)), t))\n"
        "sys.stdout.buffer.write(state_to_bytes(s))\n"
    )
    command = [sys.executable, "-c", script, json.dumps(CONFIG), str(dataset.path)]
    other = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    assert other.stdout == state_to_bytes(walk(make(), dataset, 4))


@pytest.mark.parametrize("variant", ["adamw", "dropout", "momentum", "scaled"])
def test_stopping_and_resuming_at_any_update_is_bitwise_equal(variant: str, make: Make, dataset: Dataset) -> None:
    changes = VARIANTS[variant]
    whole = state_to_bytes(walk(make(**changes), dataset, 5))
    for stop in range(6):
        kept = state_to_bytes(walk(make(**changes), dataset, stop))
        assert state_to_bytes(walk(make(**changes), dataset, 5, state_from_bytes(kept), stop)) == whole


@pytest.mark.parametrize("variant", VARIANTS)
def test_update_leaves_its_arguments_as_they_were(variant: str, make: Make, dataset: Dataset) -> None:
    procedure = make(**VARIANTS[variant])
    state = walk(procedure, dataset, 2)
    batch = procedure.batch(dataset, SEED, 2)
    before, tokens = state_to_bytes(state), batch.tokens.clone()
    after = procedure.update(state, batch)
    assert state_to_bytes(state) == before
    assert torch.equal(batch.tokens, tokens)
    held = {tensor.data_ptr() for key, tensor in state.real.items() if key[0] != "buffer"}
    assert not held & {tensor.data_ptr() for key, tensor in after.real.items() if key[0] != "buffer"}


def test_global_rng_is_left_alone_and_dropout_draws_from_the_state(make: Make, dataset: Dataset) -> None:
    procedure = make(model={"dropout": 0.2})
    state, batch = procedure.init(7), procedure.batch(dataset, SEED, 0)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    once = procedure.update(state, batch)
    assert torch.equal(torch.get_rng_state(), before)
    assert once.exact["rng"] != state.exact["rng"]
    torch.manual_seed(2)
    assert state_to_bytes(procedure.update(state, batch)) == state_to_bytes(once)
    other = State({**state.exact, "rng": procedure.init(8).exact["rng"]}, state.real)
    assert state_to_bytes(procedure.update(other, batch)) != state_to_bytes(once)


@pytest.mark.parametrize("variant", ["adamw", "momentum", "dropout", "scaled"])
def test_no_field_of_the_state_is_idle(variant: str, make: Make, dataset: Dataset) -> None:
    """Changing any one field changes the next state, or is carried into it."""
    procedure = make(**VARIANTS[variant])
    state, batch = walk(procedure, dataset, 2), procedure.batch(dataset, SEED, 2)
    after = state_to_bytes(procedure.update(state, batch))
    for name, value in state.exact.items():
        changed = procedure.init(9).exact["rng"] if name == "rng" else int(value) + 1
        assert state_to_bytes(procedure.update(State({**state.exact, name: changed}, state.real), batch)) != after, name
    for key, tensor in state.real.items():
        changed_real = {**state.real, key: tensor + 0.01}
        assert state_to_bytes(procedure.update(State(state.exact, changed_real), batch)) != after, key


def test_accumulation_equals_one_batch(make: Make, dataset: Dataset) -> None:
    whole, parts = make(), make(training={"micro_batches": 4})
    state, batch = whole.init(7), whole.batch(dataset, SEED, 0)
    once = whole.update(state, batch).real
    split = parts.update(state, parts.batch(dataset, SEED, 0)).real
    for key, tensor in once.items():
        torch.testing.assert_close(split[key], tensor, rtol=1e-4, atol=2e-5)


def test_masked_targets_count_for_nothing(make: Make, dataset: Dataset) -> None:
    """A masked row has no influence; accumulation weighs micro-batches by counted targets."""
    procedure = make(training={"micro_batches": 2})
    state, batch = procedure.init(7), procedure.batch(dataset, SEED, 0)
    mask = batch.sequence_fields["loss_mask"].clone()
    mask[1:] = False
    masked = replace(batch, sequence_fields={"loss_mask": mask})
    tokens = batch.tokens.clone()
    tokens[1:] = 0
    other = replace(masked, tokens=tokens)
    torch.testing.assert_close(
        procedure.update(state, masked).real["parameter", "blocks.0.up.weight"],
        procedure.update(state, other).real["parameter", "blocks.0.up.weight"],
    )
    single = Batch(batch.tokens[:1], batch.lengths[:1], {"loss_mask": mask[:1]}, {"micro_batches": (1,), "ranks": (1,)})
    torch.testing.assert_close(
        procedure.update_with_metrics(state, masked)[1]["loss"], procedure.update_with_metrics(state, single)[1]["loss"]
    )


def test_overflow_skips_the_update_and_lowers_the_scale(make: Make, dataset: Dataset) -> None:
    procedure = make(training={"loss_scale_bits": 8})
    state, batch = procedure.init(7), procedure.batch(dataset, SEED, 0)
    huge = State({**state.exact, "loss_scale_bits": 500, "loss_scale_good": 3}, state.real)
    after = procedure.update(huge, batch)
    assert (after.exact["loss_scale_bits"], after.exact["loss_scale_good"]) == (499, 0)
    assert (after.exact["step"], after.exact["schedule"]) == (0, 1)
    assert all(torch.equal(after.real[key], state.real[key]) for key in state.real)


def test_the_scale_grows_after_enough_good_updates(make: Make, dataset: Dataset) -> None:
    procedure = make(training={"loss_scale_bits": 8})
    state = procedure.init(7)
    ready = State({**state.exact, "loss_scale_good": LOSS_SCALE_GROWTH - 1}, state.real)
    after = procedure.update(ready, procedure.batch(dataset, SEED, 0))
    assert (after.exact["loss_scale_bits"], after.exact["loss_scale_good"]) == (9, 0)


def test_a_power_of_two_scale_changes_no_bit_without_overflow(make: Make, dataset: Dataset) -> None:
    plain, scaled = walk(make(), dataset, 3), walk(make(training={"loss_scale_bits": 8}), dataset, 3)
    assert all(torch.equal(plain.real[key], scaled.real[key]) for key in plain.real)


def test_without_scaling_a_bad_loss_is_not_hidden(make: Make, dataset: Dataset) -> None:
    procedure = make()
    state = procedure.init(7)
    key = ("parameter", "embedding.weight")
    broken = State(state.exact, {**state.real, key: state.real[key] * float("nan")})
    after, metrics = procedure.update_with_metrics(broken, procedure.batch(dataset, SEED, 0))
    assert metrics["loss"] != metrics["loss"]
    assert not bool(torch.isfinite(after.real["parameter", "norm.weight"]).all())


def test_the_loss_falls_on_real_text(make: Make, dataset: Dataset) -> None:
    procedure = make()
    before = procedure.evaluate(procedure.init(7), dataset)["loss"]
    after = procedure.evaluate(walk(procedure, dataset, 48), dataset)["loss"]
    assert before == pytest.approx(5.545, abs=0.1), "ln 256 at the start"
    assert after < before - 1.0


def test_batches_are_pure_and_open_at_any_update(make: Make, dataset: Dataset) -> None:
    first, second = make(), make()
    late = first.batch(dataset, SEED, 1000)
    for t in (3, 1, 2):
        first.batch(dataset, SEED, t)
    again = second.batch(dataset, SEED, 1000)
    assert torch.equal(late.tokens, again.tokens)
    assert not torch.equal(late.tokens, second.batch(dataset, bytes(32), 1000).tokens)
    assert not torch.equal(late.tokens, second.batch(dataset, SEED, 1001).tokens)
    row = bytes(late.tokens[0].to(torch.uint8).numpy().tobytes())
    assert row in dataset.tokens.tobytes()
