"""What all tests here share: the kinds of metadata store and of event loops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.apache_records import ApacheRecords

import scripted_server
from metadata_backends import Backend
from zookeeper_server import ZooKeeperServer


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


@pytest.fixture(params=["memory", "embedded", pytest.param("zookeeper", marks=pytest.mark.interop)])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """Each kind of metadata store in turn."""
    kind = request.param
    server = request.getfixturevalue("zookeeper") if kind == "zookeeper" else None
    return Backend(kind, tmp_path, server)
