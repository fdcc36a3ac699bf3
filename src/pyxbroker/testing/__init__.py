"""Brokers for the tests of applications.

    import pyxbroker.testing

    with pyxbroker.testing.broker() as broker:
        client = pulsar.Client(broker.service_url)

Each broker is a process of its own on free ports of this host, with a data directory of its own.
Neither outlives the test process. pytest has fixtures for them (`factories.py`).
"""

from __future__ import annotations

from pyxbroker.testing.process import Broker as Broker
from pyxbroker.testing.process import BrokerFailed as BrokerFailed
from pyxbroker.testing.process import broker as broker
