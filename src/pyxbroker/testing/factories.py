"""Factories of pytest fixtures. A project calls them in its `conftest.py`::

    from pyxbroker.testing import factories

    pulsar_dedup = factories.pulsar_proc(brokerDeduplicationEnabled=True)
    dedup_namespace = factories.pulsar_namespace("pulsar_dedup")

The plug-in (`plugin.py`) has one fixture of each factory under the name of the factory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from pyxbroker.testing.process import Broker

SERVICE_URL = "pulsar://localhost:6650"
ADMIN_URL = "http://localhost:8080"
Scope = Literal["session", "package", "module", "class", "function"]


# The open brokers of this process, by the names of their fixtures.
BROKERS = pytest.StashKey[dict[str, Broker]]()
# Of a test: the brokers of its namespaces.
USED = pytest.StashKey["list[Broker | ExternalBroker]"]()
HAS_FAILED = pytest.StashKey[bool]()


@dataclass(frozen=True)
class ExternalBroker:
    """A broker that was started elsewhere, of pyxbroker or of Apache Pulsar."""

    service_url: str
    admin_url: str


@dataclass(frozen=True)
class Namespace:
    """A namespace for one test."""

    name: str
    """Tenant and namespace, such as public/test-gw0-1f0c9a52."""
    broker: Broker | ExternalBroker

    @property
    def service_url(self) -> str:
        """The URL for clients."""
        return self.broker.service_url

    @property
    def admin_url(self) -> str:
        """The URL of the admin REST API."""
        return self.broker.admin_url

    def topic(self, name: str, *, persistent: bool = True) -> str:
        """Return the full name of a topic in the namespace."""
        return f"{'persistent' if persistent else 'non-persistent'}://{self.name}/{name}"

    def __str__(self) -> str:
        return self.name


def pulsar_proc(*, scope: Scope = "session", **settings: object) -> Callable[..., Any]:
    """Return a fixture: a broker process (`process.Broker`).

    With pytest-xdist each worker has a process of its own. `settings` come after those of the
    command line and of the ini file.
    """

    @pytest.fixture(scope=scope)
    def pulsar_proc(request: pytest.FixtureRequest) -> Iterator[Broker]:
        broker = Broker({**_settings_of(request.config), **settings})
        broker.open()
        brokers = request.config.stash.setdefault(BROKERS, {})
        brokers[request.fixturename or ""] = broker
        yield broker
        broker.close()

    return pulsar_proc


def pulsar_noproc(*, url: str | None = None, admin_url: str | None = None) -> Callable[..., Any]:
    """Return a fixture: the broker that runs at `url` and `admin_url`, or else at --pulsar-url and
    --pulsar-admin-url.
    """

    @pytest.fixture(scope="session")
    def pulsar_noproc(request: pytest.FixtureRequest) -> ExternalBroker:
        config = request.config
        return ExternalBroker(
            url or _option(config, "pulsar_url") or SERVICE_URL,
            admin_url or _option(config, "pulsar_admin_url") or ADMIN_URL,
        )

    return pulsar_noproc


def pulsar_namespace(
    broker: str | None = None,
    *,
    tenant: str = "public",
    policies: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Return a fixture: a new namespace for each test, which is deleted after it.

    `broker` names the fixture of its broker; without it, `pulsar_noproc` if --pulsar-url is given,
    else `pulsar_proc`. `policies` are fields of Pulsar's Policies, such as
    {"message_ttl_in_seconds": 60}.
    """

    @pytest.fixture
    def pulsar_namespace(request: pytest.FixtureRequest) -> Iterator[Namespace]:
        from pyxbroker.testing.admin import create_namespace, delete_namespace

        is_external = _option(request.config, "pulsar_url") is not None
        fixture = broker or ("pulsar_noproc" if is_external else "pulsar_proc")
        found: Broker | ExternalBroker = request.getfixturevalue(fixture)
        item = request.node
        item.stash[USED] = [*item.stash.get(USED, []), found]
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        name = f"{tenant}/test-{worker}-{os.urandom(6).hex()}"
        create_namespace(found.admin_url, name, dict(policies) if policies else None)
        yield Namespace(name, found)
        if isinstance(found, Broker):
            # A failed test leaves its messages in the files, and a test may have killed its broker.
            if item.stash.get(HAS_FAILED, False) or not found.is_running:
                return
            found.resume()
        delete_namespace(found.admin_url, name)

    return pulsar_namespace


def report_failure(item: pytest.Item, report: pytest.TestReport) -> None:
    """Add the logs of the brokers that a failed test uses to its report, and keep their files."""
    item.stash[HAS_FAILED] = True
    open_brokers = item.config.stash.get(BROKERS, {})
    names = getattr(item, "fixturenames", ())
    used = {open_brokers[name] for name in names if name in open_brokers}
    used |= {each for each in item.stash.get(USED, ()) if isinstance(each, Broker)}
    for broker in used:
        if broker.directory.exists():
            broker.keeps_files = True
            report.sections.append((f"pyxbroker {report.when}", broker.report()))


def _option(config: pytest.Config, name: str) -> str | None:
    """Return an option of the command line or of the ini file; None if neither is given."""
    return config.getoption(name) or config.getini(name) or None


def _settings_of(config: pytest.Config) -> dict[str, object]:
    """Return the settings of the ini file and the command line. Raises pytest.UsageError."""
    lines = [*config.getini("pulsar_settings"), *config.getoption("pulsar_setting")]
    if wrong := [line for line in lines if "=" not in line]:
        raise pytest.UsageError(f"{wrong[0]!r} is not a setting of a broker: expected KEY=VALUE")
    pairs = (line.partition("=") for line in lines)
    return {key.strip(): value.strip() for key, _, value in pairs}
