"""`witbench`: finds the command, runs it, and turns what went wrong into one line and an exit status.

Exit status: 0 ok, 1 a negative verdict, 2 the user's mistake; 130 after Ctrl-C and 141 when the reader of a pipe left,
as shells have it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import witbench
from witbench.cli.command import CFG, INFO, Command, table
from witbench.errors import ConfigError, WitbenchError
from witbench.registry import unknown

COMMANDS = (
    "bench",
    "train",
    "verify",
    "attack",
    "calibrate",
    "figure",
    "report",
    "data",
    "ls",
    "show",
    "validate",
    "doctor",
)
"""Each is a module of this package with a `COMMAND`, imported when it is asked for."""

OK, NEGATIVE, MISTAKE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


def entry() -> None:
    """The console script."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Run one command line; returns the exit status."""
    logging.raiseExceptions = False  # a log line that nobody reads any more is no error
    command: Command | None = None
    try:
        if not argv or argv[0] in ("--help", "--version"):
            print(_overview() if not argv or argv[0] == "--help" else f"witbench {witbench.__version__}")
            status = MISTAKE if not argv else OK
        else:
            command = find(argv[0])
            status = run(command, argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has gone; without this the interpreter would complain when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        hint = command.resume if command else "run the command again"
        return _complain(f"interrupted: {hint}", INTERRUPTED)
    except WitbenchError as error:
        return _complain(" ".join(str(error).split()), MISTAKE)
    except OSError as error:
        return _complain(f"{error.filename or 'input or output'}: {error.strerror or error}", MISTAKE)
    return status


def find(name: str) -> Command:
    """The command of a name. Raises ConfigError for an unknown one."""
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    command: Command = import_module(f"witbench.cli.{name}").COMMAND
    return command


def run(command: Command, arguments: Sequence[str]) -> int:
    """Run a command with what follows its name; handles the flags."""
    if "--help" in arguments:
        print(command.help(), end="")
        return OK
    if "--version" in arguments:
        print(f"witbench {witbench.__version__}")
        return OK
    for flag, allowed in (("--cfg", CFG), ("--info", INFO)):
        if flag in arguments:
            return _explain(command, arguments, flag, allowed)
    return command.run(command.parse(arguments))


def _explain(command: Command, arguments: Sequence[str], flag: str, allowed: tuple[str, ...]) -> int:
    """Hydra's own `--cfg` and `--info`."""
    if not command.composes:
        raise ConfigError(f"{flag}: {command.name} has no config")
    at = arguments.index(flag)
    what = arguments[at + 1] if at + 1 < len(arguments) else "job" if flag == "--cfg" else "all"
    if what not in allowed:
        raise unknown(flag, what, allowed)
    parsed = command.parse([*arguments[:at], *arguments[at + 2 :]])
    from omegaconf import OmegaConf

    from witbench.groups import compose_node, show_info  # Hydra takes a while to import

    if flag == "--info":
        show_info(parsed.overrides, what)
    else:
        print(OmegaConf.to_yaml(compose_node(parsed.overrides)), end="")
    return OK


def _overview() -> str:
    lines = [
        "usage: witbench COMMAND [words…] [key=value…]",
        "",
        "Training runs that carry a witness.",
        "",
        "commands:",
    ]
    lines += table((name, find(name).summary) for name in COMMANDS)
    lines += ["", "`witbench COMMAND --help` explains one; flags: --help, --version, Hydra's --cfg job and --info."]
    lines += ["Exit status: 0 ok, 1 a negative verdict, 2 a mistake in the command line or its files."]
    return "\n".join(lines)


def _complain(message: str, status: int) -> int:
    print(f"witbench: {message}", file=sys.stderr)
    return status
