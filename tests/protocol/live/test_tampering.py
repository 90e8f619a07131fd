"""Tampering with any single field of the state between two updates is caught, by name, in exact and with a tau."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from witbench.attacks.base import MaliciousTrainer
from witbench.attacks.branches import Trajectory
from witbench.protocol.ledger import Plan
from witbench.training.state import Batch, Key, State

from .conftest import World

MODES = {"exact": ("tolerance=exact",), "tau": ("tolerance=fixed", "tolerance.tau=1e-5")}
REAL = {"exact": "replay.digest", "tau": "replay.distance"}


class Tamper(MaliciousTrainer):
    """Changes one field after the unit's update."""

    def __init__(self, change: Callable[[State], State]) -> None:
        self.change = change

    def amount(self) -> int:
        return 1

    def train(self, t: int, state: State, declared: Batch) -> State:
        return self.change(super().train(t, state, declared))


def exact_change(name: str) -> Callable[[State], State]:
    def change(state: State) -> State:
        value = state.exact[name]
        if isinstance(value, bytes):
            return State({**state.exact, name: bytes([value[0] ^ 1]) + value[1:]}, state.real)
        return State({**state.exact, name: int(value) + 1}, state.real)

    return change


def real_change(key: Key, flat: int, by: float) -> Callable[[State], State]:
    def change(state: State) -> State:
        tensor = state.real[key].clone()
        tensor.view(-1)[flat] += by
        return State(state.exact, {**state.real, key: tensor})

    return change


def judge(trajectory: Trajectory, change: Callable[[State], State]) -> str | None:
    rng = np.random.default_rng(0)
    return trajectory.judge(Tamper(change), 3, {}, rng).check


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def fields(world: World, mode: str, *overrides: str) -> tuple[Trajectory, State]:
    config = world.config(*MODES[mode], "model.dropout=0.1", "training.loss_scale_bits=8", *overrides)
    trajectory = Trajectory(config, (7, bytes(range(32))), [2])
    return trajectory, trajectory.state(2)


def test_every_exact_field(mode: str, world: World) -> None:
    trajectory, state = fields(world, mode)
    assert set(state.exact) == {"step", "schedule", "rng", "loss_scale_bits", "loss_scale_good"}
    for name in state.exact:
        assert judge(trajectory, exact_change(name)) == "replay.exact_part", name
    assert judge(trajectory, lambda state: state) is None


def test_every_real_tensor_by_one_entry(mode: str, world: World) -> None:
    """One entry of each parameter, buffer and moment; second moments grow by what an L2 norm of roots can see."""
    trajectory, state = fields(world, mode)
    assert {role for role, _ in state.real} == {"parameter", "buffer", "exp_avg", "exp_avg_sq"}
    for key, tensor in state.real.items():
        middle = tensor.numel() // 2
        assert judge(trajectory, real_change(key, middle, 1e-3)) == REAL[mode], key


def test_every_momentum_buffer_of_sgd(mode: str, world: World) -> None:
    config = ("optimizer=sgd", "optimizer.momentum=0.9")
    trajectory, state = fields(world, mode, *config)
    moments = [key for key in state.real if key[0] == "exp_avg"]
    assert moments
    for key in moments:
        assert judge(trajectory, real_change(key, 0, 1e-3)) == REAL[mode], key


def test_one_bit_of_any_tensor_in_exact_mode(world: World) -> None:
    trajectory, state = fields(world, "exact")
    for key in state.real:

        def flip(state: State, key: Key = key) -> State:
            tensor = state.real[key].clone()
            tensor.view(torch.int32).view(-1)[-1] ^= 1
            return State(state.exact, {**state.real, key: tensor})

        assert judge(trajectory, flip) == "replay.digest", key


def test_a_field_left_out_is_no_pass(world: World) -> None:
    trajectory, _ = fields(world, "exact")

    def drop(state: State) -> State:
        return State({name: value for name, value in state.exact.items() if name != "rng"}, state.real)

    assert judge(trajectory, drop) == "replay.exact_part"


def test_tampering_from_end_to_end(mode: str, world: World) -> None:
    """The same through broker, sandbox and tape, for one field of each kind."""
    changes = {"replay.exact_part": exact_change("rng"), REAL[mode]: real_change(("exp_avg_sq", "norm.bias"), 0, 1e-3)}
    for number, (check, change) in enumerate(changes.items()):

        def trainer(*data: Any, change: Callable[[State], State] = change) -> Tamper:
            return Tamper(change).bind({}, Plan(2, 1), np.random.default_rng(0), *data)

        certified = world.run(world.config(*MODES[mode], "training.updates=2"), trainer, name=f"run-{number}")
        assert certified.failed == check
