"""Commitments bind every bit of data and state, and hide data behind salts that one key opens."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
import torch

from witbench.errors import ProtocolError, StateError
from witbench.kernels.manifest import build_manifest
from witbench.protocol import merkle
from witbench.protocol.commitments import (
    check_batch,
    commit_batch,
    commit_state,
    content_hash,
    same_batch,
    sequence_leaf,
    sequence_salt,
    step_key,
)
from witbench.training.state import Batch, State

KEY = bytes(range(32))


def a_batch() -> Batch:
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0]], dtype=torch.int32)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    lengths = torch.tensor([4, 3], dtype=torch.int32)
    return Batch(tokens, lengths, {"loss_mask": mask}, {"micro_batches": (1, 1), "ranks": (2,)})


def edited(batch: Batch, row: int, column: int, token: int) -> Batch:
    tokens = batch.tokens.clone()
    tokens[row, column] = token
    return replace(batch, tokens=tokens)


def variants() -> dict[str, Batch]:
    batch = a_batch()
    mask = batch.sequence_fields["loss_mask"].clone()
    mask[0, 0] = False
    return {
        "a token": edited(batch, 0, 2, 9),
        "the order of rows": replace(batch, tokens=batch.tokens.flip(0), lengths=batch.lengths.flip(0)),
        "a length": replace(batch, lengths=torch.tensor([4, 2], dtype=torch.int32)),
        "the mask": replace(batch, sequence_fields={"loss_mask": mask}),
        "one more field": replace(batch, sequence_fields={**batch.sequence_fields, "weights": torch.ones(2, 3)}),
        "micro-batches": replace(batch, batch_fields={"micro_batches": (2,), "ranks": (2,)}),
        "the rank map": replace(batch, batch_fields={"micro_batches": (1, 1), "ranks": (1, 1)}),
    }


def test_every_field_of_a_batch_is_bound() -> None:
    commitments = [commit_batch(a_batch(), KEY), *(commit_batch(batch, KEY) for batch in variants().values())]
    assert len(set(commitments)) == len(commitments)
    assert same_batch(a_batch(), a_batch())
    for what, batch in variants().items():
        assert not same_batch(a_batch(), batch), what


def test_the_batch_root_is_the_log_root_of_its_leaves() -> None:
    batch = a_batch()
    leaves = [sequence_leaf(batch, row, sequence_salt(KEY, row)) for row in range(2)]
    assert commit_batch(batch, KEY).root == merkle.root(leaves)
    assert leaves[1][:32] == sequence_salt(KEY, 1)
    expected = hashlib.sha256(
        b"witbench/seq/v0\n" + bytes([0, 0, 0, 3]) + b"".join(bytes([t, 0, 0, 0]) for t in (5, 6, 7))
    )
    assert leaves[1][32:64] == expected.digest()
    assert leaves[1][-4:] == (3).to_bytes(4, "big")


def test_content_does_not_depend_on_the_token_type() -> None:
    assert content_hash(torch.tensor([1, 255], dtype=torch.int32)) == content_hash(torch.tensor([1, 255]))


def test_roots_are_salted() -> None:
    """The same batch in two updates, or of two runs, shows nothing in common; one step key opens one update."""
    keys = [step_key(bytes(32), 0), step_key(bytes(32), 1), step_key(KEY, 0)]
    assert len({commit_batch(a_batch(), key).root for key in keys}) == 3
    salts = {sequence_salt(key, row) for key in keys for row in range(4)}
    assert len(salts) == 12


def test_what_a_leaf_would_not_bind_is_refused() -> None:
    check_batch(a_batch())
    mask = a_batch().sequence_fields["loss_mask"].clone()
    mask[1, 2] = True
    wrong = [
        edited(a_batch(), 1, 3, 8),
        replace(a_batch(), sequence_fields={"loss_mask": mask}),
        replace(a_batch(), lengths=torch.tensor([5, 3], dtype=torch.int32)),
        replace(a_batch(), sequence_fields={}),
        replace(a_batch(), sequence_fields={"loss_mask": mask[:, :2]}),
        replace(a_batch(), sequence_fields={**a_batch().sequence_fields, "weights": torch.ones(3)}),
        replace(a_batch(), batch_fields={"micro_batches": (1,), "ranks": (2,)}),
    ]
    for batch in wrong:
        with pytest.raises(ProtocolError, match=r"open\.leaf"):
            check_batch(batch)


def a_state() -> State:
    real = {("parameter", "w"): torch.arange(6.0).reshape(2, 3), ("exp_avg", "w"): torch.zeros(2, 3)}
    return State({"step": 1, "rng": b"abc"}, real)


def test_c_binds_both_parts_and_shows_two_of_its_digests() -> None:
    state = a_state()
    manifest = build_manifest(state.real)
    whole = commit_state(state, manifest)
    stepped = commit_state(State({"step": 2, "rng": b"abc"}, state.real), manifest)
    moved = commit_state(State(state.exact, {**state.real, ("exp_avg", "w"): torch.ones(2, 3)}), manifest)
    assert len({whole.state, stepped.state, moved.state}) == 3
    assert whole.exact == moved.exact != stepped.exact
    assert whole.parameters == moved.parameters == stepped.parameters
    with pytest.raises(StateError):
        commit_state(State(state.exact, {("parameter", "w"): torch.zeros(2, 3)}), manifest)
