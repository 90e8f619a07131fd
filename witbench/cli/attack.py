"""`witbench attack`: one attack on one run."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from witbench.cli.command import JSON, OUT, Arguments, Command, Option, table
from witbench.errors import ConfigError, WitbenchError

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
        outcome = _attack(config, arguments.options["procedure"], folder or Path(scratch))
    if arguments.options["json"]:
        print(json.dumps(dataclasses.asdict(outcome), indent=2))
    else:
        print("\n".join(_lines(config, outcome)))
    return 0


def _attack(config: RunConfig, procedure: str | None, folder: Path) -> Outcome:
    from witbench.attacks.base import Scene
    from witbench.protocol.prover import Home
    from witbench.protocol.sandbox import Sandbox
    from witbench.registry import ATTACKS, build
    from witbench.training.source import spec_for

    attack = build(ATTACKS, config.attack.name, config.attack.params)
    if procedure is not None:
        sys.path.insert(0, str(Path.cwd()))  # an installed script does not look where it was started
    with Sandbox(config.training.threads) as sandbox, _blaming(procedure):
        spec = spec_for(procedure, config.procedure_plain()) if procedure else None
        outcome: Outcome = attack(Scene(config, folder / "run", Home(folder / "broker"), sandbox, spec))
    return outcome


@contextmanager
def _blaming(procedure: str | None) -> Iterator[None]:
    """Say in one line where a user's own procedure raised what it should not."""
    try:
        yield
    except (WitbenchError, OSError):
        raise
    except Exception as error:
        if procedure is None:
            raise
        at = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"procedure={procedure}: {said} (line {at.lineno} of {at.filename})") from error


def _lines(config: RunConfig, outcome: Outcome) -> list[str]:
    from witbench.registry import ATTACKS

    claimed = ATTACKS.get(config.attack.name).claimed
    verdict = f"detected by {outcome.check}" if outcome.detected else "not detected"
    terms = f"p = {config.protocol.p:g}, {config.tolerance.name} tolerance"
    rows = [
        ("protocol", f"{config.protocol.name}, {terms}"),
        ("placement", config.placement.name),
        ("payload", ", ".join(f"{value:g} {name}" for name, value in outcome.payload.items())),
        ("cost", f"{outcome.cost_gradients} gradients, honest training {outcome.honest_gradients}"),
        ("seconds", f"{outcome.cost_seconds:.1f}"),
    ]
    if not claimed:
        rows.append(("claimed", "no: what this attack does is outside the guarantee of every protocol here"))
    return [f"{config.attack.name}: {verdict}", *table(rows)]


COMMAND = Command(
    name="attack",
    summary="Attack one run: was it detected, by which check, what did it achieve, what did it cost.",
    usage="NAME",
    run=run,
    options=(
        OUT,
        JSON,
        Option("procedure", str, "MODULE:NAME", "your own procedure, found from the working folder, not the GPT"),
    ),
    examples=(
        ("attack substitution placement=burst", "replaced tokens, all in one update"),
        ("attack substitution attack.params.tokens=64 protocol.p=0.25", "more of them, against more checks"),
        ("attack substitution protocol=unchecked placement=burst", "its control: only the last unit is checked"),
        ("attack deletion attack.params.route=drop procedure=mine:Procedure", "against a procedure of your own"),
    ),
    words=(1, 1),
    composes=True,
)
