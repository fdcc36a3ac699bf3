"""What holds for the tests of all folders."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tells what a test said that failed and then passed: pytest itself only counts such tests."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"failed and was run again: {report.nodeid}", sep="_")
        terminalreporter.write_line(report.longreprtext)
