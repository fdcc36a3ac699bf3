"""Tokens that expire while three official clients publish: who has a newer one goes on, and who has
none is cut off.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker
from harness.go_client import Client as GoClient
from harness.java_client import Java, JavaError
from harness.tokens import CLIENT, SECRET, TOKENS, data_url, token

from compat_tests.conftest import broker_kind, official_client

REFUSALS = (pulsar.PulsarException, JavaError)
LIFE_S = 4
SEND_TIMEOUT_S = 4
SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProviders": TOKENS,
    "authenticationRefreshCheckSeconds": "1",
    "tokenSecretKey": data_url(SECRET),
    "superUserRoles": "root",
    "maxFailedLoginsPerAddress": "0",
    # Apache Pulsar's standalone is a client of itself.
    "brokerClientAuthenticationPlugin": CLIENT,
    "brokerClientAuthenticationParameters": f"token:{token('root')}",
}


@pytest.fixture(scope="module")
def guarded(module_directory: Path) -> Iterator[Broker]:
    """A broker that looks every second for who has expired."""
    headers = {"Authorization": f"Bearer {token('root')}"}
    one = Broker(broker_kind(), module_directory / "broker", settings=SETTINGS, headers=headers)
    try:
        one.start(180)
        yield one
    finally:
        one.close()


class TokenFile:
    """A file with a token that expires soon, and a newer one each second until it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_over = threading.Event()
        self.write()
        self._thread = threading.Thread(target=self._renew)
        self._thread.start()

    def write(self) -> None:
        """Whoever reads has the one or the other."""
        beside = self.path.with_suffix(".new")
        beside.write_text(token("me", exp=LIFE_S))
        beside.replace(self.path)

    def _renew(self) -> None:
        while not self._is_over.wait(1):
            self.write()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()


@pytest.fixture
def token_file(tmp_path: Path) -> Iterator[TokenFile]:
    with contextlib.closing(TokenFile(tmp_path / "token")) as one:
        yield one


@pytest.fixture(params=["python", "go", "java"])
def connect(request: pytest.FixtureRequest, guarded: Broker) -> Callable[..., Any]:
    """Makes a client of the kind that reads its token in a file."""
    if request.param == "java":
        java: Java = request.getfixturevalue("java")

        def of_java(path: Path) -> Any:
            return java.client(guarded.url, authPluginClassName=CLIENT, authParams=path.as_uri())

        return of_java
    if request.param == "go":
        return lambda path: GoClient(
            guarded.url, auth_plugin="token", auth_params=json.dumps({"file": str(path)})
        )
    return lambda path: official_client(
        guarded.url, authentication=pulsar.AuthenticationToken(path.read_text)
    )


def producer_of(client: Any, topic: str) -> Any:
    if isinstance(client, pulsar.Client | GoClient):
        return client.create_producer(topic, send_timeout_millis=SEND_TIMEOUT_S * 1000)
    return client.create_producer(topic, sendTimeoutMs=SEND_TIMEOUT_S * 1000)


def connected_since(broker: Broker, topic: str) -> str:
    path = "/admin/v2/" + topic.replace("://", "/") + "/stats"
    status, stats = broker.rest("GET", path)
    assert status == 200
    [publisher] = stats["publishers"]
    since: str = publisher["connectedSince"]
    return since


def test_who_has_newer_tokens_goes_on(
    connect: Callable[..., Any], guarded: Broker, token_file: TokenFile, topic: str
) -> None:
    """On the connection that it had, for longer than two of its tokens last."""
    with contextlib.closing(connect(token_file.path)) as client:
        consumer = client.subscribe(topic, "s")
        producer = producer_of(client, topic)
        since = connected_since(guarded, topic)
        until, sent = time.monotonic() + 2.5 * LIFE_S, 0
        while time.monotonic() < until:
            producer.send(b"%d" % sent)
            sent += 1
            time.sleep(0.05)
        assert connected_since(guarded, topic) == since
        for number in range(sent):
            message = consumer.receive(10_000)
            data = message.data() if callable(message.data) else message.data
            assert data == b"%d" % number


def test_who_has_no_newer_one_is_cut_off(
    connect: Callable[..., Any], tmp_path: Path, topic: str
) -> None:
    path = tmp_path / "token"
    path.write_text(token("me", exp=LIFE_S))
    with contextlib.closing(connect(path)) as client:
        producer = producer_of(client, topic)
        producer.send(b"in time")
        time.sleep(LIFE_S + 3)
        with pytest.raises(REFUSALS):
            producer.send(b"too late")
