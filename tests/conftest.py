"""What all tests here share: kinds of metadata stores and event loops, and automatic marks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.apache_records import ApacheRecords

import scripted_server
from marks import Starters, long_tests
from metadata_backends import Backend
from zookeeper_server import ZooKeeperServer

TESTS = Path(__file__).parent
PEERS = {"zookeeper", "apache"}  # fixtures


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that want a peer, start processes or take long, before -m selects."""
    starters = Starters()
    long = set(long_tests())
    for item in items:
        if not isinstance(item, pytest.Function) or TESTS not in item.path.parents:
            continue
        fixtures = item._fixtureinfo.name2fixturedefs
        if PEERS & set(fixtures):
            item.add_marker("interop")
        functions = [item.function, *(each.func for of in fixtures.values() for each in of)]
        if any(starters.starts(each) for each in functions):
            item.add_marker("process")
        if item.nodeid.partition("[")[0] in long:
            item.add_marker("long")


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server for all tests of a file; each store has a chroot of its own there."""
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def apache() -> Iterator[ApacheRecords]:
    """Apache Pulsar's own classes, in one process for all tests."""
    records = ApacheRecords()
    yield records
    records.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def each_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each kind of event loop in turn for `scripted_server.run`."""
    scripted_server.use_loop(request.param)
    yield
    scripted_server.use_loop("asyncio")


ZOOKEEPER = pytest.param("zookeeper", marks=pytest.mark.interop)


@pytest.fixture(params=["memory", "routed", "embedded", ZOOKEEPER])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """Each kind of metadata store in turn."""
    kind = request.param
    server = request.getfixturevalue("zookeeper") if kind == "zookeeper" else None
    return Backend(kind, tmp_path, server)
