"""The grammar of the command line: `witbench NOUN [VERB] [PATH…] key=value…`.

A command declares its words, its options and whether it takes config overrides; everything else follows from that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from witbench.errors import ConfigError
from witbench.registry import unknown

_KEY = re.compile(r"^([+~]{0,2}[A-Za-z_][\w.@]*)=(.*)$", re.DOTALL)
_DELETION = re.compile(r"^~[A-Za-z_][\w.@/]*$")

FLAGS = ("--help", "--version", "--cfg", "--info")
"""The only flags; the last two are Hydra's own and take one word."""

INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
CFG = ("job",)


@dataclass(frozen=True)
class Option:
    """One `key=value` of a command.

    Attributes:
        key: its name.
        read: makes the value of the text; raises ValueError with what is allowed.
        value: what stands for the value in the help.
        doc: one line.
        default: when it is not given.
    """

    key: str
    read: Callable[[str], Any]
    value: str
    doc: str
    default: Any = None


@dataclass(frozen=True)
class Arguments:
    """A command line as its command takes it.

    Attributes:
        words: verbs, names and paths in order.
        options: every option of the command, given or default.
        overrides: config overrides, as Hydra reads them.
    """

    words: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        name: the noun.
        summary: one line.
        usage: its words, such as "CERT".
        run: does it and returns the exit status.
        doc: more lines for the help, if one does not do.
        options: its options.
        examples: command lines, each with what it does.
        words: fewest and most words it takes; None for any number.
        composes: whether it takes config overrides.
        resume: what to tell after Ctrl-C.
    """

    name: str
    summary: str
    usage: str
    run: Callable[[Arguments], int]
    doc: str = ""
    options: tuple[Option, ...] = ()
    examples: tuple[tuple[str, str], ...] = ()
    words: tuple[int, int | None] = (0, 0)
    composes: bool = False
    resume: str = "nothing was left behind; run the command again"

    def help(self) -> str:
        """The help page."""
        parts = ["witbench", self.name, self.usage, *(f"[{each.key}={each.value}]" for each in self.options)]
        lines = [f"usage: {' '.join(part for part in parts if part)}{' [key=value…]' if self.composes else ''}", ""]
        lines += [self.summary, *(["", self.doc] if self.doc else [])]
        if self.options:
            lines += ["", "options:", *table((f"{each.key}={each.value}", each.doc) for each in self.options)]
        if self.composes:
            lines += [
                "",
                "config overrides, such as model=gpt_3m protocol.p=0.25 training.updates=128; `witbench ls` lists the",
                "choices, `witbench show NAME` the keys, `--cfg job` prints the composed config, `--info` how it came.",
            ]
        if self.examples:
            lines += ["", "examples:", *(f"  witbench {line}\n      {what}" for line, what in self.examples)]
        return "\n".join(lines) + "\n"

    def parse(self, arguments: Sequence[str]) -> Arguments:
        """Read what follows the command's name. Raises ConfigError for what the command does not take."""
        known = {option.key: option for option in self.options}
        values = {option.key: option.default for option in self.options}
        words: list[str] = []
        overrides: list[str] = []
        for text in arguments:
            match = _KEY.match(text)
            if match and match[1] in known:
                values[match[1]] = _read(known[match[1]], match[2])
            elif self.composes and (match or _DELETION.match(text)):
                overrides.append(text)
            elif match:
                raise self._unknown_option(match[1])
            elif text.startswith("-") and text != "-":
                raise ConfigError(f"{text}: unknown flag; options are key=value, the flags are {', '.join(FLAGS)}")
            else:
                words.append(text)
        self._count(words)
        return Arguments(tuple(words), values, tuple(overrides))

    def _count(self, words: Sequence[str]) -> None:
        fewest, most = self.words
        usage = f"usage: witbench {self.name} {self.usage}".rstrip()
        if len(words) < fewest:
            raise ConfigError(f"{self.name}: something is missing; {usage}")
        if most is not None and len(words) > most:
            raise ConfigError(f"{words[most]}: unexpected; {usage}")

    def _unknown_option(self, key: str) -> ConfigError:
        if not self.options:
            return ConfigError(f"{key}: {self.name} takes no options")
        return unknown(f"{self.name}: option", key, [option.key for option in self.options])


def _read(option: Option, text: str) -> Any:
    try:
        return option.read(text)
    except ValueError as error:
        raise ConfigError(f"{option.key}={text}: must be {error}") from None


def read_bool(text: str) -> bool:
    """True or false."""
    words = {"true": True, "false": False}
    if text.lower() not in words:
        raise ValueError("true or false")
    return words[text.lower()]


def read_path(text: str) -> Path:
    """A path, `~` expanded."""
    if not text:
        raise ValueError("a path")
    return Path(text).expanduser()


def read_file(text: str) -> Path:
    """The path of a file that is there."""
    path = read_path(text)
    if not path.is_file():
        raise ValueError("a file that exists")
    return path


JSON = Option("json", read_bool, "true", "print JSON instead of text", default=False)
OUT = Option("out", read_path, "DIR", "folder to write into instead of runs/<command>/<key>")


def table(rows: Any) -> list[str]:
    """Two aligned columns, indented."""
    pairs = [(str(left), str(right)) for left, right in rows]
    width = max((len(left) for left, _ in pairs), default=0)
    return [f"  {left:<{width}}  {right}".rstrip() for left, right in pairs]
