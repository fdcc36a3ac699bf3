"""Fixtures: one broker process per test module, official clients, fresh topic names.

A test that takes ``new_client`` runs twice, with Apache Pulsar's Python client and with its Go
client under the same names (``go_client.py`` tells what the Go client does not have)::

    def test_something(new_client: ClientFactory, topic: str) -> None:
        client = new_client()                       # of the module's broker
        impatient = new_client(operation_timeout_seconds=3)
        elsewhere = new_client(other_broker.url)    # all are closed when the test ends

``any_client`` is one such client of the module's broker; ``client`` and ``python_client`` are the
Python client alone.  To let all tests of a module that take ``client`` run with both, say there::

    @pytest.fixture
    def client(any_client: AnyClient) -> AnyClient:
        return any_client

``java_client`` is Apache Pulsar's Java client under names of its own (``java_client.py``), for what
it does best: schemas, access modes, table views.  One process has all clients.

``BROKER=apache`` or ``BROKER=pulsar-lite`` runs the same tests against a peer;
``COMPAT_MESSAGES`` sets the number of messages of the codec tests (default 100,000).
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pulsar
import pytest
from harness.brokers import KINDS, Broker
from harness.go_client import Client as GoClient
from harness.java_client import Client as JavaClient
from harness.java_client import Java
from harness.spark_session import make_session
from harness.transactions import GoTransactions, JavaTransactions, TransactionClient

_NUMBERS = itertools.count(1)

BrokerFactory = Callable[..., Broker]
# The Go client under the names of the Python client.
AnyClient: TypeAlias = "pulsar.Client | GoClient"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "pyxbroker: holds only for our broker, not for the peers")
    config.addinivalue_line("markers", "standalone: about the storage and metadata of one process")
    config.addinivalue_line("markers", "since_spark(version): about what older PySparks lack")
    config.addinivalue_line("markers", "only_spark(version): with libraries for that PySpark")


def broker_kind() -> str:
    """The broker under test."""
    kind = os.environ.get("BROKER", "pyxbroker")
    assert kind in KINDS, f"BROKER is {kind!r}, known are {', '.join(KINDS)}"
    return kind


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    others = [item for item in items if _is_of_another_spark(item)]
    if broker_kind() not in ("pyxbroker", "cluster"):
        others += [item for item in items if item.get_closest_marker("pyxbroker")]
    if broker_kind() == "cluster":
        others += [item for item in items if item.get_closest_marker("standalone")]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def pytest_sessionfinish() -> None:
    if broker_kind() == "cluster":
        from harness.shared_cluster import close_servers

        close_servers()


def _is_of_another_spark(item: pytest.Item) -> bool:
    """Whether it is about what an older PySpark, if there is one, does not have, or about another
    one alone.
    """
    since, only = (item.get_closest_marker(name) for name in ("since_spark", "only_spark"))
    if since is None and only is None:
        return False
    try:
        from pyspark import __version__
    except ImportError:
        return False
    mine = _numbers(__version__)
    if since is not None and mine < _numbers(since.args[0]):
        return True
    return only is not None and mine != _numbers(only.args[0])


def _numbers(version: str) -> list[int]:
    return [int(each) for each in version.split(".")[:2]]


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
def broker(request: pytest.FixtureRequest, module_directory: Path) -> Iterator[Broker]:
    """A running broker, with the module's BROKER_SETTINGS, that its tests share."""
    settings = getattr(request.module, "BROKER_SETTINGS", None)
    one = Broker(broker_kind(), module_directory, settings=settings)
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
def python_client(broker: Broker) -> Iterator[pulsar.Client]:
    """The Python client, for what the Go client does not have."""
    one = official_client(broker.url)
    yield one
    one.close()


@pytest.fixture
def client(python_client: pulsar.Client) -> pulsar.Client:
    """The Python client, unless the module says otherwise."""
    return python_client


class ClientFactory:
    """Makes official clients of one kind and closes them when the test ends."""

    def __init__(self, kind: str, default_url: Callable[[], str]) -> None:
        self.kind = kind  # python, go
        self._default_url = default_url
        self._made: list[AnyClient] = []

    def __call__(self, url: str | None = None, **options: Any) -> Any:
        """A client of the module's broker, or of another one; options as ``pulsar.Client``'s."""
        make = GoClient if self.kind == "go" else official_client
        one = make(self._default_url() if url is None else url, **options)
        self._made.append(one)
        return one

    def close(self) -> None:
        """Close all that were made; a test may have closed some itself."""
        while self._made:
            with contextlib.suppress(pulsar.AlreadyClosed):
                self._made.pop().close()


@pytest.fixture(params=["python", "go"])
def new_client(request: pytest.FixtureRequest) -> Iterator[ClientFactory]:
    """Runs the test with the Python client and with the Go client; see this file's head."""
    one = ClientFactory(request.param, lambda: request.getfixturevalue("broker").url)
    yield one
    one.close()


@pytest.fixture
def go_client(broker: Broker) -> Iterator[GoClient]:
    """The Go client, for what is asked of it alone."""
    one = GoClient(broker.url)
    yield one
    one.close()


@pytest.fixture(scope="session")
def java() -> Iterator[Java]:
    """The process of all Java clients: it takes seconds to load what they are made of."""
    one = Java()
    yield one
    one.close()


@pytest.fixture
def java_client(java: Java, broker: Broker) -> Iterator[JavaClient]:
    """A Java client of the module's broker."""
    with java.client(broker.url) as one:
        yield one


TransactionClientFactory = Callable[..., TransactionClient]


@pytest.fixture(params=["java", "go"])
def connect(request: pytest.FixtureRequest) -> Iterator[TransactionClientFactory]:
    """Make clients with transactions: the test runs with the Java and with the Go client."""
    made: list[TransactionClient] = []

    def make(url: str | None = None, **options: Any) -> TransactionClient:
        place = url or request.getfixturevalue("broker").url
        if request.param == "java":
            made.append(JavaTransactions(request.getfixturevalue("java"), place, **options))
        else:
            made.append(GoTransactions(place, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


# The Go client names the transaction in SEND alone, not in the metadata of the message. A broker
# that stores the metadata as it came cannot tell an aborted message from others when it reads them:
# Apache Pulsar delivers what a Go client has aborted.
aborts_of_sends = pytest.mark.parametrize(
    "connect", ["java", pytest.param("go", marks=pytest.mark.pyxbroker)], indirect=True
)


@pytest.fixture
def transacting(connect: TransactionClientFactory) -> TransactionClient:
    """A client with transactions of the module's broker."""
    return connect()


@pytest.fixture
def java_transacting(java: Java, broker: Broker) -> Iterator[JavaTransactions]:
    """The Java client with transactions, for what the Go client does not have."""
    one = JavaTransactions(java, broker.url)
    yield one
    one.close()


@pytest.fixture
def any_client(new_client: ClientFactory) -> AnyClient:
    """A client of the module's broker: the test runs with the Python and with the Go client."""
    return new_client()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session of Spark (`make spark`): one for all tests, which starts a JVM."""
    session = make_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def topic() -> str:
    """A topic name no other test uses."""
    return f"persistent://public/default/compat-{os.getpid()}-{next(_NUMBERS)}"


@pytest.fixture
def namespace(broker: Broker, topic: str) -> str:
    """A namespace of the test's own."""
    name = f"public/{topic.rpartition('/')[2]}"
    assert broker.rest("PUT", f"/admin/v2/namespaces/{name}", {})[0] == 204
    return name
