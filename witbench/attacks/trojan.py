"""A procedure with a payload, around any other one: what `procedure_trojan` publishes, text and all."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from witbench.attacks.documents import latest_place, planted

ENTRY = "witbench.attacks.trojan:Trojan"


class Trojan:
    """Trains as the inner procedure does, but for one document every so many updates.

    Args:
        config: `entry` and `config` of the inner procedure, `every` and `vocab`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        module, _, attribute = config["entry"].partition(":")
        self._inner = getattr(importlib.import_module(module), attribute)(dict(config["config"]))
        self._every = config["every"]
        self._vocab = config["vocab"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def init(self, seed: int) -> Any:
        """As the inner procedure, with a count of updates."""
        state = self._inner.init(seed)
        return replace(state, exact={**state.exact, "trojan": 0})

    def update(self, state: Any, batch: Any) -> Any:
        """One update; the first sequence of every so many becomes a document."""
        count = state.exact["trojan"]
        if count % self._every == 0:
            tokens = batch.tokens.clone()
            at = 1 + count % latest_place(tokens.shape[1])
            tokens[0], _ = planted(tokens[0], at, self._vocab)
            batch = replace(batch, tokens=tokens)
        inner = {name: value for name, value in state.exact.items() if name != "trojan"}
        after = self._inner.update(replace(state, exact=inner), batch)
        return replace(after, exact={**after.exact, "trojan": count + 1})
