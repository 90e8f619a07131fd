"""`witbench report`: the rate table of any stored rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from witbench.cli.command import Arguments, Command, Option, read_path
from witbench.errors import ConfigError

FORMATS = ("text", "markdown", "latex", "csv", "json")
PRIORS = ("uniform", "jeffreys")
ROWS = (".jsonl", ".parquet")


def run(arguments: Arguments) -> int:
    """Print the rates of stored rows, or write them into a file."""
    from witbench.evaluation.formats import render
    from witbench.evaluation.store import read_store, select
    from witbench.evaluation.summary import summarise

    options = arguments.options
    rows = read_store(Path(word).expanduser() for word in arguments.words)
    if not rows:
        raise ConfigError(f"{' '.join(arguments.words)}: holds no finished trial yet")
    where = options["where"]
    chosen = rows if where is None else select(rows, where)
    if not chosen:
        raise ConfigError(f"where={where}: holds for none of the {len(rows)} rows")
    text = render(summarise(chosen.values(), prior=options["prior"]), options["format"])
    if options["out"] is None:
        print(text, end="")
    else:
        _write(options["out"], text)
        print(options["out"])
    return 0


def _write(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _one_of(allowed: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return text

    return read


def _read_condition(text: str) -> str:
    if not text.strip():
        raise ValueError('a condition in SQL, such as where="p = 0.01"')
    return text


def _read_out(text: str) -> Path:
    path = read_path(text)
    if path.is_dir() or path.suffix in ROWS:
        # Rows are the truth: no report may take their place by a slip.
        raise ValueError(f"a file for the report, no folder and no {' or '.join(ROWS)} file")
    return path


COMMAND = Command(
    name="report",
    summary="Print the rate table of stored rows: of a sweep, a bench, or files of rows.",
    usage="PATH…",
    run=run,
    doc="PATH is a folder with shards/*.jsonl, rows.jsonl or rows.parquet, or such a file; several are merged, and a\n"
    "trial with two different results is refused. csv and json hold every number in full, with Clopper-Pearson bounds\n"
    "where the trials are independent whole runs. where= takes SQL over the fields of a row: attack, placement,\n"
    "amount, protocol, sketch, model, p, L, tau, seed, estimator, detected, probability, error and more.",
    options=(
        Option("format", _one_of(FORMATS), "|".join(FORMATS), "how the table is written", default="text"),
        Option("where", _read_condition, "SQL", "only rows for which this holds"),
        Option("prior", _one_of(PRIORS), "|".join(PRIORS), "of the credible intervals", default="uniform"),
        Option("out", _read_out, "FILE", "write into this file instead of the terminal"),
    ),
    examples=(
        ("report runs/bench/KEY", "the table of a bench"),
        ("report runs/bench/KEY where=\"p = 0.01 and placement = 'burst'\"", "a part of it"),
        ("report one.jsonl two.parquet format=latex out=table.tex", "several files, for a paper"),
        ("report results/cpu/bench format=csv > rates.csv", "every number, for a spreadsheet"),
    ),
    words=(1, None),
)
