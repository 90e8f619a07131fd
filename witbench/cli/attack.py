"""`witbench attack`: one attack on one run."""

from __future__ import annotations

from witbench.cli.command import JSON, OUT, Arguments, Command
from witbench.cli.late import call


def run(arguments: Arguments) -> int:
    """Run an attack against a witnessed run; 1 when it was not detected."""
    (name,) = arguments.words
    config = call("witbench.config:compose", [f"attack={name}", *arguments.overrides])
    return int(call("witbench.attacks.run:attack_command", config, **arguments.options))


COMMAND = Command(
    name="attack",
    summary="Attack one run: was it detected, by which check, what did it achieve, what did it cost.",
    usage="NAME",
    run=run,
    options=(OUT, JSON),
    examples=(
        ("attack substitution placement=burst", "replaced tokens, all in one update"),
        ("attack substitution protocol=unchecked", "its positive control: nothing is checked but the last unit"),
    ),
    words=(1, 1),
    composes=True,
)
