"""A report as text for people: what ran, what was checked, what it proves, what it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from witbench.protocol.records import ISOLATIONS, PUBLISHED
from witbench.protocol.report import ACCEPTED, SELF_CERTIFIED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from witbench.protocol.numbers import Numbers
    from witbench.protocol.report import Facts, Report

_OUTSIDE = (
    "what the procedure carries in its own source",
    "malicious randomness in the procedure",
    "a broker that colludes with the trainer",
    "attempts under fresh identities",
)


def transcript(report: Report) -> str:
    """The transcript of a verification; ends in a newline."""
    sections = [_verdict(report)]
    if report.facts:
        sections += [_run(report.facts), _protocol(report.facts)]
    if report.numbers and report.facts:
        sections += [_checks(report.numbers), _proof(report.numbers), _results(report), _outside(report.facts)]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _table(title: str, rows: Iterable[tuple[str, object]]) -> list[str]:
    return [title, *(f"  {name:<20} {value}" for name, value in rows)]


def _verdict(report: Report) -> list[str]:
    word = {ACCEPTED: "ACCEPTED", SELF_CERTIFIED: "NOT ACCEPTED"}.get(report.status, "REJECTED")
    lines = [word if report.reason is None else f"{word}: {report.reason}"]
    if report.record is not None and report.status not in (ACCEPTED, SELF_CERTIFIED):
        lines.append(f"  at record {report.record}" + (f", check {report.check}" if report.check else ""))
    lines.append(f"  {report.records} records read, {report.verified_units} units under signed heads")
    if report.head:
        lines.append(f"  tape head {report.head}")
    return lines


def _run(facts: Facts) -> list[str]:
    published = "source on the tape" if facts.procedure_policy == PUBLISHED else "on the broker's allow-list"
    return _table(
        "Run",
        (
            ("run id", f"{facts.run} (attempt {facts.attempt} at this job, {facts.trainer_attempt} of this trainer)"),
            ("dataset root", f"{facts.dataset} ({facts.dataset_tokens:,} tokens)"),
            ("tokenizer", facts.tokenizer),
            ("procedure", f"{facts.procedure} ({published})"),
            ("config", facts.config),
            ("plan", f"{facts.updates:,} updates in {facts.units:,} units of {facts.unit}"),
            ("threads", facts.threads),
            ("libraries", ", ".join(f"{name} {version}" for name, version in sorted(facts.libraries.items())) or "-"),
            ("broker key", facts.broker),
            ("trainer key", facts.trainer),
        ),
    )


def _protocol(facts: Facts) -> list[str]:
    return _table(
        "Protocol",
        (
            ("p", f"{facts.p:.6g} a unit, the last unit always"),
            ("tolerance", _tolerance(facts)),
            ("sketch", f"{facts.sketch}, {facts.groups} groups"),
            ("order", facts.order),
            ("switches", ", ".join(f"{switch} {choice}" for switch, choice in facts.switches.items())),
            ("replay isolation", facts.isolation),
        ),
    )


def _tolerance(facts: Facts) -> str:
    if not facts.calibration:
        return facts.tolerance
    units = f"{facts.warmup:,} units" if facts.warmup > 1 else "1 unit"
    return f"{facts.tolerance}, the first {units} apart (calibration {facts.calibration})"


def _checks(numbers: Numbers) -> list[str]:
    return _table(
        "Checked",
        (
            ("units", f"{numbers.units:,} ({numbers.updates:,} updates, {numbers.tokens:,} tokens)"),
            ("challenged", f"{numbers.drawn:,}, all passed: {numbers.coins:,} by coin, and the last unit"),
            ("expected", f"{numbers.expected:.1f}"),
            ("longest unchecked", f"{numbers.longest_unchecked:,} units"),
            ("rewinds", numbers.rewinds),
            ("attempts", numbers.attempts),
        ),
    )


def _proof(numbers: Numbers) -> list[str]:
    confidence = f"{numbers.confidence:.0%}"
    rows: list[tuple[str, object]] = [
        (
            "failing units",
            f"with {confidence} confidence at most {numbers.failing_at_most:.2%} of units would fail replay",
        )
    ]
    for touched, probability in numbers.detection.items():
        unit = "unit" if touched == 1 else "units"
        rows.append((f"{touched:,} touched {unit}", f"caught with {probability:.4%}, at worst"))
    rows.append(("the last unit", f"caught with {numbers.detection_last:.0%} when touched"))
    if numbers.drift:
        group, largest = max(numbers.drift.items(), key=lambda item: item[1])
        rows.append(
            ("uncertified drift", f"{largest:.3g} in {group}, first order: sum of tau over the units x Lambda,")
        )
        rows.append(("", "a lower bound with Lambda = 1 (not measured)"))
    else:
        rows.append(("uncertified drift", "none: replays are held to the committed bits"))
    return _table("Proved", rows)


def _results(report: Report) -> list[str]:
    checked = "the given file is it" if report.weights_checked else "no file was compared"
    rows: list[tuple[str, object]] = [
        ("weights SHA-256", f"{report.weights} ({checked})"),
        ("parameters root", report.parameters),
    ]
    rows += [(name, f"{value:.6g} (re-run by the prover)") for name, value in sorted(report.evaluation.items())]
    return _table("Results", rows)


def _outside(facts: Facts) -> list[str]:
    lines = ["Outside this certificate", *(f"  {item}" for item in _OUTSIDE)]
    if facts.isolation == ISOLATIONS[0]:
        lines.append("  a procedure that escapes its process: replays ran without namespaces")
    return lines
