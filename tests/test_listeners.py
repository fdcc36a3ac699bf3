"""Under which names a broker is reached: what settings may say, and what clients are told."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from one_broker import TOPIC, Broker, command_of, run
from oracles import wire
from pyxbroker.admin.app import Application
from pyxbroker.admin.request import Request
from pyxbroker.base.errors import ServiceNotReady
from pyxbroker.base.properties import ConfigError
from pyxbroker.broker.listeners import (
    Addresses,
    Listeners,
    LoopbackHint,
    advertised_by,
    bound_by,
)
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.roles.start import start_standalone
from pyxbroker.settings.config import Config
from pyxbroker.web.request import Body
from web_client import until

TWO = "inner:pulsar://10.0.0.1:6650,outer:pulsar://b.example:6660,outer:pulsar+ssl://b.example:6661"
OWN = Addresses("pulsar://localhost:1", "http://localhost:2", "", "https://localhost:3")


def test_listeners_are_told_by_their_names_and_the_first_one_is_the_internal_one() -> None:
    advertised, internal = advertised_by(TWO, "")
    assert advertised == {
        "inner": Addresses("pulsar://10.0.0.1:6650"),
        "outer": Addresses("pulsar://b.example:6660", "", "pulsar+ssl://b.example:6661"),
    }
    assert internal == "inner"
    assert advertised_by(TWO, "outer")[1] == "outer"
    listeners = Listeners(OWN, advertised, internal)
    web = {"web_url": OWN.web_url, "web_url_tls": OWN.web_url_tls}
    # The internal one has no TLS: who names none is told of the one that has.
    tls = advertised["outer"].broker_url_tls
    assert (
        listeners.own
        == listeners.of("")
        == listeners.of(" ")
        == Addresses("pulsar://10.0.0.1:6650", broker_url_tls=tls, **web)
    )
    assert listeners.of("inner") == Addresses("pulsar://10.0.0.1:6650", **web)
    assert listeners.of("outer") == advertised["outer"]._replace(**web)
    with pytest.raises(ServiceNotReady, match="the broker do not have other listener"):
        listeners.of("other")


def test_without_listeners_the_settings_of_old_say_it_all() -> None:
    for text in ("", " ", ","):
        # Pulsar's own file names an internal one, and advertises none.
        assert advertised_by(text, "internal") == ({}, "")
    assert Listeners(OWN).of("") == OWN
    with pytest.raises(ServiceNotReady, match="the broker do not have internal listener"):
        Listeners(OWN).of("internal")


def test_spaces_schemes_in_capitals_and_ipv6_are_taken() -> None:
    advertised, _ = advertised_by(" a:PULSAR://[::1]:6650 ,a: http://h:80/ ", "")
    assert advertised == {"a": Addresses("pulsar://[::1]:6650", "http://h:80")}
    assert Listeners(OWN, advertised, "a").own == Addresses(
        "pulsar://[::1]:6650", "http://h:80", "", "https://localhost:3"
    )


@pytest.mark.parametrize(
    ("text", "internal", "reason"),
    [
        (":pulsar://h:1", "", "because :pulsar://h:1 do not contain listener name"),
        ("pulsar", "", "because pulsar do not contain listener name"),
        (TWO, "other", "do not contain `internalListenerName` entry 'other': it has inner, outer"),
        ("a:pulsar://h:1,a:pulsar://h:2", "", "there are redundant configure for listener `a`"),
        (
            "a:pulsar://h:1,a:pulsar+ssl://h:2,a:http://h:3",
            "",
            "there are redundant configure for listener `a`",
        ),
        ("a:pulsar://h:1,b:pulsar+ssl://h:1", "", "must not specify `h:1` to different listener."),
        ("a:amqp://h:1", "", "the value amqp://h:1 in the `advertisedListeners` configure is inv"),
        ("a:pulsar://h", "", "it needs a host and a port"),
        ("a:pulsar://:1", "", "it needs a host and a port"),
        ("a:pulsar://h:x", "", "the value pulsar://h:x"),
        ("a:pulsar://h:99999", "", "the value pulsar://h:99999"),
        ("a:pulsar://h:1/path", "", "there is more than a host and a port"),
        ("pulsar://h:1", "", "its scheme is none of"),
    ],
)
def test_listeners_that_cannot_be_are_refused_with_a_reason(
    text: str, internal: str, reason: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        advertised_by(text, internal)
    assert reason in str(raised.value)


def test_ports_of_listeners() -> None:
    assert [tuple(each) for each in bound_by("a:pulsar://0.0.0.0:1, b:pulsar+ssl://[::]:0 ,")] == [
        ("a", "0.0.0.0", 1, False),
        ("b", "::", 0, True),
    ]
    assert bound_by("") == []
    for text in (
        *("pulsar://0.0.0.0:1", "a-b:pulsar://h:1", "a:http://h:1", "a:pulsar://h", "a:h:1"),
        *(":pulsar://h:1", "a:", "a:pulsar://h:x", "a:pulsar://:1"),
    ):
        with pytest.raises(ConfigError, match="bindAddresses: malformed: "):
            bound_by(text)


def lookup(name: str = "") -> Any:
    return pb.CommandLookupTopic(topic=TOPIC, request_id=7, advertised_listener_name=name)


def test_a_lookup_is_answered_for_its_listener(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        broker.service.listeners = Listeners(OWN, *advertised_by(TWO, ""))
        client = await broker.client()
        answer = await client.request(lookup(), "lookupTopicResponse")
        assert answer.brokerServiceUrl == "pulsar://10.0.0.1:6650"
        assert answer.brokerServiceUrlTls == "pulsar+ssl://b.example:6661"
        answer = await client.request(lookup("inner"), "lookupTopicResponse")
        assert not answer.HasField("brokerServiceUrlTls")
        answer = await client.request(lookup("outer"), "lookupTopicResponse")
        assert answer.brokerServiceUrl == "pulsar://b.example:6660"
        assert answer.brokerServiceUrlTls == "pulsar+ssl://b.example:6661"
        answer = await client.request(lookup("nobody"), "lookupTopicResponse")
        assert answer.response == pb.CommandLookupTopicResponse.Failed
        assert answer.error == pb.ServiceNotReady
        assert answer.message == "the broker do not have nobody listener"
        # The port that a client came by has a listener, unless the client names one.
        client.connection.session.listener = "outer"
        answer = await client.request(lookup(), "lookupTopicResponse")
        assert answer.brokerServiceUrl == "pulsar://b.example:6660"
        answer = await client.request(lookup("inner"), "lookupTopicResponse")
        assert answer.brokerServiceUrl == "pulsar://10.0.0.1:6650"

    run(tmp_path, scenario)


def settings(**more: Any) -> Config:
    return Config(brokerServicePort=None, webServicePort=0, bindAddress="127.0.0.1", **more)


def refused_start(tmp_path: Path, config: Config) -> str:
    with pytest.raises(ConfigError) as raised:
        asyncio.run(start_standalone(config, tmp_path))
    assert not list(tmp_path.iterdir())
    return str(raised.value)


def test_a_port_whose_listener_nobody_is_told_of_is_refused_at_the_start(tmp_path: Path) -> None:
    config = settings(bindAddresses="lost:pulsar://127.0.0.1:0", advertisedListeners=TWO)
    assert "the listener 'lost', which advertisedListeners does not have" in refused_start(
        tmp_path, config
    )


def test_a_port_for_tls_needs_a_certificate(tmp_path: Path) -> None:
    config = settings(bindAddresses="outer:pulsar+ssl://127.0.0.1:0", advertisedListeners=TWO)
    assert "tlsCertificateFilePath is empty" in refused_start(tmp_path, config)


def test_ports_of_listeners_are_served_and_say_which_one_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        config = settings(
            bindAddresses="outer:pulsar://127.0.0.1:0,inner:pulsar://127.0.0.1:0",
            advertisedListeners=TWO,
        )
        service = await start_standalone(config, tmp_path)
        try:
            assert service.broker_port == 0
            named = service._ports.named
            assert [each.listener for each in named] == ["outer", "inner"]
            with socket.create_connection(("127.0.0.1", named[0].port)) as client:
                client.sendall(
                    wire.frame(
                        command_of(pb.CommandConnect(client_version="x", protocol_version=21))
                    )
                )
                await until(lambda: service.broker.connections.live)
                [connection] = service.broker.connections.live
                assert connection.session.listener == "outer"
        finally:
            await service.stop()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_rest_answers_for_the_listener_that_a_request_names(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        broker.service.listeners = Listeners(OWN, *advertised_by(TWO, ""))
        path = "/lookup/v2/topic/persistent/public/default/t"

        async def ask(query: str = "", **headers: str) -> tuple[int, Any]:
            body = Body(0, lambda: None)
            body.end()
            request = Request("GET", path, query, headers, body)
            service: Any = broker.service
            answer = await Application(service, lambda: service).answer(request)
            assert isinstance(answer.body, bytes)
            return answer.status, json.loads(answer.body)

        assert (await ask())[1]["brokerUrl"] == "pulsar://10.0.0.1:6650"
        status, told = await ask("listenerName=outer")
        assert (status, told) == (
            200,
            {
                "brokerUrl": "pulsar://b.example:6660",
                "brokerUrlTls": "pulsar+ssl://b.example:6661",
                "httpUrl": OWN.web_url,
                "httpUrlTls": OWN.web_url_tls,
                "nativeUrl": "pulsar://b.example:6660",
                "brokerUrlSsl": "",
            },
        )
        by_header = await ask(**{"x-pulsar-listenername": "outer"})
        assert by_header == (status, told)
        assert (await ask("listenerName=inner", **{"x-pulsar-listenername": "outer"}))[1][
            "brokerUrl"
        ] == "pulsar://10.0.0.1:6650"
        assert await ask("listenerName=nobody") == (
            400,
            {"reason": "the broker do not have nobody listener"},
        )

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("client", "url", "expected"),
    [
        ("10.0.0.7", "pulsar://localhost:6650", True),
        ("10.0.0.7", "pulsar://127.0.0.1:6650", True),
        ("10.0.0.7", "pulsar://0.0.0.0:6650", True),
        ("2001:db8::7", "pulsar://[::1]:6650", True),
        ("127.0.0.1", "pulsar://localhost:6650", False),
        ("::ffff:127.0.0.1", "pulsar://localhost:6650", False),
        ("::1", "pulsar://localhost:6650", False),
        ("10.0.0.7", "pulsar://broker.example.com:6650", False),
        ("", "pulsar://localhost:6650", False),
    ],
)
def test_only_a_client_of_another_host_needs_another_address_than_the_loopback(
    caplog: pytest.LogCaptureFixture, client: str, url: str, expected: bool
) -> None:
    caplog.set_level(logging.WARNING, "pyxbroker")
    hint = LoopbackHint()
    for _ in range(2):
        hint.check(client, Addresses(url))
    assert len(caplog.records) == expected


IN_A_NAMESPACE_OF_ITS_OWN = """
import fcntl, socket, struct, sys, urllib.request
from pathlib import Path
from harness import wire
from command_line import standalone

