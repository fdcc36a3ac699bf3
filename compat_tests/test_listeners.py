"""Named listeners: what lookups say for each, by the protocol and by REST, and where three official
clients go then.
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pulsar
import pytest
import trustme
from harness import wire
from harness.brokers import Broker, free_ports
from harness.certificates import write_certificate
from harness.go_client import Client as GoClient
from harness.java_client import Java, JavaError
from harness.raw import RawConnection

from compat_tests.conftest import broker_kind, official_client

PATIENT_S, IMPATIENT_S = 30, 3
REFUSALS = (pulsar.PulsarException, JavaError)
FAILED = 2  # of a LOOKUP_RESPONSE
SERVICE_NOT_READY = 6


class Named(NamedTuple):
    """A broker with two ports of their own for those outside, one of them with TLS."""

    broker: Broker
    outside: int
    secure: int
    trusted: Path

    @property
    def inner(self) -> str:
        return f"pulsar://127.0.0.1:{self.broker.port}"

    @property
    def outer(self) -> str:
        return f"pulsar://localhost:{self.outside}"

    @property
    def outer_tls(self) -> str:
        return f"pulsar+ssl://localhost:{self.secure}"

    def connected(self) -> set[int]:
        """The ports of the broker on which clients are."""
        found = [each for one in self.broker.processes() for each in one.net_connections("tcp")]
        ports = {each.laddr.port for each in found if each.status == psutil.CONN_ESTABLISHED}
        return {int(self.broker.as_first(f":{port}")[1:]) for port in ports}


@pytest.fixture(scope="module")
def named(module_directory: Path) -> Iterator[Named]:
    outside, secure = free_ports(2)
    ca, trusted = trustme.CA(), module_directory / "authority.pem"
    ca.cert_pem.write_to_path(trusted)
    certificate, key = write_certificate(ca, module_directory, "server", "localhost")
    one = Named(Broker(broker_kind(), module_directory / "broker"), outside, secure, trusted)
    one.broker.settings = {
        "bindAddresses": f"outer:pulsar://127.0.0.1:{outside},"
        f"outer:pulsar+ssl://127.0.0.1:{secure}",
        "advertisedListeners": f"inner:{one.inner},outer:{one.outer},outer:{one.outer_tls}",
        "internalListenerName": "inner",
        "tlsCertificateFilePath": str(certificate),
        "tlsKeyFilePath": str(key),
    }
    try:
        one.broker.start(180)
        yield one
    finally:
        one.broker.close()


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
            return answer.status, json.loads(broker.as_first(answer.read().decode()))
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_lookup_is_answered_for_its_listener(named: Named, topic: str) -> None:
    inside, outside = named.broker.port, named.outside
    inner, outer = (named.inner, None), (named.outer, named.outer_tls)
    for port, listener, urls in (
        # Who names none and comes by TLS has to go somewhere.
        (inside, "", (named.inner, named.outer_tls)),
        (inside, "outer", outer),
        (inside, "inner", inner),
        (outside, "", outer),
        (outside, "inner", inner),
    ):
        answer = looked_up(port, topic, listener)
        # Nobody is told of a port for TLS that there is not.
        told = [
            named.broker.as_first(answer.data(each).decode()) if each in answer.fields else None
            for each in (1, 2)
        ]
        assert tuple(told) == urls, (port, listener)


def test_a_listener_that_is_not_there_is_refused(named: Named, topic: str) -> None:
    answer = looked_up(named.broker.port, topic, "nobody")
    assert (answer.fields[3][0], answer.fields[6][0]) == (FAILED, SERVICE_NOT_READY)
    assert "the broker do not have nobody listener" in answer.data(7).decode()


def test_by_rest(named: Named, topic: str) -> None:
    broker = named.broker
    status, told = asked(broker, topic)
    assert (status, told["brokerUrl"], told["nativeUrl"]) == (200, named.inner, named.inner)
    assert told["brokerUrlTls"] == named.outer_tls
    status, told = asked(broker, topic, "?listenerName=outer")
    assert (status, told["brokerUrl"], told["nativeUrl"]) == (200, named.outer, named.outer)
    assert told["brokerUrlTls"] == named.outer_tls
    status, told = asked(broker, topic, **{"X-Pulsar-ListenerName": "outer"})
    assert (status, told["brokerUrl"]) == (200, named.outer)
    status, told = asked(broker, topic, "?listenerName=nobody")
    # It is the client's fault, which 500 would not say.
    assert status == (500 if broker_kind() == "apache" else 400)
    assert "the broker do not have nobody listener" in told


@pytest.fixture(params=["python", "go", "java"])
def connect(request: pytest.FixtureRequest, named: Named) -> Callable[..., Any]:
    """Makes a client of the kind, of a URL and the name of a listener."""
    if request.param == "java":
        java: Java = request.getfixturevalue("java")

        def of_java(url: str, listener: str | None, timeout_s: int = PATIENT_S) -> Any:
            return java.client(
                url,
                tlsTrustCertsFilePath=str(named.trusted),
                tlsHostnameVerificationEnable=True,
                operationTimeoutMs=timeout_s * 1000,
                lookupTimeoutMs=timeout_s * 1000,
                **({"listenerName": listener} if listener else {}),
            )

        return of_java
    make = GoClient if request.param == "go" else official_client

    def of_another(url: str, listener: str | None, timeout_s: int = PATIENT_S) -> Any:
        return make(
            url,
            tls_trust_certs_file_path=str(named.trusted),
            tls_validate_hostname=True,
            operation_timeout_seconds=timeout_s,
            **({"listener_name": listener} if listener else {}),
        )

    return of_another


def test_a_client_goes_where_its_listener_is(
    connect: Callable[..., Any], named: Named, topic: str
) -> None:
    """The first time: what a lookup says to those inside is nothing to those outside."""
    inside = named.broker.port
    for number, (url, listener, ports) in enumerate(
        (
            (named.inner, "outer", {inside, named.outside}),
            (named.inner, None, {inside}),
            (named.outer, None, {named.outside}),
            (named.outer_tls, None, {named.secure}),
            (named.outer_tls, "outer", {named.secure}),
        )
    ):
        with contextlib.closing(connect(url, listener)) as client:
            check_where(named, client, f"{topic}-{number}", ports)


def check_where(named: Named, client: Any, topic: str, ports: set[int]) -> None:
    """That a client publishes and consumes by these ports and no others; all before have left."""
    until = time.monotonic() + 60
    while {named.outside, named.secure} & named.connected():
        assert time.monotonic() < until
        time.sleep(0.1)
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"hello")
    message = consumer.receive(30_000)
    assert (message.data() if callable(message.data) else message.data) == b"hello"
    if broker_kind() == "apache":
        return  # a standalone has its clients stay where they came in
    found = named.connected()
    assert ports <= found
    others = {named.outside, named.secure}
    if len(named.broker.ports()) == 1:  # other brokers of a cluster are connected to this port
        others.add(named.broker.port)
    assert not (others - ports) & found


def test_javas_client_names_a_listener_by_http_too(named: Named, java: Java, topic: str) -> None:
    """The other two say nothing of it there."""
    client = java.client(named.broker.web_url, listenerName="outer")
    with contextlib.closing(client):
        check_where(named, client, topic, {named.outside})


def test_a_client_that_names_another_one_is_told(
    connect: Callable[..., Any], named: Named, topic: str
) -> None:
    client = connect(named.inner, "nobody", IMPATIENT_S)
    with pytest.raises(REFUSALS):
        client.create_producer(topic)
    client.close()
