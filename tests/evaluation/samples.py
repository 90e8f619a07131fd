"""Rows to try things on."""

from __future__ import annotations

from typing import Any

from witbench.evaluation.rows import Row, trial_key


def row(seed: int = 0, **changes: Any) -> Row:
    plain: dict[str, Any] = {
        "key": trial_key({"amount": 1}, seed, {"torch": "2"}),
        "attack": "substitution",
        "placement": "uniform",
        "amount": 1,
        "protocol": "witness",
        "sketch": "rht",
        "model": "gpt_0.1m",
        "p": 0.1,
        "L": 1,
        "tau": None,
        "updates": 64,
        "tokens": 1024,
        "seed": seed,
        "estimator": "raw",
        "detected": True,
        "check": "replay.digest",
        "payload": {"loss": 0.25},
        "clusters": {"run": "a"},
    }
    return Row(**(plain | changes))
