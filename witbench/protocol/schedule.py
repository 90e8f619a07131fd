"""What the tape owes: reveals in their order, and REPLAY records at their lag."""

from __future__ import annotations

from dataclasses import dataclass, field

from witbench.errors import TapeError
from witbench.protocol.beacon import check_reveal


@dataclass
class Reveals:
    """The beacon as far as it was revealed.

    Attributes:
        last: the last value revealed; the anchor at first.
        reveals: N of genesis.
        number: number of the last value.
        may_skip: whether values may be left out before the next one. They may only after a rewind: a crash between
            counting a reveal and taping it loses the value, and what goes on after it begins with a rewind.
    """

    last: bytes
    reveals: int
    number: int = 0
    may_skip: bool = False

    def take(self, number: int, reveal: bytes) -> None:
        """Accept the next reveal. Raises TapeError when it is not it."""
        steps = number - self.number
        if steps < 1:
            raise TapeError(f"reveal {number} was used before")
        if steps > 1 and not self.may_skip:
            raise TapeError(f"reveal {number} where reveal {self.number + 1} is due")
        if number > self.reveals:
            raise TapeError(f"reveal {number} of a chain of {self.reveals}")
        if not check_reveal(self.last, reveal, steps):
            raise TapeError(f"reveal {number} does not hash to reveal {self.number}")
        self.number, self.last, self.may_skip = number, reveal, False


@dataclass
class Challenges:
    """Challenged units and the place of their REPLAY records: just before the first DECLARE of unit u + 1 + lag.

    Attributes:
        lag: of genesis, in units.
        open: challenged units without a REPLAY record, ascending.
    """

    lag: int
    open: list[int] = field(default_factory=list)
    _settled: list[int] = field(default_factory=list)

    def settle(self, unit: int) -> None:
        """Take a REPLAY record. Raises TapeError when another one is due."""
        if not self.open or self.open[0] != unit:
            due = f"that of unit {self.open[0]}" if self.open else "none"
            raise TapeError(f"a verdict on unit {unit} where {due} is due")
        self._settled.append(self.open.pop(0))

    def begin(self, unit: int) -> None:
        """The unit's first DECLARE: verdicts up to its lag are on the tape, and none that could have waited."""
        due = unit - 1 - self.lag
        if self.open and self.open[0] <= due:
            raise TapeError(f"the verdict on unit {self.open[0]} is overdue")
        if self._settled and self._settled[-1] > due:
            raise TapeError(f"the verdict on unit {self._settled[-1]} is on the tape before its place")
        self._settled.clear()

    def close(self) -> None:
        """A rewind, an evaluation or the end: no challenge may be open."""
        if self.open:
            raise TapeError(f"the challenge of unit {self.open[0]} is still open")
        self._settled.clear()

    def go_on(self) -> None:
        """Any other record: no verdict may stand just before it."""
        if self._settled:
            raise TapeError(f"the verdict on unit {self._settled[-1]} is out of place")
