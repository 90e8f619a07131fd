"""Runs without training: real coins on stand-in tapes, to hold the law against.

Every run has its own beacon and its own tape heads; each touched unit fails its check. What is left of the protocol is
what the law speaks of: the coin rule, the reveals in their order, and the last unit, which is always checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol

import numpy as np

from witbench.errors import ConfigError
from witbench.evaluation.law import Draw, Plan

RECORDS_A_UNIT = 6
"""Records a stand-in tape grows by in a unit."""


class Reveals(Protocol):
    """A beacon: reveal 1, 2, … of a run."""

    def reveal(self, number: int) -> bytes:
        """The reveal with this number, 32 bytes."""
        ...


class Coin(Protocol):
    """The coin rule of the protocol."""

    def challenged(self, reveal: bytes, size: int, root: bytes, threshold: int) -> bool:
        """Whether the coin from a reveal and a tree head falls below threshold / 2^64."""
        ...


def simulate(
    draw: Draw,
    amount: int,
    plan: Plan,
    threshold: int,
    *,
    coin: Coin,
    beacon: Callable[[bytes, int], Reveals],
    seeds: int = 2000,
    first_seed: int = 0,
) -> int:
    """Number of runs, of `seeds`, in which a cheat placed by `draw` is caught.

    Args:
        draw: the placement.
        amount: positions touched in each run.
        plan: the cut of the run.
        threshold: n of the coin's probability p = n / 2^64.
        coin: the protocol's coin rule.
        beacon: makes the beacon of a run from its secret seed and its number of reveals.
        seeds: number of runs.
        first_seed: seed of the first run; the others follow.
    """
    if seeds < 1:
        raise ConfigError(f"seeds={seeds}: at least 1")
    caught = 0
    for seed in range(first_seed, first_seed + seeds):
        secret = hashlib.sha256(b"witbench/simulation\n" + seed.to_bytes(8, "big")).digest()
        rng = np.random.default_rng(seed)
        touched = plan.touched(draw(amount, plan.tokens, plan.updates, plan.unit, rng))
        reveals = beacon(secret, 2 * plan.units)
        caught += any(
            unit == plan.units or coin.challenged(reveals.reveal(2 * unit), *_head(secret, unit), threshold)
            for unit in touched
        )
    return caught


def _head(secret: bytes, unit: int) -> tuple[int, bytes]:
    """Size and root of the stand-in tape when the unit's coin is drawn."""
    return RECORDS_A_UNIT * unit, hashlib.sha256(b"head\n" + secret + unit.to_bytes(8, "big")).digest()
