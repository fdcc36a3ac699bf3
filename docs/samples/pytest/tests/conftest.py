"""Fixtures of the project, on those of pyxbroker's plug-in."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pulsar
import pytest

from pyxbroker.testing import factories

# A broker for each test that kills it or sets its clock ahead. Other tests share `pulsar_proc`.
own_broker = factories.pulsar_proc(scope="function")
own_namespace = factories.pulsar_namespace("own_broker")
brief_namespace = factories.pulsar_namespace("own_broker", policies={"message_ttl_in_seconds": 60})

Connect = Callable[[factories.Namespace], pulsar.Client]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """A function that opens clients, which are closed after the test."""
    clients: list[pulsar.Client] = []

    def open_client(namespace: factories.Namespace) -> pulsar.Client:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        clients.append(pulsar.Client(namespace.service_url, logger=quiet))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()
