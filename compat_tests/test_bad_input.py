"""Bytes no client should send: a clear error or a closed connection, and nobody else notices."""

from __future__ import annotations

import random
import re
import socket
import struct
import time
import urllib.request
from collections.abc import Iterator

import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import ConnectionClosed, RawConnection

from compat_tests.conftest import BrokerFactory

MAX_FRAME_BYTES = 5 * 1024 * 1024 + 10 * 1024


@pytest.fixture
def neighbour(broker: Broker, topic: str) -> Iterator[RawConnection]:
    """Another connection with a producer and a consumer; it must work at the end of the test."""
    with RawConnection(broker.port) as one:
        name = topic + "-neighbour"
        one.producer(name, 77)
        assert one.subscribe(name, "s", 78).type == wire.SUCCESS
        one.flow(10, 78)
        yield one
        one.send(b"still here", 5, 77)
        kinds = {one.wait_for(wire.SEND_RECEIPT).type, one.wait_for(wire.MESSAGE).type}
        assert kinds == {wire.SEND_RECEIPT, wire.MESSAGE}


@pytest.fixture
def raw(broker: Broker, neighbour: RawConnection) -> Iterator[RawConnection]:
    with RawConnection(broker.port) as one:
        yield one


@pytest.fixture
def stranger(broker: Broker, neighbour: RawConnection) -> Iterator[RawConnection]:
    """A connection that has not said CONNECT."""
    with RawConnection(broker.port, handshake=False) as one:
        yield one


@pytest.mark.parametrize(
    "frame",
    [
        wire.command(wire.PRODUCER, {1: "persistent://public/default/x", 2: 1, 3: 1}),
        wire.command(wire.LOOKUP, {1: "persistent://public/default/x", 2: 1}),
        wire.send(1, 0, wire.metadata("p", 0, 1), b"body"),
        wire.command(wire.FLOW, {1: 1, 2: 1}),
    ],
    ids=["producer", "lookup", "send", "flow"],
)
def test_a_command_before_connect_closes(stranger: RawConnection, frame: bytes) -> None:
    stranger.write(frame)
    stranger.assert_closed()


def test_a_second_connect_closes(raw: RawConnection) -> None:
    raw.command(wire.CONNECT, {1: "again", 4: 21})
    said = raw.assert_closed()
    assert all(frame.type != wire.CONNECTED for frame in said)


def test_an_oversized_frame_closes(raw: RawConnection) -> None:
    raw.write(struct.pack(">I", MAX_FRAME_BYTES + 1) + b"x" * 100)
    raw.assert_closed()


def test_a_huge_length_closes_without_waiting_for_the_bytes(stranger: RawConnection) -> None:
    stranger.write(b"\xff" * 64)
    stranger.assert_closed()


@pytest.mark.parametrize(
    "body",
    [
        struct.pack(">I", 0),
        struct.pack(">II", 4, 4),
        struct.pack(">II", 4, 0xFFFFFFFF),
        struct.pack(">II", 14, 10) + b"\xff" * 10,
        struct.pack(">II", 8, 100) + b"\x08\x06\x32\x00",
        struct.pack(">II", 6, 2) + b"\x08\x7f",
        struct.pack(">II", 6, 2) + b"\x08\x06",
    ],
    ids=["empty", "no-command", "negative", "garbage", "too-long", "unknown-type", "send-without"],
)
@pytest.mark.pyxbroker
def test_a_malformed_frame_closes(raw: RawConnection, body: bytes) -> None:
    raw.write(body)
    raw.assert_closed()


@pytest.mark.parametrize("seed", range(30))
def test_garbage_never_harms_others(broker: Broker, neighbour: RawConnection, seed: int) -> None:
    generator = random.Random(seed)
    written = 0
    with RawConnection(broker.port, handshake=seed % 2 == 0) as one:
        good = wire.send(1, 0, wire.metadata("p", 0, 1), b"body" * 20)
        try:
            for _ in range(20):
                bad = bytearray(good)
                for _ in range(generator.randint(1, 6)):
                    bad[generator.randrange(len(bad))] = generator.randrange(256)
                one.write(bytes(bad) if generator.random() < 0.7 else generator.randbytes(50))
                written += 1
        except OSError:
            assert written, "the broker may close the connection, and not before it got anything"
    neighbour.assert_alive()


def test_a_truncated_frame_then_the_end(broker: Broker, neighbour: RawConnection) -> None:
    frame = wire.send(1, 0, wire.metadata("p", 0, 1), b"body")
    for size in range(1, len(frame), 5):
        with RawConnection(broker.port) as one:
            one.write(frame[:size])
            one.socket.shutdown(socket.SHUT_WR)
            said = one.assert_closed()
            assert all(each.type != wire.SEND_RECEIPT for each in said)


