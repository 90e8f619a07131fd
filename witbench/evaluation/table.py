"""The table of detection rates: for terminals by rich, and as plain text for logs and files."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from witbench.evaluation.summary import Summary

_COLUMNS = (
    ("attack", "left"),
    ("protocol", "left"),
    ("placement", "left"),
    ("p", "right"),
    ("tokens", "right"),
    ("estimate", "left"),
    ("k/n", "right"),
    ("runs", "right"),
    ("rate", "right"),
    ("10-90%", "right"),
    ("theory", "right"),
    ("first\nfailing check", "left"),
    ("seconds", "right"),
)


def rate_table(summaries: Sequence[Summary], title: str | None = None) -> Table:
    """A rich table, one line a cell.

    k of the conditional estimator is a sum of probabilities and has decimals; `runs` is the number of distinct
    training runs behind the trials. A column `errors` appears when some trials have no result.
    """
    failed = any(summary.errors for summary in summaries)
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for name, justify in (*_COLUMNS, ("errors", "right")) if failed else _COLUMNS:
        table.add_column(name, justify="right" if justify == "right" else "left", no_wrap=True)
    before: tuple[str, str, str] | None = None
    for summary in summaries:
        group = (summary.cell.attack, summary.cell.protocol, summary.cell.placement)
        if before is not None and group != before:
            table.add_section()
        before = group
        table.add_row(*_cells(summary), *([str(summary.errors)] if failed else []))
    return table


def plain_table(summaries: Sequence[Summary], title: str | None = None, width: int = 160) -> str:
    """The table as text without colors, the same on every terminal."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(rate_table(summaries, title))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _cells(summary: Summary) -> list[str]:
    cell, rate = summary.cell, summary.rate
    hits = "-"
    if rate is not None:
        hits = f"{rate.detections:.0f}" if cell.estimator == "raw" else f"{rate.detections:.2f}"
        hits = f"{hits}/{rate.trials}"
    return [
        cell.attack,
        cell.protocol,
        cell.placement,
        f"{cell.p:g}",
        f"{cell.amount:,}",
        cell.estimator,
        hits,
        str(summary.clusters),
        "-" if rate is None else f"{rate.estimate:.3f}",
        "-" if rate is None else f"{rate.low:.3f}-{rate.high:.3f}",
        "-" if summary.theory is None else f"{summary.theory:.3f}",
        summary.check or "-",
        f"{summary.seconds:.1f}",
    ]
