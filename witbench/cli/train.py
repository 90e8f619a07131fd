"""`witbench train`: one witnessed run."""

from __future__ import annotations

from witbench.cli.command import OUT, Arguments, Command
from witbench.cli.late import call


def run(arguments: Arguments) -> int:
    """Compose the config and train; 0 for a complete run, 1 for a rejected one."""
    config = call("witbench.config:compose", arguments.overrides)
    return int(call("witbench.protocol.run:train_command", config, arguments.options["out"]))


COMMAND = Command(
    name="train",
    summary="Train with a witness: writes a certificate, private openings and the weights.",
    usage="",
    run=run,
    options=(OUT,),
    examples=(
        ("train", "the default run, on the source of Python's standard library"),
        ("train model=gpt_0.5m training.updates=200 protocol.p=0.25", "longer, every fourth unit replayed"),
        ("train data=folder data.path=~/books out=runs/books", "on text of your own"),
    ),
    composes=True,
    resume="the run's folder holds all it needs; the same command goes on from there",
)
