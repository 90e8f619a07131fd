"""`python -m witbench`."""

from witbench.cli.main import entry

entry()