UP, SET_ADDRESS, SET_FLAGS = 1, 0x8916, 0x8914
ADDRESS = "10.99.0.1"

def set_up_network():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        place = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(ADDRESS))
        for name, call, argument in (
            (b"lo", SET_FLAGS, struct.pack("=h14x", UP)),
            (b"lo:1", SET_ADDRESS, place),
        ):
            fcntl.ioctl(any_socket, call, struct.pack("=16s", name) + argument + bytes(8))

def lookup(host, port):
    with socket.create_connection((host, port), 30) as client:
        client.sendall(wire.command(wire.CONNECT, {1: "test", 4: 21}))
        client.sendall(wire.command(wire.LOOKUP, {1: "persistent://public/default/t", 2: 1}))
        reader = wire.FrameReader()
        kinds = []
        while wire.LOOKUP_RESPONSE not in kinds:
            kinds += [frame.type for frame in reader.feed(client.recv(65536))]

set_up_network()
with standalone(Path(sys.argv[1]) / "data", *sys.argv[2:]) as broker:
    for host in ("127.0.0.1", ADDRESS, ADDRESS):
        lookup(host, broker.broker_port)
    url = broker.find(r"admin +(http://\\S+?)/admin").replace("localhost", ADDRESS)
    urllib.request.urlopen(f"{url}/lookup/v2/topic/persistent/public/default/t", timeout=30).close()
    print(broker.banner)
    print(broker.stop()[2], file=sys.stderr)
"""


def test_a_client_of_another_host_that_is_sent_to_the_loopback_leaves_one_line(
    tmp_path: Path,
) -> None:
    tests = Path(__file__).parent
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", IN_A_NAMESPACE_OF_ITS_OWN, tmp_path],
        env={"PYTHONPATH": f"{tests}:{tests.parent}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    hints = [line for line in done.stderr.splitlines() if "only this host reaches" in line]
    assert len(hints) == 1
    assert "peer=10.99.0.1" in hints[0] and "--set advertisedAddress=" in hints[0]
    assert "--set advertisedAddress=NAME" in done.stdout
