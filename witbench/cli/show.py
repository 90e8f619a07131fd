"""`witbench show`: one item's documentation, knobs and config."""

from __future__ import annotations

import json
from dataclasses import asdict

from witbench.cli.catalogue import Item, find, groups, item
from witbench.cli.command import JSON, Arguments, Command, table


def run(arguments: Arguments) -> int:
    """Print an item; without its group, every item of that name."""
    words = arguments.words
    found = [item(groups(words[:1])[0], words[1])] if len(words) == 2 else find(words[0])
    if arguments.options["json"]:
        print(json.dumps([asdict(each) for each in found], indent=2))
    else:
        print("\n\n".join(_page(each) for each in found))
    return 0


def _page(shown: Item) -> str:
    lines = [f"{shown.group}={shown.name}", "", shown.doc]
    if shown.knobs:
        rows = ((f"{shown.group}.params.{name}", _default(text)) for name, text in shown.knobs.items())
        lines += ["", "knobs:", *table(rows)]
    if shown.config:
        lines += ["", "config:", *(f"  {line}" for line in shown.config.splitlines())]
    return "\n".join(lines)


def _default(text: str | None) -> str:
    return "must be given" if text is None else f"default {text}"


COMMAND = Command(
    name="show",
    summary="Show one item: what it is, its knobs with their defaults, its config.",
    usage="[GROUP] NAME",
    run=run,
    options=(JSON,),
    examples=(("show rht", "the reference sketch"), ("show model gpt_3m", "a model's config")),
    words=(1, 2),
)
