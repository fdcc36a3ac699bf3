"""Fixtures: one broker process per test module, an official client, fresh topic names.

``BROKER=apache`` or ``BROKER=pulsar-lite`` runs the same tests against a peer;
``COMPAT_MESSAGES`` sets the number of messages of the codec tests (default 100,000).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from compat_tests.brokers import KINDS, Broker

_NUMBERS = itertools.count(1)

BrokerFactory = Callable[..., Broker]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "pyxbroker: holds only for our broker, not for the peers")


def broker_kind() -> str:
    """The broker under test."""
    kind = os.environ.get("BROKER", "pyxbroker")
    assert kind in KINDS, f"BROKER is {kind!r}, known are {', '.join(KINDS)}"
    return kind


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if broker_kind() == "pyxbroker":
        return
    ours = [item for item in items if item.get_closest_marker("pyxbroker")]
    config.hook.pytest_deselected(items=ours)
    items[:] = [item for item in items if item not in ours]


def official_client(url: str, **options: object) -> pulsar.Client:
    """The official client with short timeouts and only its errors on the terminal."""
    settings: dict[str, object] = {
        "operation_timeout_seconds": 30,
        "logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    }
    return pulsar.Client(url, **(settings | options))


@pytest.fixture(scope="module")
def module_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="module")
def broker(module_directory: Path) -> Iterator[Broker]:
    """A running broker that the tests of one module share."""
    one = Broker(broker_kind(), module_directory)
    try:
        one.start()
        yield one
        assert one.process is not None and one.process.poll() is None, one.output()
    finally:
        one.close()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerFactory]:
    """Makes brokers that one test has for itself, for restarts and settings."""
    made: list[Broker] = []

    def make(**options: Any) -> Broker:
        made.append(Broker(broker_kind(), tmp_path / f"broker-{len(made)}", **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def client(broker: Broker) -> Iterator[pulsar.Client]:
    one = official_client(broker.url)
    yield one
    one.close()


@pytest.fixture
def topic() -> str:
    """A topic name no other test uses."""
    return f"persistent://public/default/compat-{os.getpid()}-{next(_NUMBERS)}"
