"""Rates in the formats of terminals, pages, papers, spreadsheets and programs."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from witbench.errors import ConfigError
from witbench.evaluation.rates import Rate, clopper_pearson
from witbench.evaluation.sequences import confidence_sequence
from witbench.evaluation.summary import Cell, Summary
from witbench.evaluation.table import columns, plain_table

_CLOPPER_PEARSON = ("low95", "high95", "at_least95", "at_most95")
_SEQUENCE = ("low95", "high95")


def render(summaries: Sequence[Summary], form: str = "text") -> str:
    """The rates as text that ends with a newline.

    Args:
        summaries: one a line.
        form: `text`, `markdown` or `latex` show the table, rounded; `csv` and `json` hold every field of the summaries
            in full, and `exact`.

    Raises:
        ConfigError: an unknown format.
    """
    if form not in FORMATS:
        raise ConfigError(f"format={form}: allowed are {', '.join(FORMATS)}")
    return FORMATS[form](summaries)


def exact(summary: Summary) -> dict[str, float] | None:
    """Clopper-Pearson ends of a cell of whole runs, at 95 %.

    `low95` and `high95` are the two-sided interval; `at_least95` and `at_most95` are each one-sided, for a claim of
    that side alone. None for the conditional estimator, which counts nothing, and for trials that share a training
    run, which are not independent, as the interval takes them to be.
    """
    rate = summary.rate
    if rate is None or summary.cell.estimator != "raw" or summary.clusters < rate.trials:
        return None
    k, n = round(rate.detections), rate.trials
    ends = (*clopper_pearson(k, n), clopper_pearson(k, n, side="lower")[0], clopper_pearson(k, n, side="upper")[1])
    return dict(zip(_CLOPPER_PEARSON, ends, strict=True))


def sequence(summary: Summary) -> dict[str, float] | None:
    """Ends of the 95 % confidence sequence of a raw cell, which hold also where trials stopped by what they showed.

    None where it does not apply, as in `exact`.
    """
    rate = summary.rate
    if rate is None or exact(summary) is None:
        return None
    return dict(zip(_SEQUENCE, confidence_sequence(round(rate.detections), rate.trials), strict=True))


def _markdown(summaries: Sequence[Summary]) -> str:
    return _tabulate(summaries, "pipe", lambda text: text.replace("|", "\\|"))


def _latex(summaries: Sequence[Summary]) -> str:
    return "% needs \\usepackage{booktabs}\n" + _tabulate(summaries, "latex_booktabs", str)


def _tabulate(summaries: Sequence[Summary], form: str, escape: Callable[[str], str]) -> str:
    from tabulate import tabulate

    shown = columns(summaries)
    text = tabulate(
        [[escape(column.text(summary)) for column in shown] for summary in summaries],
        headers=[escape(column.name.replace("\n", " ")) for column in shown],
        tablefmt=form,
        colalign=["right" if column.right else "left" for column in shown],
        disable_numparse=True,  # the columns have set their digits
    )
    return f"{text}\n"


def _csv(summaries: Sequence[Summary]) -> str:
    rates = [field.name for field in dataclasses.fields(Rate)]
    own = [field.name for field in dataclasses.fields(Summary) if field.name not in ("cell", "rate")]
    cells = [field.name for field in dataclasses.fields(Cell)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    more = [f"clopper_pearson_{name}" for name in _CLOPPER_PEARSON] + [f"sequence_{name}" for name in _SEQUENCE]
    writer.writerow([*cells, *rates, *own, *more])
    for summary in summaries:
        ends, any_n = exact(summary) or {}, sequence(summary) or {}
        line = [getattr(summary.cell, name) for name in cells]
        line += [getattr(summary.rate, name, None) for name in rates]
        line += [getattr(summary, name) for name in own]
        line += [ends.get(name) for name in _CLOPPER_PEARSON] + [any_n.get(name) for name in _SEQUENCE]
        writer.writerow(line)
    return out.getvalue()


def _json(summaries: Sequence[Summary]) -> str:
    plain: list[dict[str, Any]] = [
        {**dataclasses.asdict(summary), "clopper_pearson": exact(summary), "sequence": sequence(summary)}
        for summary in summaries
    ]
    return json.dumps(plain, indent=2, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[Sequence[Summary]], str]] = {
    "text": plain_table,
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
    "json": _json,
}
