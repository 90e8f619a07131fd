"""witbench: training runs that carry a witness, the attacks on them, and what is caught."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from witbench.evaluation.store import load_rows, query

__version__ = "0.1.0"
__all__ = ["load_rows", "query"]


def __getattr__(name: str) -> object:
    """`load_rows` and `query`, imported when they are asked for: they bring pandas along."""
    if name in __all__:
        from witbench.evaluation import store

        return getattr(store, name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
