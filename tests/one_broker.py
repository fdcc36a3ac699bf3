"""A broker without ports: real handlers and topics on one bookie, clients over socket pairs."""

from __future__ import annotations

import asyncio
import itertools
import math
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from one_bookie import Node, append
from oracles import wire
from pyxbroker.base.half_open import PendingConnection
from pyxbroker.base.pacing import Pace
from pyxbroker.base.topic_name import TopicName
from pyxbroker.bookie.space import StorageState
from pyxbroker.broker import broker as served
from pyxbroker.broker.commands.handlers import Handlers
from pyxbroker.broker.listeners import Addresses
from pyxbroker.broker.statistics.stats import TopicStats, read_stats
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.broker.topics.topics import Topics
from pyxbroker.metadata import paths
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.settings.config import Config

TOPIC = "persistent://public/default/t"

_FIELDS = {field.number: field for field in pb.BaseCommand.DESCRIPTOR.fields if field.message_type}


class Message(NamedTuple):
    """What a client gets of one MESSAGE."""

    consumer_id: int
    position: tuple[int, int]
    redelivery_count: int
    data: bytes


def stats_of(topic: Topic) -> TopicStats:
    """Return the statistics of one topic."""
    [stats] = [each for each in read_stats((topic,)) if each is not None]
    return stats


