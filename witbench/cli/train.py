"""`witbench train`: one witnessed run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from witbench.cli.command import OUT, Arguments, Command, Option, read_path
from witbench.cli.progress import progress

if TYPE_CHECKING:
    from witbench.protocol.certify import Certified

HOME = Path("runs/broker")
"""Where the prover's key and registry are unless `broker=` says otherwise."""


def run(arguments: Arguments) -> int:
    """Train, or go on training; 0 when the certificate is complete, 1 when the run was rejected."""
    from witbench.config import compose
    from witbench.protocol.certify import WitnessedRun, ended, run_key
    from witbench.protocol.prover import Home
    from witbench.protocol.sandbox import Sandbox

    config = compose(arguments.overrides)
    folder: Path = arguments.options["out"] or Path("runs/train") / run_key(config)
    home = Home(arguments.options["broker"])
    certified = ended(folder)
    if certified is None:
        with Sandbox(config.training.threads) as sandbox, progress("units") as show:
            certified = WitnessedRun(config, folder, home, sandbox)(show)
    else:
        print(f"this run has ended before; for another one, set seed= or out= ({folder})")
    _say(certified, home.pinned)
    return 0 if certified.failed is None else 1


def _say(certified: Certified, pinned: Path) -> None:
    if certified.failed is not None:
        print(f"rejected: {certified.failed}: {certified.detail}")
    print(f"certificate  {certified.cert}")
    print(f"weights      {certified.weights}")
    print(f"verify it    witbench verify {certified.cert} trust={pinned} weights={certified.weights}")


COMMAND = Command(
    name="train",
    summary="Train with a witness: writes a certificate, private openings and the weights.",
    usage="",
    run=run,
    options=(
        OUT,
        Option("broker", read_path, "DIR", f"the prover's home: its key and registry ({HOME})", default=HOME),
    ),
    examples=(
        ("train", "the default run, on the source of Python's standard library"),
        ("train model=gpt_0.5m training.updates=200 protocol.p=0.25", "longer, every fourth unit replayed"),
        ("train data=folder data.path=~/books out=runs/books", "on text of your own"),
    ),
    composes=True,
    resume="the run's folder holds all it needs; the same command goes on from there",
)
