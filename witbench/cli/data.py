"""`witbench data fetch`: corpora that are not shipped."""

from __future__ import annotations

from witbench.cli.command import Arguments, Command
from witbench.registry import unknown


def run(arguments: Arguments) -> int:
    """Fetch a corpus into the cache and print where it is."""
    verb, *names = arguments.words
    if verb != "fetch":
        raise unknown("data", verb, ("fetch",))
    from witbench.training.corpora import CORPORA, fetch

    if not names:
        print("\n".join(sorted(CORPORA)))
        return 0
    if names[0] not in CORPORA:
        raise unknown("data fetch", names[0], CORPORA)
    print(fetch(names[0]))
    return 0


COMMAND = Command(
    name="data",
    summary="Fetch a corpus into the cache: `data fetch NAME`; without a name, list them.",
    usage="fetch [NAME]",
    run=run,
    examples=(
        ("data fetch", "the corpora that can be fetched"),
        ("data fetch shakespeare", "then train with data=shakespeare"),
    ),
    words=(1, 2),
    resume="nothing half-fetched is kept; run the command again",
)
