"""Errors that are the user's to mend: each message says what is wrong and what to do.

The command line prints them as one line and exits with 2; nothing else is caught there.
"""

from __future__ import annotations


class WitbenchError(ValueError):
    """Base class of every error a user can mend."""


class ConfigError(WitbenchError):
    """A configuration names an unknown thing or holds a value that is not allowed."""


class DataError(WitbenchError):
    """A dataset, batch or file cannot be used as it is."""


class StateError(WitbenchError):
    """A training state holds values that no commitment or sketch may cover (non-finite, too large, wrong type)."""


class TapeError(WitbenchError):
    """A tape is not what its format or its chain says.

    Attributes:
        record: index of the record at which reading stopped, or None when no record was reached.
        reason: the rejection without the record number.
    """

    def __init__(self, reason: str, record: int | None = None) -> None:
        self.record = record
        self.reason = reason
        super().__init__(reason if record is None else f"record {record}: {reason}")


class ProtocolError(WitbenchError):
    """A message breaks the protocol; `check` is the name of the check it failed.

    Attributes:
        check: name of the failed check, such as `open.digest`.
    """

    def __init__(self, check: str, reason: str) -> None:
        self.check = check
        self.reason = reason
        super().__init__(f"{check}: {reason}")
