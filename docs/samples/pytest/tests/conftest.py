"""Fixtures of the project, on those of pyxbroker's plug-in."""

from __future__ import annotations

from collections.abc import Iterator

import pulsar
import pytest

from pyxbroker.testing import factories

# A broker for each test that kills it or sets its clock ahead: others share `pulsar_proc`.
own_broker = factories.pulsar_proc(scope="function")
own_namespace = factories.pulsar_namespace("own_broker")

# A namespace with policies.
brief_namespace = factories.pulsar_namespace("own_broker", policies={"message_ttl_in_seconds": 60})


@pytest.fixture
def client(pulsar_namespace: factories.Namespace) -> Iterator[pulsar.Client]:
    """A client of the shared broker, or of the one that --pulsar-url names."""
    one = new_client(pulsar_namespace)
    yield one
    one.close()


@pytest.fixture
def own_client(own_broker: object, own_namespace: factories.Namespace) -> Iterator[pulsar.Client]:
    """A client of the test's own broker."""
    one = new_client(own_namespace)
    yield one
    one.close()


def new_client(namespace: factories.Namespace) -> pulsar.Client:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(namespace.service_url, logger=quiet)
