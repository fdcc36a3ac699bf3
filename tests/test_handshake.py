"""The first commands of a connection, its keep-alive, and what ends it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from one_bookie import until
from one_broker import TOPIC, Broker, Client, run
from oracles import wire
from pyxbroker.proto import PulsarApi as pb


def test_the_first_command_must_be_connect(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        early = [
            pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1),
            pb.CommandFlow(consumer_id=1, messagePermits=1),
            pb.CommandPing(),
            pb.CommandSend(producer_id=1, sequence_id=0),
        ]
        for message in early:
            client = Client(broker)
            client.send(message)
            error = await client.receive("error")
            assert "first command must be CONNECT" in error.message
            await client.closed()
        assert len(broker.topics) == 0

    run(tmp_path, scenario)


def test_the_older_version_of_both_is_spoken(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        for theirs, spoken in ((21, 21), (1000, 21), (6, 6)):
            client = Client(broker)
            client.send(pb.CommandConnect(client_version="c", protocol_version=theirs))
            connected = await client.receive("connected")
            assert connected.protocol_version == spoken
            assert connected.max_message_size == broker.config.maxMessageSize
        client = Client(broker)
        client.send(pb.CommandConnect(client_version="c", protocol_version=3))
        assert "too old" in (await client.receive("error")).message
        await client.closed()

    run(tmp_path, scenario)


def test_silent_peers_are_pinged_and_then_closed(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        silent = await broker.client()
        lively = await broker.client()
        mute = Client(broker)

        def check() -> None:
            live = list(broker.node.connections.live)
            broker.node.turn.run(broker.handlers.check_alive, live)

        check()
        assert (await silent.receive("ping")) is not None
        await lively.receive("ping")
        lively.send(pb.CommandPong())
        await lively.quiet()
        check()
        await mute.closed()
        await silent.closed()
        await lively.receive("ping")
        lively.send(pb.CommandPing())
        assert (await lively.receive("pong")) is not None

    run(tmp_path, scenario)


def look(broker: Broker) -> None:
    """What happens once in a keep-alive interval."""
    broker.node.turn.run(broker.handlers.check_alive, list(broker.node.connections.live))


def test_who_sends_bytes_and_never_a_connect_is_closed(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        half_open, other = Client(broker), await broker.client()
        for _ in range(2):
            half_open.far.send(b"\0")
            await asyncio.sleep(0.05)
            assert not half_open.connection.closed
            look(broker)
            await other.receive("ping")
            other.send(pb.CommandPong())
        await half_open.closed()
        assert not other.connection.closed

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_lively", [False, True])
def test_who_takes_nothing_of_what_waits_for_it_is_closed(tmp_path: Path, is_lively: bool) -> None:
    """Whether reading from it is paused for that, and whatever it sends."""

    async def scenario(broker: Broker) -> None:
        client, slow = await broker.client(), await broker.client()
        for each in (client, slow):
            for _ in range(100 if is_lively else 300):
                each.connection.send_frame(bytes(50_000))
        await until(lambda: client.connection.writing and slow.connection.writing)
        assert client.connection.is_paused is not is_lively
        for _ in range(2):
            assert not client.connection.closed
            if is_lively:
                client.send(pb.CommandPing())
            look(broker)
            # The other one is slow, and goes on.
            slow.send(pb.CommandPing())
            for _ in range(20):
                await broker.loop.sock_recv(slow.far, 65_536)
            await asyncio.sleep(0.05)
        assert client.connection.closed
        look(broker)
        assert not slow.connection.closed

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(64),
        b"\xff" * 64,
        wire.frame(b"\x08\x99\x01"),
        wire.frame(b"\x08\x06"),
        wire.frame(b"\x08\x03\x1a\x00"),
        wire.frame(b"\xff\xff\xff"),
    ],
)
def test_garbage_ends_one_connection_and_no_other(tmp_path: Path, data: bytes) -> None:
    async def scenario(broker: Broker) -> None:
        other = await broker.client()
        client = await broker.client()
        client.far.send(data)
        with contextlib.suppress(EOFError):
            assert "Connection closed" in (await client.receive("error")).message
        await client.closed()
        other.send(pb.CommandPing())
        await other.receive("pong")
        assert broker.node.connections.live == {other.connection}

    run(tmp_path, scenario)


def test_what_is_not_built_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        answer = await client.request(pb.CommandGetSchema(topic="t", request_id=0), "error")
        assert answer.error == pb.NotAllowedError
        assert "not supported" in answer.message

    run(tmp_path, scenario)
