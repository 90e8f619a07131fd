"""Rows of one cell folded into one rate: the numbers that tables and figures show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import stdev

from witbench.errors import ConfigError
from witbench.evaluation.law import Plan, theory
from witbench.evaluation.rates import Rate, clustered_rate, conditional_rate
from witbench.evaluation.rows import Estimator, Row

REFERENCE_PRESETS = frozenset({"witness"})
WITHOUT_LAW = frozenset({"reorder", "procedure_trojan"})
"""Attacks that touch other units than those their placement picks, or none: a placement's law is not theirs."""


@dataclass(frozen=True)
class Cell:
    """What trials of one rate have in common."""

    attack: str
    protocol: str
    sketch: str
    model: str
    L: int
    updates: int
    tokens: int
    tau: float | None
    placement: str
    p: float
    amount: int
    estimator: Estimator

    @property
    def plan(self) -> Plan:
        """How the runs are cut."""
        return Plan(self.updates, self.L, self.tokens)


@dataclass(frozen=True)
class Summary:
    """The rate of a cell.

    Attributes:
        cell: what it is the rate of.
        rate: of detection, of the trials that have a result; None when all failed.
        theory: the law for this placement and amount; None where none is claimed or no closed form is known.
        check: the most frequent first failing check.
        clusters: distinct training runs.
        spread: standard deviation of the conditional trials' probabilities; 0 for raw runs and single trials.
        seconds: spent on all trials.
        errors: trials without a result.
    """

    cell: Cell
    rate: Rate | None
    theory: float | None
    check: str | None
    clusters: int
    spread: float
    seconds: float
    errors: int


def cell_of(row: Row) -> Cell:
    """The cell a row belongs to."""
    return Cell(
        attack=row.attack,
        protocol=row.protocol,
        sketch=row.sketch,
        model=row.model,
        L=row.L,
        updates=row.updates,
        tokens=row.tokens,
        tau=row.tau,
        placement=row.placement,
        p=row.p,
        amount=row.amount,
        estimator=row.estimator,
    )


def summarise(
    rows: Iterable[Row], *, prior: str = "uniform", lawful: Collection[str] = REFERENCE_PRESETS
) -> list[Summary]:
    """Fold rows into cells, in the order of attack, …, placement, p, amount.

    Args:
        rows: any rows.
        prior: of the intervals, `uniform` or `jeffreys`.
        lawful: protocol presets under which the law of detection is claimed; other cells get no theory.
    """
    cells: dict[Cell, list[Row]] = {}
    for row in rows:
        cells.setdefault(cell_of(row), []).append(row)
    order = sorted(cells, key=lambda cell: (_sortable(cell.tau), _order(cell)))
    summaries = []
    for cell in order:
        law = _theory(cell) if cell.protocol in lawful else None
        summaries.append(_summary(cell, sorted(cells[cell], key=lambda row: row.key), prior, law))
    return summaries


def _summary(cell: Cell, rows: list[Row], prior: str, law: float | None) -> Summary:
    good = [row for row in rows if row.error is None]
    clusters = [row.cluster for row in good]
    checks = Counter(row.check for row in good if row.check is not None)
    rate: Rate | None = None
    probabilities: list[float] = []
    if good and cell.estimator == "raw":
        rate = clustered_rate([bool(row.detected) for row in good], clusters, prior=prior)
    elif good:
        probabilities = [row.probability for row in good if row.probability is not None]
        rate = conditional_rate(probabilities, [row.ideal for row in good], clusters, prior=prior)
    return Summary(
        cell=cell,
        rate=rate,
        theory=law,
        check=min(checks, key=lambda name: (-checks[name], name)) if checks else None,
        clusters=len(set(clusters)),
        spread=stdev(probabilities) if len(probabilities) > 1 else 0.0,
        seconds=sum(row.cost_seconds for row in rows),
        errors=len(rows) - len(good),
    )


def _theory(cell: Cell) -> float | None:
    if cell.amount == 0:
        return 0.0
    if cell.attack.partition(":")[0] in WITHOUT_LAW:
        return None
    try:
        return theory(cell.placement, cell.amount, cell.plan, cell.p)
    except ConfigError:  # a placement of a plug-in: its law is not known here
        return None


def _sortable(tau: float | None) -> float:
    return -1.0 if tau is None else tau


def _order(cell: Cell) -> tuple[str | int | float, ...]:
    name, _, knob = cell.placement.partition(":")
    number = float(knob) if knob.replace(".", "", 1).isdigit() else 0.0
    fixed = (cell.attack, cell.protocol, cell.sketch, cell.model, cell.L, cell.updates, cell.tokens)
    return (*fixed, name, number, cell.p, cell.amount, cell.estimator)