def test_frames_may_come_byte_by_byte(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one:
        one.producer(topic)
        frame = wire.send(1, 4, wire.metadata("p", 4, 1), b"dripping")
        for at in range(len(frame)):
            one.write(frame[at : at + 1])
        assert one.expect(wire.SEND_RECEIPT).number(2) == 4


def test_a_broken_checksum_is_refused(broker: Broker, topic: str, neighbour: object) -> None:
    with RawConnection(broker.port) as one:
        one.producer(topic)
        one.send(b"good", 0)
        assert one.expect(wire.SEND_RECEIPT).number(2) == 0
        one.send(b"bad", 1, break_checksum=True)
        error = one.expect(wire.SEND_ERROR)
        assert (error.number(2), error.number(3)) == (1, 9)
        assert one.subscribe(topic).type == wire.SUCCESS
        one.flow(10)
        assert wire.parse_payload(one.wait_for(wire.MESSAGE).rest).body == b"good"
        with pytest.raises((TimeoutError, ConnectionClosed)):
            one.wait_for(wire.MESSAGE, 0.5)


def test_a_message_without_a_checksum_is_accepted(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one:
        one.producer(topic)
        one.send(b"plain", 0, checksum=False)
        one.expect(wire.SEND_RECEIPT)
        assert one.subscribe(topic).type == wire.SUCCESS
        one.flow(1)
        assert wire.parse_payload(one.wait_for(wire.MESSAGE).rest).body == b"plain"


def test_send_on_an_unknown_producer_closes(raw: RawConnection) -> None:
    raw.send(b"to nobody", 0, producer_id=99)
    said = raw.assert_closed()
    assert all(frame.type != wire.SEND_RECEIPT for frame in said)


def test_unknown_consumers_are_answered_or_ignored(raw: RawConnection) -> None:
    raw.command(wire.FLOW, {1: 99, 2: 10})
    raw.command(wire.ACK, {1: 99, 2: 0, 3: wire.message_id(1, 1)})
    raw.command(wire.REDELIVER, {1: 99})
    raw.assert_alive()
    for kind in (wire.UNSUBSCRIBE, wire.SEEK, wire.GET_LAST_MESSAGE_ID, wire.CLOSE_CONSUMER):
        request = raw.request_id()
        fields = {1: 99, 2: request} | ({3: wire.message_id(1, 1)} if kind == wire.SEEK else {})
        raw.command(kind, fields)
        answer = raw.receive()
        assert answer.type in (wire.ERROR, wire.SUCCESS) and answer.number(1) == request, answer


def test_a_producer_id_is_used_once(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one:
        one.producer(topic, 1, "first")
        request = one.request_id()
        one.command(wire.PRODUCER, {1: topic + "-b", 2: 1, 3: request, 4: "second"})
        answer = one.receive()
        # Pulsar answers a repeated creation with the existing producer, or with an error.
        assert answer.type in (wire.ERROR, wire.PRODUCER_SUCCESS)
        one.assert_alive()


def test_names_that_are_no_topics(broker: Broker, neighbour: RawConnection) -> None:
    for name in ("", "persistent://a", "ftp://a/b/c", "persistent://a/b/", "x" * 3000 + "://"):
        with RawConnection(broker.port) as one:
            request = one.request_id()
            one.command(wire.LOOKUP, {1: name, 2: request})
            try:
                answer = one.expect(wire.LOOKUP_RESPONSE)
            except ConnectionClosed:
                continue
            assert answer.number(3) == 2 and answer.number(4) == request
            assert len(answer.data(7)) > 5, "an error needs a sentence"


def test_a_silent_connection_is_pinged_or_closed_not_kept_busy(broker: Broker) -> None:
    before = broker.cpu_s()
    held = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(50)]
    time.sleep(1)
    for one in held:
        one.close()
    assert broker.cpu_s() - before < 0.5 or broker.kind == "apache"


def test_connections_that_come_and_go(broker: Broker, topic: str) -> None:
    for number in range(100):
        with RawConnection(broker.port) as one:
            one.producer(topic, 1, f"short-{number}")
            one.send(b"x", 0)
    with RawConnection(broker.port) as one:
        one.producer(topic, 1, "short-0")
        one.send(b"x", 0)
        one.expect(wire.SEND_RECEIPT)


@pytest.mark.pyxbroker
def test_refused_sends_write_few_and_short_lines_of_log(
    own_broker: BrokerFactory, topic: str
) -> None:
    """The longest name there is, of characters that take ten each when escaped, in every line."""
    broker = own_broker()
    broker.start()
    with RawConnection(broker.port) as one, RawConnection(broker.port) as other:
        one.producer(topic, 1, "\U000f0000" * 256)
        other.producer(topic, 1, "\x1b]0;other\x07\n")
        before = {log: log.stat().st_size for log in broker.logs()}
        for sequence_id in range(20):
            for each in (one, other):
                each.write(wire.send(1, sequence_id, b"", b"x"))
                each.expect(wire.SEND_ERROR)
        written = b"".join(log.read_bytes()[size:] for log, size in before.items())
    assert written.count(b"a SEND was refused") == 5
    assert b"other" in written, "the other connection's lines have room beside the first one's"
    assert b"\x1b" not in written
    assert max(map(len, written.splitlines())) < 8192
    assert len(written) < 20_000
    broker.stop()
    assert "repeated=35 " in broker.output()


def stray_commands(broker: Broker) -> dict[str, int]:
    """The counters of /metrics, by the command."""
    with urllib.request.urlopen(f"{broker.web_url}/metrics/", timeout=10) as answer:
        text = answer.read().decode()
    pattern = r'^pyxbroker_stray_commands_total\{.*command="(\w+)"\} (\d+)$'
    return {name: int(count) for name, count in re.findall(pattern, text, re.M)}


@pytest.mark.pyxbroker
def test_commands_for_nobody_change_nothing_and_are_counted(
    broker: Broker, raw: RawConnection
) -> None:
    before = stray_commands(broker)
    raw.flow(10, 4711)
    raw.command(wire.ACK, {1: 4711, 2: 0, 3: wire.message_id(1, 1)})
    raw.command(wire.REDELIVER, {1: 4711})
    raw.assert_alive()
    after = stray_commands(broker)
    grown = {name: count - before.get(name, 0) for name, count in after.items()}
    assert grown == {"FLOW": 1, "ACK": 1, "REDELIVER_UNACKNOWLEDGED_MESSAGES": 1}
