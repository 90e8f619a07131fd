"""Variations compute the same update in other numerics: equal exact part, real part equal but for roundings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from witbench.calibration.honest import Honest, Unit
from witbench.calibration.variations import VARIATIONS, chosen, read_names, run_unit, thread_count
from witbench.config import RunConfig
from witbench.errors import ConfigError
from witbench.protocol.commitments import exact_digest
from witbench.training.state import State

from .conftest import QUICK


@pytest.fixture(scope="module")
def honest(config: RunConfig) -> Honest:
    return Honest(config, 0)


@pytest.fixture(scope="module")
def unit(honest: Honest) -> Unit:
    """One in the middle of the run, when no moment is zero."""
    return list(honest.units())[4]


def farthest(a: State, b: State) -> float:
    return max(float((a.real[key] - b.real[key]).abs().max()) for key in a.real)


COMPILED = pytest.param("compile", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [*QUICK, COMPILED])
def test_the_same_update_but_for_roundings(name: str, config: RunConfig, honest: Honest, unit: Unit) -> None:
    variation = VARIATIONS[name](config)
    assert variation.unfit() is None
    random = np.random.default_rng(0)
    ends = [variation(honest.procedure, unit.start, unit.batches, draw, random) for draw in range(variation.draws())]
    assert ends
    for end in ends:
        assert exact_digest(end) == exact_digest(unit.end)
        assert farthest(end, unit.end) < 1e-5
    assert max(farthest(end, unit.end) for end in ends) > 0, f"{name} varies nothing"
    assert torch.get_num_threads() == config.training.threads


def test_a_permutation_moves_every_field_with_its_row(config: RunConfig, honest: Honest, unit: Unit) -> None:
    masked = unit.batches[0]
    mask = masked.sequence_fields["loss_mask"].clone()
    mask[0, :16] = False  # rows differ in what counts, so a mask that stayed behind would change the update
    batch = replace(masked, sequence_fields={"loss_mask": mask})
    end = run_unit(honest.procedure, unit.start, [batch])
    order = VARIATIONS["order"](config)
    for draw in range(3):
        other = order(honest.procedure, unit.start, [batch], draw, np.random.default_rng(draw))
        assert farthest(other, end) < 1e-5


def test_dropout_leaves_the_thread_count_alone(config: RunConfig) -> None:
    dropping = replace(config, model=replace(config.model, dropout=0.1))
    fit, left_out = chosen(dropping, list(VARIATIONS))
    assert [each.name for each in fit] == ["threads"]
    assert set(left_out) == {"micro_batches", "order", "compile"}
    assert all("dropout" in reason for reason in left_out.values())


def test_a_batch_of_one_row_has_one_split_and_order(config: RunConfig) -> None:
    single = replace(config, training=replace(config.training, sequences=1))
    with pytest.raises(ConfigError, match="none applies here"):
        chosen(single, ["micro_batches", "order"])


def test_names() -> None:
    assert list(VARIATIONS) == ["threads", "micro_batches", "order", "compile"]
    assert read_names("order, threads,order") == ("order", "threads")
    with pytest.raises(ConfigError, match="did you mean threads"):
        read_names("thread")
    with pytest.raises(ConfigError, match="at least one"):
        read_names(",")


def test_thread_counts_come_back_after_an_error() -> None:
    before = torch.get_num_threads()

    def fail() -> None:
        with thread_count(before + 1):
            assert torch.get_num_threads() == before + 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert torch.get_num_threads() == before
