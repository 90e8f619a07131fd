"""`witbench verify`: a certificate, a verdict. Imports neither torch nor numpy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from witbench.cli.command import JSON, Arguments, Command, Option, read_file
from witbench.protocol.policy import Policy, load_trust
from witbench.protocol.transcript import transcript
from witbench.protocol.verifier import verify


def run(arguments: Arguments) -> int:
    """Check a certificate; 0 when it is accepted, 1 when not."""
    options = arguments.options
    trust = load_trust(options["trust"]) if options["trust"] else None
    policy = Policy.load(options["policy"]) if options["policy"] else None
    cert = sys.stdin.buffer if arguments.words[0] == "-" else Path(arguments.words[0]).expanduser()
    report = verify(cert, trust, policy, options["weights"])
    if options["json"]:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print(transcript(report), end="")
    return 0 if report.accepted else 1


COMMAND = Command(
    name="verify",
    summary="Check a certificate and say what it proves.",
    usage="CERT",
    run=run,
    doc="CERT is a certificate's folder; `-` reads a tape alone from standard input, which is never accepted, because\n"
    "nothing signs its end. A certificate is accepted only under a pinned broker key (trust=FILE).",
    options=(
        Option("trust", read_file, "FILE", "the broker's key, from somebody you trust: a file with one vkey line"),
        Option("policy", read_file, "FILE", "JSON with any of p, tau_over_token, switches; the default wants p >= 1%"),
        Option("weights", read_file, "FILE", "weights that must be the published ones"),
        JSON,
    ),
    examples=(
        ("verify runs/train/KEY/cert trust=broker.vkey", "accepted or not, and why"),
        ("verify cert trust=broker.vkey weights=model.safetensors json=true", "the weights file too, for a program"),
        ("verify - < cert/tape", "a tape alone, as far as it can be checked"),
    ),
    words=(1, 1),
)
