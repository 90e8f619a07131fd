"""`witbench attack`: one attack on one run."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from witbench.cli.command import JSON, OUT, Arguments, Command, table
from witbench.errors import ConfigError

if TYPE_CHECKING:
    from witbench.attacks.base import Outcome
    from witbench.config import RunConfig


def run(arguments: Arguments) -> int:
    """Run an attack against a witnessed run and say how it ended; 0 whether or not it was detected."""
    from witbench.config import compose

    (name,) = arguments.words
    config = compose([f"attack={name}", *arguments.overrides])
    folder: Path | None = arguments.options["out"]
    if folder is not None and folder.exists():
        raise ConfigError(f"out={folder}: exists already; name a new folder")
    with tempfile.TemporaryDirectory(prefix="witbench-") as scratch:
        outcome = _attack(config, folder or Path(scratch))
    if arguments.options["json"]:
        print(json.dumps(dataclasses.asdict(outcome), indent=2))
    else:
        print("\n".join(_lines(config, outcome)))
    return 0


def _attack(config: RunConfig, folder: Path) -> Outcome:
    from witbench.attacks.base import Scene
    from witbench.protocol.prover import Home
    from witbench.protocol.sandbox import Sandbox
    from witbench.registry import ATTACKS, build

    attack = build(ATTACKS, config.attack.name, config.attack.params)
    with Sandbox(config.training.threads) as sandbox:
        outcome: Outcome = attack(Scene(config, folder / "run", Home(folder / "broker"), sandbox))
    return outcome


def _lines(config: RunConfig, outcome: Outcome) -> list[str]:
    verdict = f"detected by {outcome.check}" if outcome.detected else "not detected"
    terms = f"p = {config.protocol.p:g}, {config.tolerance.name} tolerance"
    rows = [
        ("protocol", f"{config.protocol.name}, {terms}"),
        ("placement", config.placement.name),
        ("payload", ", ".join(f"{value:g} {name}" for name, value in outcome.payload.items())),
        ("cost", f"{outcome.cost_gradients} gradients, honest training {outcome.honest_gradients}"),
        ("seconds", f"{outcome.cost_seconds:.1f}"),
    ]
    return [f"{config.attack.name}: {verdict}", *table(rows)]


COMMAND = Command(
    name="attack",
    summary="Attack one run: was it detected, by which check, what did it achieve, what did it cost.",
    usage="NAME",
    run=run,
    options=(OUT, JSON),
    examples=(
        ("attack substitution placement=burst", "replaced tokens, all in one update"),
        ("attack substitution attack.params.tokens=64 protocol.p=0.25", "more of them, against more checks"),
        ("attack substitution protocol=unchecked placement=burst", "its control: only the last unit is checked"),
    ),
    words=(1, 1),
    composes=True,
)
