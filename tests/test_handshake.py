"""The first commands of a connection, its keep-alive, and what ends it."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from pathlib import Path
from typing import Any

import pytest

from one_bookie import until
from one_broker import TOPIC, Broker, Client, command_of, run
from oracles import wire
from pyxbroker.broker.commands import handlers
from pyxbroker.proto import PulsarApi as pb

HANDSHAKE_BYTES_MAX = 128 * 1024  # of a frame before CONNECTED


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
        assert len(broker.topics.registry) == 0

    run(tmp_path, scenario)


def connect_of(size: int) -> bytes:
    """A CONNECT whose frame has this size field."""
    command = pb.CommandConnect(client_version="test", protocol_version=21, auth_data=b"x" * size)
    over = struct.unpack(">I", wire.frame(command_of(command))[:4])[0] - size
    command.auth_data = b"x" * (size - over)
    frame = wire.frame(command_of(command))
    assert len(frame) == 4 + size
    return frame


def test_a_frame_before_connected_may_have_128_kib_and_later_ones_more(tmp_path: Path) -> None:
    """A stranger cannot make the broker keep megabytes: it is refused by the size alone."""

    async def scenario(broker: Broker) -> None:
        stranger = Client(broker)
        stranger.far.send(struct.pack(">I", HANDSHAKE_BYTES_MAX + 1))
        await stranger.closed()
        client = Client(broker)
        await broker.loop.sock_sendall(client.far, connect_of(HANDSHAKE_BYTES_MAX))
        await client.receive("connected")
        client.far.send(struct.pack(">I", HANDSHAKE_BYTES_MAX + 1))
        assert await client.quiet() == []
        assert not client.connection.closed

    run(tmp_path, scenario)


def test_a_client_with_many_commands_under_way_is_not_read_until_half_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has asked for, and what is read of it, is bounded; nothing of it is lost."""
    monkeypatch.setattr(handlers, "COMMANDS_MAX", 10)

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        get, waiting = broker.node.store.get, []

        def slow(path: str) -> asyncio.Future[Any]:
            waiting.append((path, broker.loop.create_future()))
            return waiting[-1][1]

        broker.node.store.get = slow  # type: ignore[method-assign]
        sent = set()

        async def ask(count: int) -> None:
            """One read for each."""
            for _ in range(count):
                number = len(sent)
                sent.add(number)
                topic = f"persistent://public/default/many-{number}"
                client.send(pb.CommandPartitionedTopicMetadata(topic=topic, request_id=number))
                for _ in range(5):
                    await asyncio.sleep(0)

        tasks = client.connection.session.tasks
        await ask(9)
        assert (len(tasks), client.connection.is_paused) == (9, False)
        await ask(20)
        assert (len(tasks), client.connection.is_paused) == (10, True)
        other = await broker.client()
        other.send(pb.CommandPing())
        await other.receive("pong")
        broker.node.store.get = get  # type: ignore[method-assign]
        for path, future in waiting[:4]:
            future.set_result(await get(path))
        await asyncio.sleep(0.01)
        assert (len(tasks), client.connection.is_paused) == (6, True)
        for path, future in waiting[4:]:
            future.set_result(await get(path))
        answers = [await client.receive("partitionMetadataResponse") for _ in sent]
        assert {each.request_id for each in answers} == sent
        assert not client.connection.is_paused

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

        def check() -> None:
            live = list(broker.node.connections.live)
            broker.node.turn.run(broker.handlers.check_alive, live)

        check()
        assert (await silent.receive("ping")) is not None
        await lively.receive("ping")
        lively.send(pb.CommandPong())
        await lively.quiet()
        check()
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
        began = broker.loop.time()
        for _ in range(3):  # a fourth one would be no frame
            half_open.far.send(b"\0")
            await asyncio.sleep(0.25)
            assert not half_open.connection.closed
        await half_open.closed()
        assert 0.9 < broker.loop.time() - began < 30
        assert not other.connection.closed
        assert len(broker.service.half_open) == 0

    run(tmp_path, scenario, connectionHandshakeTimeoutSeconds=1)


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


def fill(message: Any) -> None:
    """Gives the fields that a message must have a value."""
    for field in message.DESCRIPTOR.fields:
        if field.is_required and field.message_type is not None:
            fill(getattr(message, field.name))
            getattr(message, field.name).SetInParent()
        elif field.is_required:
            is_text = field.type in (field.TYPE_STRING, field.TYPE_BYTES)
            value = "t" if field.type == field.TYPE_STRING else b"t" if is_text else 1
            setattr(message, field.name, value)


def test_what_is_not_built_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        served = {*broker.handlers._table, pb.BaseCommand.ACK}
        requests = {
            field.name: field.number
            for field in pb.BaseCommand.DESCRIPTOR.fields
            if field.message_type is not None
            and "request_id" in field.message_type.fields_by_name
            and field.number not in served
        }
        assert requests.keys() >= {"newTxnResponse", "success"}
        for number, (name, kind) in enumerate(requests.items(), start=100):
            command = pb.BaseCommand(type=kind)
            message = getattr(command, name)
            fill(message)
            message.request_id = number
            await broker.loop.sock_sendall(client.far, wire.frame(command.SerializeToString()))
            answer = await client.receive("error")
            assert (answer.request_id, answer.error) == (number, pb.NotAllowedError), name
            assert "is not supported by this broker" in answer.message
        assert not client.connection.closed

    run(tmp_path, scenario)


def test_who_looks_for_a_coordinator_of_transactions_is_told_that_there_is_none(
    tmp_path: Path,
) -> None:
    """Of the lookup Java's client takes a refusal; of the coordinator itself it does not."""

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        topic = "persistent://pulsar/system/transaction_coordinator_assign-partition-3"
        lookup = pb.CommandLookupTopic(topic=topic)
        answer = await client.request(lookup, "lookupTopicResponse")
        assert answer.error == pb.NotAllowedError
        assert answer.message == "Transactions are not enabled."

    run(tmp_path, scenario)
