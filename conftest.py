"""What holds for the tests of all folders."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from harness.slow_first import Seconds, read_seconds, slow_first, write_seconds
from hypothesis import HealthCheck, settings

# No deadlines: machines are shared and slow. The same choices each time: what fails is the change.
# New ones are looked for with --hypothesis-profile explore.
settings.register_profile(
    "explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("house", settings.get_profile("explore"), derandomize=True)
settings.load_profile("house")

# Of a file that was not run by several processes yet, when its mark tells no seconds; see
# pyproject.toml for the mark.
SLOW_S = 5.0
SECONDS = Path(__file__).parent / "build" / "test-seconds.json"

crashes: list[str] = []
hung: list[str] = []
started: dict[str, float] = {}  # a test -> when it was begun last
measured: Seconds = {}  # the longest test of each file
testing: dict[str, float] = {}  # a test that is under way -> seconds of its parts so far


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """All processes have to find the same order."""
    node.workerinput["seconds"] = read_seconds(SECONDS)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes, files that take long come first."""
    given: dict[str, Any] | None = getattr(config, "workerinput", None)
    if given is None or given["workercount"] < 2:
        return
    files: dict[str, list[pytest.Item]] = {}
    by_marks: Seconds = {}
    for item in items:
        name = item.nodeid.partition("::")[0]
        files.setdefault(name, []).append(item)
        by_marks[name] = max(by_marks.get(name, 0.0), seconds_by_mark(item))
    items[:] = slow_first(files, by_marks | given["seconds"], given["workercount"])


def seconds_by_mark(item: pytest.Item) -> float:
    """How long a test takes, as far as its mark tells."""
    mark = item.get_closest_marker("slow")
    if mark is None:
        return 0.0
    return float(mark.args[0]) if mark.args else SLOW_S


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Told by all processes to the first one, of each test's setup, call and teardown."""
    whole = testing.pop(report.nodeid, 0.0) + report.duration
    if report.when != "teardown":
        testing[report.nodeid] = whole
        return
    name = report.nodeid.partition("::")[0]
    measured[name] = max(measured.get(name, 0.0), whole)


def pytest_runtest_logstart(nodeid: str) -> None:
    started[nodeid] = time.monotonic()


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, sched: Any) -> None:
    """A test that ended its process has not passed, whatever it does when it is run again; but for
    one that waited until its process was ended, as clients do for ever now and then: that has
    failed as others do.
    """
    limit_s = float(sched.config.getini("faulthandler_timeout"))
    waited_s = time.monotonic() - started.get(crashitem, time.monotonic())
    # Of its beginning this process hears somewhat late.
    (hung if 0.0 < limit_s * 0.9 <= waited_s else crashes).append(crashitem)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Such a test fails the run."""
    if crashes and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if session.config.getoption("numprocesses", None):  # of the process that others report to
        write_seconds(SECONDS, measured)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tells what a test said that failed and then passed: pytest itself only counts such tests."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"failed and was run again: {report.nodeid}", sep="_")
        terminalreporter.write_line(report.longreprtext)
    for test in hung:
        terminalreporter.write_line(f"HUNG {test}: it waited for ever, and its process was ended")
    for test in crashes:
        line = f"CRASHED {test}: its process ended, which fails the run"
        terminalreporter.write_line(line, red=True)
