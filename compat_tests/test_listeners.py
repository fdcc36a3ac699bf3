"""Named listeners: what lookups say for each, by the protocol and by REST."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker, free_ports
from harness.raw import RawConnection

from compat_tests.conftest import broker_kind, official_client

FAILED = 2  # of a LOOKUP_RESPONSE
SERVICE_NOT_READY = 6


@pytest.fixture(scope="module")
def named(module_directory: Path) -> Iterator[tuple[Broker, int]]:
    """A broker with a port of its own for those outside, and that port."""
    [outside] = free_ports(1)
    one = Broker(broker_kind(), module_directory)
    one.settings = {
        "bindAddresses": f"outer:pulsar://127.0.0.1:{outside}",
        "advertisedListeners": f"inner:pulsar://127.0.0.1:{one.port},"
        f"outer:pulsar://localhost:{outside}",
        "internalListenerName": "inner",
    }
    try:
        one.start(180)
        yield one, outside
    finally:
        one.close()


def looked_up(port: int, topic: str, listener: str = "") -> wire.Frame:
    with RawConnection(port, timeout_s=60) as raw:
        named = {7: listener} if listener else {}
        raw.command(wire.LOOKUP, {1: topic, 2: raw.request_id()} | named)
        return raw.expect(wire.LOOKUP_RESPONSE)


def asked(broker: Broker, topic: str, query: str = "", **headers: str) -> tuple[int, Any]:
    path = "/lookup/v2/topic/" + topic.replace("://", "/") + query
    request = urllib.request.Request(broker.web_url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_lookup_is_answered_for_its_listener(named: tuple[Broker, int], topic: str) -> None:
    broker, outside = named
    inner, outer = f"pulsar://127.0.0.1:{broker.port}", f"pulsar://localhost:{outside}"
    for port, listener, url in (
        (broker.port, "", inner),
        (broker.port, "outer", outer),
        (broker.port, "inner", inner),
        (outside, "", outer),
        (outside, "inner", inner),
    ):
        answer = looked_up(port, topic, listener)
        assert answer.data(1).decode() == url, (port, listener)
        assert 2 not in answer.fields  # nobody is told of a port for TLS that there is not


def test_a_listener_that_is_not_there_is_refused(named: tuple[Broker, int], topic: str) -> None:
    answer = looked_up(named[0].port, topic, "nobody")
    assert (answer.fields[3][0], answer.fields[6][0]) == (FAILED, SERVICE_NOT_READY)
    assert "the broker do not have nobody listener" in answer.data(7).decode()


def test_by_rest(named: tuple[Broker, int], topic: str) -> None:
    broker, outside = named
    inner, outer = f"pulsar://127.0.0.1:{broker.port}", f"pulsar://localhost:{outside}"
    status, told = asked(broker, topic)
    assert (status, told["brokerUrl"], told["nativeUrl"]) == (200, inner, inner)
    status, told = asked(broker, topic, "?listenerName=outer")
    assert (status, told["brokerUrl"], told["nativeUrl"]) == (200, outer, outer)
    status, told = asked(broker, topic, **{"X-Pulsar-ListenerName": "outer"})
    assert (status, told["brokerUrl"]) == (200, outer)
    status, told = asked(broker, topic, "?listenerName=nobody")
    # It is the client's fault, which 500 would not say.
    assert status == (500 if broker_kind() == "apache" else 400)
    assert "the broker do not have nobody listener" in told


def test_a_client_that_names_a_listener_goes_there(named: tuple[Broker, int], topic: str) -> None:
    broker, outside = named
    for url, name in (
        (broker.url, "outer"),
        (broker.url, None),
        (f"pulsar://127.0.0.1:{outside}", None),
    ):
        client = official_client(url, listener_name=name)
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        producer.send(b"hello")
        message = consumer.receive(30_000)
        consumer.acknowledge(message)
        assert message.data() == b"hello"
        client.close()


def test_a_client_that_names_another_one_is_told(named: tuple[Broker, int], topic: str) -> None:
    client = official_client(named[0].url, listener_name="nobody", operation_timeout_seconds=3)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    client.close()
