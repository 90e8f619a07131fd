"""Hunting procedures: ordinary ones whose `update` looks for things instead of training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from witbench.protocol.sandbox import Job, Limits, Sandbox
from witbench.training.serialize import batch_to_bytes, state_from_bytes, state_to_bytes
from witbench.training.source import ProcedureSpec
from witbench.training.state import Batch, State

LIMITS = Limits(seconds=60, memory_bytes=1 << 30, output_bytes=8 << 20)

_PROCEDURE = """
import json

from witbench.training.state import State

{hunt}

class Hunter:
    def __init__(self, config):
        self.config = config

    def init(self, seed):
        return State({{"seed": seed}}, {{}})

    def batch(self, dataset, order_seed, t):
        raise NotImplementedError

    def update(self, state, batch):
        found = hunt(**self.config)
        return State({{**state.exact, "found": json.dumps(found).encode()}}, state.real)

    def evaluate(self, state, dataset):
        return hunt(dataset=dataset, **self.config)
"""


class Lab:
    """What the tests of this folder share."""

    limits = LIMITS
    ProcedureSpec = ProcedureSpec

    @staticmethod
    def procedure(hunt: str, **config: Any) -> bytes:
        """Serialised procedure whose `update` and `evaluate` call the function `hunt` of the given source."""
        return ProcedureSpec("hunter:Hunter", {"hunter": _PROCEDURE.format(hunt=hunt)}, config).to_bytes()

    @staticmethod
    def start_state(note: bytes = b"") -> bytes:
        """A small serialised state."""
        return state_to_bytes(State({"step": 3, "note": note}, {("parameter", "w"): torch.arange(6.0)}))

    @staticmethod
    def some_batch(first_token: int = 1) -> bytes:
        """A small serialised batch."""
        tokens = torch.arange(first_token, first_token + 10, dtype=torch.int32).reshape(2, 5)
        return batch_to_bytes(
            Batch(
                tokens,
                torch.full((2,), 5, dtype=torch.int32),
                {"loss_mask": torch.ones(2, 4, dtype=torch.bool)},
                {"micro_batches": (2,), "ranks": (2,)},
            )
        )

    @staticmethod
    def hunt_in(sandbox: Sandbox, hunt: str, limits: Limits | None = None, **config: Any) -> Any:
        """What the hunt finds inside of the sandbox."""
        job = Job.update(Lab.procedure(hunt, **config), Lab.start_state(), [Lab.some_batch()])
        return json.loads(state_from_bytes(sandbox.run(job, limits)).exact["found"])

    @staticmethod
    def hunt_here(hunt: str, **config: Any) -> Any:
        """What the same hunt finds in the test's own process: the control of every hunt that finds nothing."""
        names: dict[str, Any] = {}
        exec(hunt, names)
        return json.loads(json.dumps(names["hunt"](**config)))


@pytest.fixture(scope="session")
def lab() -> type[Lab]:
    """What the tests of this folder share."""
    return Lab


@pytest.fixture(scope="session")
def jail() -> Iterator[Sandbox]:
    """A sandbox with namespaces."""
    with Sandbox(limits=LIMITS, isolation="namespaces") as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def bare() -> Iterator[Sandbox]:
    """A sandbox without namespaces."""
    with Sandbox(limits=LIMITS, isolation="process") as sandbox:
        yield sandbox
