"""`witbench figure`: run what is behind a figure, and draw it."""

from __future__ import annotations

import json
from pathlib import Path

from witbench.cli.command import JSON, OUT, Arguments, Command, Option, read_bool
from witbench.cli.progress import progress


def run(arguments: Arguments) -> int:
    """Plan, run or resume, collect, draw; 0 when every trial has a result."""
    from witbench.bench.figures import make, publish_figure

    (name,) = arguments.words
    options = arguments.options
    with progress("pieces of work") as show:
        drawn = make(name, options["scale"], arguments.overrides, options["out"], show)
    published = publish_figure(drawn, name, options["scale"], Path("results")) if options["publish"] else None
    pictures = [str(each.png) for each in drawn.files]
    if options["json"]:
        plain = {"folder": str(drawn.folder), "figures": pictures, "rows": drawn.rows, "errors": drawn.errors}
        print(json.dumps(plain, indent=2))
    else:
        for each in drawn.files:
            print(f"{each.png} (and .pdf, .csv)\n{each.caption.read_text('utf-8')}")
        print(f"rows       {drawn.folder / 'rows.parquet'}: {drawn.rows}, {drawn.errors} without a result")
        if published:
            print(f"published  {published}")
    return 1 if drawn.errors else 0


COMMAND = Command(
    name="figure",
    summary="Make a figure: run or resume the trials behind it, collect them, draw PNG, PDF and CSV.",
    usage="NAME",
    run=run,
    options=(
        OUT,
        JSON,
        Option("scale", str, "cpu|paper|smoke", "two cores and an hour, the paper's sizes, or a test", default="cpu"),
        Option("publish", read_bool, "true", "copy the results into results/ of a clean working copy", default=False),
    ),
    examples=(
        ("figure fig5", "detection against tokens: substitution, insertion, deletion"),
        ("figure fig5 scale=paper executor.workers=8 executor.gpu_slots=2", "at the paper's size, on GPUs"),
    ),
    words=(1, 1),
    composes=True,
    resume="what is done is kept; the same command does only what is missing",
)
