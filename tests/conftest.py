"""What all tests share: in continuous integration a skip is a failure, so that nothing goes untested unseen."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

STRICT = os.environ.get("WITBENCH_CI") == "1"


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    if STRICT and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which WITBENCH_CI=1 forbids: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    _fail(report)
    return report