class Broker:
    """`async with` starts and stops it. Settings are Pulsar's."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.node = Node(directory)
        settings.setdefault("managedLedgerMinLedgerRolloverTimeMinutes", 0)
        settings.setdefault("managedLedgerDefaultMarkDeleteRateLimit", 0.001)
        # A test reads what a client got only when it asks for it: nobody answers in time.
        settings.setdefault("connectionLivenessCheckTimeoutMillis", 0)
        self.config = Config(**settings)
        # How many steps a turn makes must not depend on the machine.
        self.pace = Pace(math.inf)
        self.service: served.Broker
        self.topics: Topics
        self.clients: list[Client] = []

    async def __aenter__(self) -> Broker:
        node = await self.node.__aenter__()
        await node.store.put(paths.namespace_policies("public/default"), b"{}")
        self.storage_state = StorageState([])
        self.service = served.Broker(
            self.config,
            node.store,
            node.client,
            node.connections,
            self.storage_state,
            Addresses("pulsar://here:1", "http://here:2"),
        )
        self.service.pace = self.service.poller.pace = self.pace
        # A test does itself what a broker does at intervals.
        self.service.is_ready = True
        self.service.producer_names.prefetch()  # as Broker.start does
        self.topics = self.service.topics
        self.publish_gate = self.service.publish_gate
        node.on_full = self.publish_gate.set_full
        node.on_trouble = self.storage_state.check
        self.storage_state.trouble = lambda: node.bookie.trouble
        self.storage_state.failure = lambda: "the journal failed" if node.bookie.failure else None
        self.storage_state.set_holding = node.bookie.set_holding
        self.storage_state.take_back = node.bookie.take_back
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.topics.close()
        await self.service.producer_names.close()
        for client in self.clients:
            client.connection.close()
            client.far.close()
        await self.node.__aexit__(kind, error, trace)

    async def topic(self, name: str = TOPIC) -> Topic:
        return await self.topics.loader.get(TopicName.get(name), create=True)

    async def publish(self, *data: bytes) -> list[tuple[int, int]]:
        """Appends messages as a producer does; returns their positions."""
        return await self.publish_to(await self.topic(), *data)

    async def publish_to(self, topic: Topic, *data: bytes) -> list[tuple[int, int]]:
        """The same to any topic."""
        return await append(topic.managed_ledger, *map(section, data))

    @property
    def handlers(self) -> Handlers:
        return self.service.handlers

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.node.turn.loop

    async def client(self) -> Client:
        """A client that is connected."""
        client = Client(self)
        client.send(pb.CommandConnect(client_version="test", protocol_version=21))
        await client.receive("connected")
        return client


class Port:
    """What clients come by who begin at once."""

    first_header_bytes = 1

    def __init__(self, service: served.Broker) -> None:
        self._service = service

    def first_bytes(self, header: bytes) -> int:
        return len(header)

    def begin(self, pending: PendingConnection) -> None:
        self._service.accept(pending)

    def on_closed(self, pending: PendingConnection) -> None:
        raise AssertionError("it has begun")


class Client:
    """One end of a socket pair whose other end is served."""

    def __init__(self, broker: Broker) -> None:
        near, self.far = socket.socketpair()
        near.setblocking(False)
        self.far.setblocking(False)
        pending = broker.service.add_half_open(Port(broker.service), near, "", 1)
        broker.service.half_open.begin(pending)
        self.connection = pending.connection
        self._inbox: list[tuple[str, Any, bytes]] = []
        self.rest = b""
        self._requests = itertools.count(1)
        broker.clients.append(self)

    def send(self, message: Any, payload: bytes = b"") -> None:
        """Writes one command; it is small enough for the socket."""
        self.far.send(wire.frame(command_of(message), payload))

    async def receive(self, field: str) -> Any:
        """The next command that is the named field of BaseCommand; others wait for their turn."""
        while True:
            for at, (name, message, _) in enumerate(self._inbox):
                if name == field:
                    del self._inbox[at]
                    return message
            await self._read()

    async def either(self, *fields: str) -> Any:
        """The next command that is one of some fields of BaseCommand."""
        while True:
            for at, (name, message, _) in enumerate(self._inbox):
                if name in fields:
                    del self._inbox[at]
                    return message
            await self._read()

    async def request(self, message: Any, field: str) -> Any:
        """Sends a command with a new request id; the answer, which may be an error instead."""
        message.request_id = next(self._requests)
        self.send(message)
        while True:
            for at, (name, answer, _) in enumerate(self._inbox):
                if name in (field, "error") and answer.request_id == message.request_id:
                    del self._inbox[at]
                    return answer
            await self._read()

    async def messages(self, count: int) -> list[Message]:
        """The next messages, of any consumer, in the order in which they came."""
        found: list[Message] = []
        while len(found) < count:
            kept = []
            for name, message, payload in self._inbox:
                if name != "message" or len(found) == count:
                    kept.append((name, message, payload))
                    continue
                position = (message.message_id.ledgerId, message.message_id.entryId)
                data = payload[10 + wire.number(payload, 6) :]
                found.append(Message(message.consumer_id, position, message.redelivery_count, data))
            self._inbox = kept
            if len(found) < count:
                await self._read()
        return found

    async def quiet(self) -> list[str]:
        """What has come and was not asked for, once the broker has nothing more to send."""
        while True:
            try:
                await self._read(0.05)
            except asyncio.TimeoutError:
                return [name for name, _, _ in self._inbox]

    async def quiet_until_closed(self) -> list[str]:
        """What has come and was not asked for, up to the end of the connection."""
        await self.closed()
        return [name for name, _, _ in self._inbox]

    def take(self) -> list[tuple[str, Any, bytes]]:
        """Everything that has come: (field of BaseCommand, message, payload section)."""
        try:
            while data := self.far.recv(1 << 20):
                self._parse(data)
        except BlockingIOError:
            pass
        taken, self._inbox = self._inbox, []
        return taken

    async def closed(self) -> None:
        """Waits until the broker has closed the connection."""
        while True:
            try:
                await self._read()
            except EOFError:
                return

    async def _read(self, seconds: float = 5.0) -> None:
        loop = asyncio.get_running_loop()
        data = await asyncio.wait_for(loop.sock_recv(self.far, 1 << 20), seconds)
        if not data:
            raise EOFError("the broker closed the connection")
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        frames, consumed, error = wire.scan(self.rest + data, 1 << 30)
        assert error is None
        self.rest = (self.rest + data)[consumed:]
        for command, payload in frames:
            parsed = pb.BaseCommand()
            parsed.ParseFromString(command)
            name = _FIELDS[parsed.type].name
            self._inbox.append((name, getattr(parsed, name), payload))

    # --- what most tests do -------------------------------------------------------------------

    async def subscribe(self, consumer_id: int = 1, permits: int = 1000, **fields: Any) -> Any:
        """Opens a consumer of the subscription "s" from the earliest message on."""
        settings = {
            "topic": TOPIC,
            "subscription": "s",
            "subType": pb.CommandSubscribe.Shared,
            "durable": True,
            "initialPosition": pb.CommandSubscribe.Earliest,
        }
        settings.update(fields)
        command = pb.CommandSubscribe(consumer_id=consumer_id, request_id=0, **settings)
        answer = await self.request(command, "success")
        if permits:
            self.flow(permits, consumer_id)
        return answer

    async def produce(self, producer_id: int = 1, **fields: Any) -> Any:
        fields.setdefault("topic", TOPIC)
        command = pb.CommandProducer(producer_id=producer_id, request_id=0, **fields)
        return await self.request(command, "producer_success")

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        self.send(pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits))

    def publish(self, sequence_id: int, data: bytes, producer_id: int = 1) -> None:
        self.send(pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id), section(data))

    async def ack(
        self, *positions: tuple[int, int], consumer_id: int = 1, cumulative: bool = False
    ) -> Any:
        """Acknowledges and waits for the answer."""
        return await self.request(
            pb.CommandAck(
                consumer_id=consumer_id,
                ack_type=pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual,
                message_id=[pb.MessageIdData(ledgerId=a, entryId=b) for a, b in positions],
            ),
            "ackResponse",
        )

    def redeliver(self, *positions: tuple[int, int], consumer_id: int = 1) -> None:
        self.send(
            pb.CommandRedeliverUnacknowledgedMessages(
                consumer_id=consumer_id,
                message_ids=[pb.MessageIdData(ledgerId=a, entryId=b) for a, b in positions],
            )
        )


def command_of(message: Any, partial: bool = False) -> bytes:
    """The BaseCommand around one of its messages; partial: required fields may be missing."""
    for field in _FIELDS.values():
        if field.message_type is message.DESCRIPTOR:
            command = pb.BaseCommand(type=field.number)
            getattr(command, field.name).CopyFrom(message)
            return command.SerializePartialToString() if partial else command.SerializeToString()
    raise ValueError(f"{message.DESCRIPTOR.name} is not a command")


def section(data: bytes, **fields: Any) -> bytes:
    """A payload section around data."""
    fields = {"producer_name": "p", "sequence_id": 0, "publish_time": 1, **fields}
    metadata = pb.MessageMetadata(**fields)
    return wire.payload_section(metadata.SerializeToString(), data)


Scenario = Callable[[Broker], Awaitable[None]]


def run(tmp_path: Path, scenario: Scenario, **settings: Any) -> None:
    """Runs a scenario on a loop of its own, with a broker on a fresh bookie."""

    async def main() -> None:
        async with Broker(tmp_path / "bookie", **settings) as broker:
            await scenario(broker)

    asyncio.run(main())


def data_of(count: int) -> list[bytes]:
    """The messages that Broker.publish is given, to be told apart."""
    return [b"message %d" % n for n in range(count)]
