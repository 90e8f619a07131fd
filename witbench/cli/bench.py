"""`witbench bench`: the main job."""

from __future__ import annotations

from witbench.cli.command import JSON, OUT, Arguments, Command, Option, read_bool
from witbench.cli.late import call


def run(arguments: Arguments) -> int:
    """Train, attack, verify; prints the table. 0 when it all came out as the law says."""
    return int(call("witbench.evaluation.bench:run_bench", arguments.overrides, **arguments.options))


COMMAND = Command(
    name="bench",
    summary="Train with a witness, attack the run, verify: the rate table, a certificate, Figure 5.",
    usage="",
    run=run,
    options=(
        OUT,
        JSON,
        Option("publish", read_bool, "true", "write the results into results/ of the working copy", default=False),
    ),
    examples=(
        ("bench", "about eight minutes on two cores; a second run does only what is missing"),
        ("bench json=true out=runs/mine", "the table's rows as JSON"),
    ),
    composes=True,
    resume="what is done is kept; the same command does only what is missing",
)
