"""`witbench validate`: check configs before anything is spent on them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from witbench.cli.catalogue import groups
from witbench.cli.command import JSON, Arguments, Command, table
from witbench.config import compose
from witbench.errors import ConfigError
from witbench.groups import choices, missing_keys


def run(arguments: Arguments) -> int:
    """Check one config, or every choice of every group; 1 when a shipped choice is broken."""
    if arguments.overrides and not arguments.words:
        config = compose(arguments.overrides)
        print(json.dumps(config.to_plain(), indent=2) if arguments.options["json"] else "ok")
        return 0
    verdicts = {
        f"{group}={name}": _verdict(f"{group}={name}", arguments.overrides)
        for group in groups(arguments.words)
        for name in choices(group)
    }
    if arguments.options["json"]:
        print(json.dumps(verdicts, indent=2))
    else:
        print("\n".join(table(verdicts.items())))
    return 1 if any(verdict.startswith("broken") for verdict in verdicts.values()) else 0


def _verdict(choice: str, overrides: Sequence[str]) -> str:
    """`ok`, what the user must add, or what is wrong."""
    try:
        if missing := missing_keys([choice, *overrides]):
            return f"needs {', '.join(f'{key}=VALUE' for key in missing)}"
        compose([choice, *overrides])
    except ConfigError as error:
        return f"broken: {error}"
    return "ok"


COMMAND = Command(
    name="validate",
    summary="Check a config; without overrides, every choice of every group.",
    usage="[GROUP…]",
    run=run,
    options=(JSON,),
    examples=(
        ("validate model=gpt_3m protocol.p=0.25", "would this run?"),
        ("validate", "every choice there is, plug-ins included"),
        ("validate sketches tolerance=fixed tolerance.tau=1e-4", "every sketch with another tolerance"),
    ),
    words=(0, None),
    composes=True,
)
