"""`witbench bench`: the main job."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from witbench.cli.command import JSON, OUT, Arguments, Command, Option, read_bool
from witbench.cli.progress import progress
from witbench.registry import unknown

if TYPE_CHECKING:
    from witbench.bench.run import Result


def run(arguments: Arguments) -> int:
    """Train, attack, verify; prints the table. 0 when the honest certificate is accepted and nothing failed."""
    if arguments.words:
        return _measure(arguments)
    from witbench.bench.run import publish_bench, run_bench
    from witbench.evaluation.deviation import deviations
    from witbench.protocol.policy import load_trust
    from witbench.protocol.verifier import verify

    options = arguments.options
    with progress("pieces of work") as show:
        result = run_bench(options["scale"], arguments.overrides, options["out"], show)
    pinned = verify(result.cert, load_trust(result.pinned))
    alone = verify(result.cert)
    published = publish_bench(result, Path("results")) if options["publish"] else None
    if options["json"]:
        plain = [dataclasses.asdict(summary) for summary in result.summaries]
        print(json.dumps({"folder": str(result.folder), "rates": plain, "accepted": pinned.accepted}, indent=2))
    else:
        print(result.table)
        _say(result, deviations(result.summaries))
        line = f"witbench verify {shlex.quote(str(result.cert))}"
        print(f"{line} trust={shlex.quote(str(result.pinned))}\n    {pinned.status}")
        print(f"{line}\n    {alone.reason or alone.status}")
        if published:
            print(f"published  {published}")
    failed = any(summary.errors for summary in result.summaries)
    return 0 if pinned.accepted and alone.self_certified and not failed else 1


def _measure(arguments: Arguments) -> int:
    """`bench overhead` and `bench trials`."""
    (noun,) = arguments.words
    if noun not in _MEASURES:
        raise unknown("bench", noun, _MEASURES)
    return _MEASURES[noun](arguments)


def _overhead(arguments: Arguments) -> int:
    """What the witness costs."""
    from witbench.bench.overhead import measure, report
    from witbench.config import compose

    config = compose(arguments.overrides)
    with progress("pairs of runs") as show:
        overhead = measure(config, arguments.options["pairs"], show)
    if arguments.options["json"]:
        mean, low, high = overhead.interval()
        print(json.dumps({"ratio": mean, "low95": low, "high95": high, **dataclasses.asdict(overhead)}, indent=2))
    else:
        print(report(config, overhead))
    return 0


def _trials(arguments: Arguments) -> int:
    """What caching is worth."""
    from witbench.bench.caching import measure

    with progress("pieces of work") as show:
        found = measure(arguments.overrides, show)
    print(json.dumps(dataclasses.asdict(found), indent=2) if arguments.options["json"] else found.report)
    return 0


_MEASURES = {"overhead": _overhead, "trials": _trials}


def _read_pairs(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise ValueError("a whole number of at least 2")
    return int(text)


def _say(result: Result, deviation: str) -> None:
    honest = [summary for summary in result.summaries if summary.cell.attack == "none" and summary.rate]
    for summary in honest:
        kind = "whole runs" if summary.cell.estimator == "raw" else "training runs, units branched and checked"
        rate = summary.rate
        if rate is not None:
            print(f"honest: {rate.trials} {kind}, {rate.detections:g} rejected")
    print(deviation)
    print(f"figure     {result.figure.png} (and .pdf, .csv)\ntable      {result.folder / 'table.txt'}\n")


_SCALES = {"full": "bench", "smoke": "bench_smoke"}


def _read_scale(text: str) -> str:
    if text not in _SCALES:
        raise ValueError(" or ".join(_SCALES))
    return _SCALES[text]


COMMAND = Command(
    name="bench",
    summary="Train with a witness, attack the run, verify: the rate table, a certificate, Figure 5.",
    usage="[overhead|trials]",
    run=run,
    options=(
        OUT,
        JSON,
        Option(
            "scale",
            _read_scale,
            "full|smoke",
            "how much: full is the main job, smoke a tiny one",
            default=_SCALES["full"],
        ),
        Option("pairs", _read_pairs, "N", "of `bench overhead`: interleaved pairs of runs", default=6),
        Option("publish", read_bool, "true", "copy the results into results/ of a clean working copy", default=False),
    ),
    examples=(
        ("bench", "about five minutes on two idle cores; a second run does only what is missing"),
        ("bench scale=smoke", "the same on a tiny model, in seconds"),
        ("bench json=true out=runs/mine", "the rates as JSON"),
        ("bench overhead training.updates=32", "what the witness costs: interleaved runs with and without it"),
        ("bench trials", "what it is worth to cache training runs and branched units"),
    ),
    words=(0, 1),
    composes=True,
    resume="what is done is kept; the same command does only what is missing",
)
