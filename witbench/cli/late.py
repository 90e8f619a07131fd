"""Calls into the packages below, imported when they are made: a command's help must not wait for torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def call(target: str, *arguments: Any, **options: Any) -> Any:
    """Call "module:function"."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)(*arguments, **options)
