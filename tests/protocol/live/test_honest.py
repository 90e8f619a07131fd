"""Honest runs are accepted, whatever the design, tolerance, unit, lag and optimizer; the witness changes no bit."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from witbench.protocol.encoding import f64_from
from witbench.protocol.ledger import Plan
from witbench.protocol.policy import Policy
from witbench.protocol.run import run_units
from witbench.protocol.trainer import Trainer
from witbench.training.data import load_data
from witbench.training.serialize import weights_to_bytes
from witbench.training.source import builtin_spec, procedure_from

from .conftest import World, records

VARIANTS = {
    "exact": (),
    "units": ("protocol.unit=3", "training.updates=7"),
    "no lag": ("protocol.lag=0", "protocol.unit=2"),
    "open both": ("protocol.opening=both",),
    "sgd": ("optimizer=sgd",),
    "dropout": ("model.dropout=0.1",),
    "loss scale": ("training.loss_scale_bits=8",),
    "micro-batches": ("training.micro_batches=2",),
    "bfloat16": ("model.dtype=bfloat16",),
    "groups by tensor": ("sketch.groups=tensor",),
    "groups by role": ("sketch.groups=role",),
    "digest": ("sketch=digest", "~sketch.params.k"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_honest_run_is_accepted(variant: str, world: World) -> None:
    certified = world.run(world.config(*VARIANTS[variant]))
    assert certified.failed is None, certified.detail
    report = world.verify(certified)
    assert report.accepted, report.reason
    assert report.weights_checked
    assert report.weights == hashlib.sha256(certified.weights.read_bytes()).hexdigest()
    kinds = [record["kind"] for record in records(certified)]
    assert kinds[0] == "genesis"
    assert kinds[-1] == "final"
    for record in records(certified, "replay")[1:]:
        assert all(record["checks"].values())
        assert record["yardstick"].keys() == record["distances"].keys() != set()


def yardstick(world: World, *overrides: str) -> float:
    """A hundredth of what one changed token does in its most moved group, in the unit where that is least.

    The policy asks for a tenth; which token is changed is drawn anew in every run, hence the margin.
    """
    certified = world.run(world.config(*overrides), name="measure")
    replays = records(certified, "replay")[1:]
    return min(max(map(f64_from, record["yardstick"].values())) for record in replays) / 100


@pytest.mark.parametrize(
    "overrides", [(), ("protocol.opening=both",), ("sketch=gaussian", "sketch.params.k=16"), ("protocol.unit=2",)]
)
def test_honest_runs_with_a_fixed_tau(overrides: tuple[str, ...], world: World) -> None:
    tau = yardstick(world, *(o for o in overrides if "gaussian" not in o and "k=16" not in o))
    certified = world.run(world.config(*overrides, "tolerance=fixed", f"tolerance.tau={tau!r}"))
    assert certified.failed is None, certified.detail
    strict = world.verify(certified)
    assert strict.check == "policy.tolerance" or "tolerance" in str(strict.reason), "fixed is no reference choice"
    switches = {**Policy().switches, "tolerance": ("fixed",)}
    report = world.verify(certified, Policy(switches=switches))
    assert report.accepted, report.reason
    assert report.numbers is not None


def test_the_witness_changes_no_bit(world: World) -> None:
    config = world.config("training.updates=6", "model.dropout=0.1")
    certified = world.run(config)
    (genesis,) = records(certified, "genesis")
    procedure = procedure_from(builtin_spec(config.procedure_plain()))
    losses: list[list[float]] = [[], []]

    class Listening(Trainer):
        def train(self, t, state, declared):
            after, metrics = procedure.update_with_metrics(state, declared)
            losses[self.side].append(metrics["loss"])
            return after

    plain = Listening(procedure, *load_data(config.data, config.model.vocab), genesis["order"]["seed"])
    plain.side = 0
    state = run_units(plain, None, Plan(6, 1), plain.start(genesis["init_seed"]))
    assert weights_to_bytes(state) == certified.weights.read_bytes()

    def listening(*arguments: object) -> Listening:
        made = Listening(*arguments)
        made.side = 1
        return made

    drawn = {"init": genesis["init_seed"].to_bytes(7, "big") + bytes(25), "order": genesis["order"]["seed"]}
    witnessed = world.begin(config, listening, name="again")
    witnessed.draw = lambda label: drawn.get(label, hashlib.sha256(label.encode()).digest())
    assert witnessed().failed is None
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6
    assert (world.folder / "again" / "weights.safetensors").read_bytes() == certified.weights.read_bytes()


def test_nothing_private_is_in_the_certificate(world: World) -> None:
    certified = world.run(world.config())
    private = [p for p in certified.folder.rglob("*") if p.is_file() and certified.cert not in p.parents]
    secret = (certified.folder / "openings" / "secrets").read_bytes()
    public = b"".join(path.read_bytes() for path in certified.cert.iterdir())
    assert {path.name for path in certified.cert.iterdir()} == {"tape", "checkpoint", "statement.json"}
    assert secret[:32] not in public
    assert secret[32:] not in public
    assert (world.folder / "home" / "broker.key").read_bytes() not in public
    for name in ("secrets", "run.cbor"):
        (path,) = [p for p in private if p.name == name]
        assert path.stat().st_mode & 0o077 == 0


def test_terms_that_a_verifier_refuses(world: World, tmp_path: Path) -> None:
    none = world.run(world.config("protocol=unchecked", "protocol.p=0.0"), name="none")
    report = world.verify(none)
    assert not report.accepted
    assert report.check == "policy.p"
    other = World(tmp_path / "elsewhere", world.texts, world.sandbox)
    foreign = other.verify(none)
    assert not foreign.accepted
    assert "not the pinned" in str(foreign.reason)
    huge = world.run(world.config("tolerance=fixed", "tolerance.tau=1000"), name="huge")
    switches = {**Policy().switches, "tolerance": ("fixed",)}
    report = world.verify(huge, Policy(switches=switches))
    assert not report.accepted
    assert report.check == "policy.tau"


def test_token_files_with_a_vocabulary_of_their_own(world: World) -> None:
    """Yardsticks replace tokens within the model's vocabulary, however wide the file's token type is."""
    tokens = np.random.default_rng(0).integers(0, 300, 4000).astype("<u2")
    (world.folder / "tokens.bin").write_bytes(tokens.tobytes())
    data = ("data=bin", f"data.path={world.folder / 'tokens.bin'}", "data.dtype=uint16", "model.vocab=300")
    certified = world.run(world.config(*data))
    assert certified.failed is None, certified.detail
    assert world.verify(certified).accepted
