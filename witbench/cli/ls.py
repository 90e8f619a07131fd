"""`witbench ls`: what there is."""

from __future__ import annotations

import json
import sys

from witbench.cli.catalogue import groups, item
from witbench.cli.command import JSON, Arguments, Command, table
from witbench.errors import ConfigError
from witbench.groups import choices


def run(arguments: Arguments) -> int:
    """List the choices of the named groups, or of all; a broken plug-in is one warning line."""
    listing: dict[str, dict[str, str]] = {}
    for group in groups(arguments.words):
        listing[group] = {}
        for name in choices(group):
            try:
                listing[group][name] = item(group, name).summary
            except ConfigError as error:
                print(f"warning: {error}", file=sys.stderr)
    if arguments.options["json"]:
        print(json.dumps(listing, indent=2))
    else:
        print("\n\n".join("\n".join([group, *table(found.items())]) for group, found in listing.items()))
    return 0


COMMAND = Command(
    name="ls",
    summary="List what can be chosen: models, data, sketches, attacks, protocols and the rest.",
    usage="[GROUP…]",
    run=run,
    options=(JSON,),
    examples=(("ls", "everything"), ("ls sketches attacks", "two groups")),
    words=(0, None),
)
