"""What holds for the tests of all folders."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# No deadlines: machines are shared and slow. The same choices each time: what fails is the change.
# New ones are looked for with --hypothesis-profile explore.
settings.register_profile(
    "explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("house", settings.get_profile("explore"), derandomize=True)
settings.load_profile("house")

crashes: list[str] = []


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str) -> None:
    """A test that ended its process has not passed, whatever it does when it is run again."""
    crashes.append(crashitem)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Such a test fails the run."""
    if crashes and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tells what a test said that failed and then passed: pytest itself only counts such tests."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"failed and was run again: {report.nodeid}", sep="_")
        terminalreporter.write_line(report.longreprtext)
    for test in crashes:
        line = f"CRASHED {test}: its process ended, which fails the run"
        terminalreporter.write_line(line, red=True)
