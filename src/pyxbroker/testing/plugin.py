"""The pytest plug-in: fixtures with a broker, and their options.

pytest imports it in each environment that has pyxbroker, so it imports nothing of a broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyxbroker.testing import factories

pulsar_proc = factories.pulsar_proc()
pulsar_noproc = factories.pulsar_noproc()
pulsar_namespace = factories.pulsar_namespace()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("pulsar", "brokers for tests (pyxbroker)")
    texts = {
        "pulsar_url": f"Service URL of a broker that runs [{factories.SERVICE_URL}].",
        "pulsar_admin_url": f"Admin URL of a broker that runs [{factories.ADMIN_URL}].",
    }
    for name, text in texts.items():
        group.addoption(f"--{name.replace('_', '-')}", metavar="URL", help=text)
        parser.addini(name, text)
    group.addoption(
        "--pulsar-setting",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="A setting of the broker that pulsar_proc starts; may be repeated.",
    )
    parser.addini("pulsar_settings", "Settings of the broker, one per line.", type="linelist")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the logs of its brokers to the report of a failed test."""
    outcome: Any = yield
    report: pytest.TestReport = outcome.get_result()
    if report.failed:
        factories.report_failure(item, report)
