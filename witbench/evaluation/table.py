"""The table of detection rates: for terminals by rich, and as plain text for logs and files."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from witbench.evaluation.summary import Summary


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        name: its header; may hold a line break.
        text: a cell's text.
        right: whether it is set to the right, as numbers are.
    """

    name: str
    text: Callable[[Summary], str]
    right: bool = True


_NAMES = (
    Column("attack", lambda each: each.cell.attack, right=False),
    Column("protocol", lambda each: each.cell.protocol, right=False),
)
_WHERE_THEY_DIFFER = (
    Column("sketch", lambda each: each.cell.sketch, right=False),
    Column("model", lambda each: each.cell.model, right=False),
    Column("L", lambda each: str(each.cell.L)),
    Column("updates", lambda each: f"{each.cell.updates:,}"),
    Column("tokens\nan update", lambda each: f"{each.cell.tokens:,}"),
    Column("tau", lambda each: "exact" if each.cell.tau is None else f"{each.cell.tau:g}"),
)
_RATES = (
    Column("placement", lambda each: each.cell.placement, right=False),
    Column("p", lambda each: f"{each.cell.p:g}"),
    Column("tokens", lambda each: f"{each.cell.amount:,}"),
    Column("estimate", lambda each: each.cell.estimator, right=False),
    Column("k/n", lambda each: _hits(each)),
    Column("runs", lambda each: str(each.clusters)),
    Column("rate", lambda each: "-" if each.rate is None else f"{each.rate.estimate:.3f}"),
    Column("10-90%", lambda each: "-" if each.rate is None else f"{each.rate.low:.3f}-{each.rate.high:.3f}"),
    Column("theory", lambda each: "-" if each.theory is None else f"{each.theory:.3f}"),
    Column("first\nfailing check", lambda each: each.check or "-", right=False),
    Column("seconds", lambda each: f"{each.seconds:.1f}"),
)
_ERRORS = Column("errors", lambda each: str(each.errors))


def columns(summaries: Sequence[Summary]) -> list[Column]:
    """The columns that these cells need.

    k of the conditional estimator is a sum of probabilities and has decimals; `runs` is the number of distinct training
    runs behind the trials. Sketch, model, shape of the run and tau have columns where cells differ in them, so that no
    two lines look the same; `errors` appears when some trials have no result.
    """
    differing = [column for column in _WHERE_THEY_DIFFER if len({column.text(each) for each in summaries}) > 1]
    failed = any(summary.errors for summary in summaries)
    return [*_NAMES, *differing, *_RATES, *([_ERRORS] if failed else [])]


def rate_table(summaries: Sequence[Summary], title: str | None = None) -> Table:
    """A rich table, one line a cell, with the `columns` they need."""
    shown = columns(summaries)
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for column in shown:
        table.add_column(column.name, justify="right" if column.right else "left", no_wrap=True)
    before: tuple[str, str, str] | None = None
    for summary in summaries:
        group = (summary.cell.attack, summary.cell.protocol, summary.cell.placement)
        if before is not None and group != before:
            table.add_section()
        before = group
        table.add_row(*(column.text(summary) for column in shown))
    return table


def plain_table(summaries: Sequence[Summary], title: str | None = None, width: int = 1000) -> str:
    """The table as text without colors, the same on every terminal; as wide as it must be, up to `width`."""
    # Names are shown as they are: a bracket in one is no markup.
    console = Console(
        file=io.StringIO(),
        width=width,
        color_system=None,
        force_terminal=False,
        legacy_windows=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as capture:
        console.print(rate_table(summaries, title))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _hits(summary: Summary) -> str:
    if summary.rate is None:
        return "0/0"
    decimals = 0 if summary.cell.estimator == "raw" else 2
    return f"{summary.rate.detections:.{decimals}f}/{summary.rate.trials}"
