"""The clients of a storm, in a process that runs in the clients' network namespace.

Requests and answers are lines of JSON, as `harness/line_program.py` sends them. The official Python
client sends and receives. It cannot ask for the answer of an acknowledgement, so the subscriptions
whose answers are checked belong to the client of `harness/client.py`. So do visitors, which look
each topic up again and again: a broker that another one has replaced then has clients still, while
its successor has some, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pulsar
from harness import wire
from harness.client import Connection, Position, Refused

from torture.cluster_judge import (
    Message,
    Place,
    ReceiptClock,
    SubscriptionRecord,
    TopicRecord,
    key_of,
)
from torture.load import drain
from torture.model import ProducerModel, TopicCheck, TopicModel, Verdict, body_of

KINDS = ("exclusive", "shared", "keys")
PRODUCERS = 2  # of each topic
TICK_S = 0.02
WINDOW = 150
IDLE_S = 15.0
VISIT_S = 0.3
VISIT_TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 0.5
SHORT_GAP_S = 0.05
LOOKUPS_MAX = 8
TRIES = 5
CONNECT = 1  # LookupType of an answer that names the owner
_TYPES = {
    "exclusive": (pulsar.ConsumerType.Exclusive, 1, "producer", 0.9),
    "shared": (pulsar.ConsumerType.Shared, 2, "none", 0.7),
    "keys": (pulsar.ConsumerType.KeyShared, 3, "key", 1.0),
}
"""By kind of topic: type and number of consumers, their order, the share that they acknowledge."""


@dataclass
class Producer:
    """One producer of the official client, and its messages under way."""

    name: str
    topic: Topic
    handle: Any
    clock: ReceiptClock
    sent: int = 0
    answered: int = 0
    failures: list[str] = field(default_factory=list)

    def send(self, size: int) -> None:
        number = self.sent
        self.sent += 1
        body = body_of(self.name, number, size)
        key = key_of(number) if self.topic.kind == "keys" else None
        done = self._done((self.name, number), self.topic.record.newest)
        self.handle.send_async(body, done, partition_key=key)

    def _done(self, message: Message, newest: int) -> Callable[[Any, Any], None]:
        def done(result: Any, place: Any) -> None:
            self.answered += 1
            if result != pulsar.Result.Ok:
                self.failures.append(f"{message} failed: {result}")
                return
            now_s = time.monotonic()
            self.clock.tick(now_s)
            self.topic.clock.tick(now_s)
            self.topic.any_clock.tick(now_s)
            self.topic.record.take_receipt(message, newest, _place(place))

        return done


class Topic:
    """One topic with the records of its judge."""

    def __init__(self, name: str, kind: str, is_deduplicated: bool) -> None:
        self.name, self.kind = name, kind
        order = "key" if kind == "keys" else "producer"
        self.record = TopicRecord(name, is_deduplicated, order)
        self.subscription = SubscriptionRecord(f"{name} {kind}", _TYPES[kind][2])
        # The receipts of the official client, and those of visitors as well.
        self.clock = ReceiptClock(time.monotonic(), SHORT_GAP_S)
        self.any_clock = ReceiptClock(time.monotonic(), SHORT_GAP_S)
        # Entries of a subscription whose acknowledgements are answered.
        self.audit = TopicModel(name, kind == "exclusive", [ProducerModel("entries", name)])

    @property
    def has_audit(self) -> bool:
        return self.kind != "keys"

    @property
    def clocks(self) -> tuple[ReceiptClock, ReceiptClock]:
        return self.clock, self.any_clock


def _place(of: Any) -> Place:
    return of.ledger_id(), of.entry_id(), max(0, of.batch_index())


@dataclass
class Hosts:
    """The hosts of all brokers, which have equal ports."""

    hosts: list[str]
    port: int
    chance: random.Random

    @property
    def url(self) -> str:
        return "pulsar://" + ",".join(f"{host}:{self.port}" for host in self.hosts)

    async def connect(self, topic: str) -> Connection:
        """Connect to the owner of a topic. Raises OSError, Refused and TimeoutError."""
        host, is_authoritative = self.chance.choice(self.hosts), False
        for _ in range(LOOKUPS_MAX):
            connection = await asyncio.wait_for(Connection.open(self.port, host), CONNECT_TIMEOUT_S)
            try:
                fields = {1: topic, 3: int(is_authoritative)}
                answer = await connection.request(wire.LOOKUP, 2, fields)
            except BaseException:
                connection.close()
                raise
            named = urlsplit(answer.data(1).decode()).hostname or host
            if answer.number(3) == CONNECT and named == host:
                return connection
            connection.close()
            host, is_authoritative = named, bool(answer.number(5))
        raise Refused(f"{topic}: no owner after {LOOKUPS_MAX} lookups")


FAILURES = (OSError, Refused, TimeoutError, asyncio.TimeoutError)
"""Of the client of `harness/client.py`."""


class Visitor:
    """A client that looks the topic up, sends one message, and leaves, again and again."""

    def __init__(self, topic: Topic, hosts: Hosts) -> None:
        self._topic = topic
        self._hosts = hosts
        self._visits = 0

    async def run(self) -> None:
        """Visit until the task is cancelled."""
        while True:
            with contextlib.suppress(*FAILURES):
                await asyncio.wait_for(self._visit(), VISIT_TIMEOUT_S)
            await asyncio.sleep(VISIT_S)

    async def _visit(self) -> None:
        topic = self._topic
        self._visits += 1
        # Each visit is a producer of its own, since the broker may not have seen the last one go.
        name = f"{topic.name.rpartition('/')[2]}-v{self._visits}"
        connection = await self._hosts.connect(topic.name)
        try:
            receipt: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

            def on_receipt(_: int, __: int, position: Position) -> None:
                if not receipt.done():
                    receipt.set_result(position)

            connection.on_receipt = on_receipt
            await connection.producer(topic.name, 1, name)
            fields = {"fields": {6: key_of(0)}}
            metadata = wire.metadata(name, 0, int(time.time() * 1000), **fields)
            newest = topic.record.newest
            connection.write(wire.send(1, 0, metadata, body_of(name, 0, 50)))
            await asyncio.wait([receipt, connection.closed], return_when=asyncio.FIRST_COMPLETED)
            if not receipt.done():
                raise ConnectionResetError("the broker is gone")
            ledger, entry = receipt.result()
        finally:
            connection.close()
        topic.any_clock.tick(time.monotonic())
        topic.record.take_receipt((name, 0), newest, (_signed(ledger), entry, 0))


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


class Auditor:
    """A consumer that reconnects, and that asks for the answers of its acknowledgements."""

    def __init__(self, topic: Topic, hosts: Hosts, chance: random.Random) -> None:
        self.topic = topic.audit
        self._hosts = hosts
        self._random = chance
        self._acks: set[asyncio.Task[None]] = set()
        self.problems: list[str] = []

    async def run(self) -> None:
        """Consume until the task is cancelled."""
        while True:
            with contextlib.suppress(*FAILURES):
                await self._consume()
            await asyncio.sleep(0.1)

    async def subscribe(self, connection: Connection) -> None:
        kind = wire.EXCLUSIVE if self.topic.cumulative else wire.SHARED
        fields = {3: kind, 13: wire.EARLIEST}
        await connection.subscribe(self.topic.name, 1, "audit", fields=fields)
        self.topic.subscribed = True

    async def _consume(self) -> None:
        connection = await self._hosts.connect(self.topic.name)
        lost = asyncio.Event()
        connection.on_message = lambda *message: self._on_message(connection, *message)
        connection.on_close_consumer = lambda _: lost.set()
        connection.closed.add_done_callback(lambda _: lost.set())
        try:
            await self.subscribe(connection)
            connection.flow(1, 500)
            await lost.wait()
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(connection.request(wire.CLOSE_CONSUMER, 2, {1: 1}), 5)
            raise
        finally:
            for task in self._acks:
                task.cancel()
            await asyncio.gather(*self._acks, return_exceptions=True)
            connection.close()

    def _on_message(
        self, connection: Connection, _: int, position: Position, payload: wire.Payload
    ) -> None:
        connection.flow(1, payload.messages)
        topic = self.topic
        dice = self._random.random()
        if topic.cumulative:
            if dice < 0.1:
                topic.acked_up_to = max(topic.acked_up_to, position)
                self._ack(connection, position)
        elif dice < 0.6:
            topic.acked.add(position)
            self._ack(connection, position)

    def _ack(self, connection: Connection, position: Position) -> None:
        task = asyncio.ensure_future(self._ack_surely(connection, position))
        self._acks.add(task)
        task.add_done_callback(self._acks.discard)

    async def _ack_surely(self, connection: Connection, position: Position) -> None:
        topic = self.topic
        try:
            await connection.ack_with_receipt(1, [position], cumulative=topic.cumulative)
        except FAILURES:
            return  # not answered, so nothing is promised
        if topic.cumulative:
            done = max(topic.acked_up_to_with_receipt, position)
            topic.acked_up_to_with_receipt = done
        else:
            topic.acked_with_receipt.add(position)


class Clients:
    """All clients of one set of topics."""

    def __init__(self, args: dict[str, Any]) -> None:
        self._random = random.Random(args["seed"])
        self._hosts = hosts = Hosts(args["hosts"], args["port"], self._random)
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, args["log"])
        # Each has connections of its own: one may stay with a broker that the other has left.
        self._clients = [
            pulsar.Client(hosts.url, logger=logger, operation_timeout_seconds=30)
            for _ in range(PRODUCERS)
        ]
        self._client = self._clients[0]
        self._topics = [
            Topic(f"{args['prefix']}-{kind}-{number}", kind, args["deduplicated"])
            for number in range(args["topics"])
            for kind in KINDS
        ]
        self._producers: list[Producer] = []
        self._consumers: list[Any] = []
        self._sending = threading.Event()
        self._ended = False
        for topic in self._topics:
            self._client.subscribe(topic.name, "keeper").close()
            self._subscribe(topic)
            for number in range(PRODUCERS):
                self._produce(topic, number)
        self._loop = asyncio.new_event_loop()
        self._auditors: list[Auditor | Visitor] = [
            Auditor(topic, hosts, self._random)
            for topic in self._topics
            if topic.has_audit
            for _ in range(len(hosts.hosts) if topic.kind == "shared" else 1)
        ]
        if len(hosts.hosts) > 1:
            self._auditors += [Visitor(topic, hosts) for topic in self._topics]
        self._audits: list[Any] = []
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        threading.Thread(target=self._send, daemon=True).start()

    def _subscribe(self, topic: Topic) -> None:
        kind, count, _, acknowledged = _TYPES[topic.kind]

        def listener(consumer: Any, message: Any) -> None:
            topic.subscription.take(message.data(), _place(message.message_id()))
            if self._random.random() < acknowledged:
                # Without a connection it is not acknowledged, and comes again.
                with contextlib.suppress(pulsar.PulsarException):
                    consumer.acknowledge(message)

        for number in range(count):
            self._consumers.append(
                self._client.subscribe(
                    topic.name,
                    topic.kind,
                    kind,
                    message_listener=listener,
                    consumer_name=f"{topic.kind}-{number}",
                    initial_position=pulsar.InitialPosition.Earliest,
                )
            )

    def _produce(self, topic: Topic, number: int) -> None:
        name = f"{topic.name.rpartition('/')[2]}-p{number}"
        by_key = topic.kind == "keys"
        batching = pulsar.BatchingType.KeyBased if by_key else pulsar.BatchingType.Default
        handle = self._clients[number].create_producer(
            topic.name,
            producer_name=name,
            send_timeout_millis=0,
            batching_enabled=number == 1,
            batching_type=batching,
            batching_max_publish_delay_ms=5,
        )
        self._producers.append(Producer(name, topic, handle, ReceiptClock(time.monotonic())))

    def _send(self) -> None:
        while not self._ended:
            self._sending.wait()
            for producer in self._producers:
                if producer.sent - producer.answered < WINDOW:
                    for _ in range(self._random.choice((0, 1, 1, 2, 4))):
                        producer.send(self._size())
            time.sleep(TICK_S)

    def _size(self) -> int:
        dice = self._random.random()
        return self._random.randint(20, 900 if dice < 0.99 else 60_000)

    # --- requests -----------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of the topics."""
        return [topic.name for topic in self._topics]

    def settle(self, args: dict[str, Any]) -> Any:
        """Wait until each producer has a receipt of after a time; return those that have none."""
        deadline = time.monotonic() + args["limit_s"]
        while True:
            late = [p.name for p in self._producers if p.clock.last_s <= args["after_s"]]
            if not late or time.monotonic() > deadline:
                return late
            time.sleep(0.02)

    def pause(self, args: dict[str, Any]) -> Any:
        """Send nothing more, and wait for all receipts; return what is wrong, and the gaps."""
        self._sending.clear()
        deadline = time.monotonic() + args["limit_s"]
        while any(p.sent > p.answered for p in self._producers) and time.monotonic() < deadline:
            time.sleep(0.01)
        problems = [
            f"{p.name}: {p.sent - p.answered} messages have no receipt"
            for p in self._producers
            if p.sent > p.answered
        ]
        for producer in self._producers:
            problems += producer.failures[:3]
            producer.failures.clear()
        self._stop_audits()
        for topic in self._topics:
            problems += topic.record.problems
            topic.record.problems = []
        gaps = [(p.name, *gap) for p in self._producers for gap in p.clock.gaps]
        silences = [
            (topic.name, [clock.longest_s(args["since_s"]) for clock in topic.clocks])
            for topic in self._topics
        ]
        return {"problems": problems, "gaps": gaps, "silences": silences}

    def _stop_audits(self) -> None:
        async def stop(tasks: list[Any]) -> None:
            # asyncio.wait_for of Python 3.11 and before may swallow a cancellation.
            while tasks:
                for task in tasks:
                    task.cancel()
                _, pending = await asyncio.wait(tasks, timeout=2.0)
                tasks = list(pending)

        asyncio.run_coroutine_threadsafe(stop(self._audits), self._loop).result(30)
        self._audits = []

    def resume(self, _: dict[str, Any]) -> Any:
        """Send again."""

        async def start() -> list[Any]:
            return [asyncio.ensure_future(each.run()) for each in self._auditors]

        self._audits = asyncio.run_coroutine_threadsafe(start(), self._loop).result(30)
        clocks = [producer.clock for producer in self._producers]
        clocks += [clock for topic in self._topics for clock in topic.clocks]
        for clock in clocks:
            clock.restart(time.monotonic())
        self._sending.set()

    def verify(self, args: dict[str, Any]) -> Any:
        """Read everything back and check every promise."""
        problems, promised, found = [], 0, 0
        for topic in self._topics:
            read = self._read(topic.name)
            problems += topic.record.check_read(read)
            promised += len(topic.record.receipts)
            found += len(read)
            if topic.has_audit and topic.audit.subscribed:
                done = self._audit(topic, read, args["acks_are_durable"])
                problems += asyncio.run_coroutine_threadsafe(done, self._loop).result(120)
        problems += self._check_deliveries()
        acks = sum(len(topic.audit.acked_with_receipt) for topic in self._topics)
        return {"problems": problems, "promised": promised, "found": found, "acks": acks}

    def _read(self, name: str) -> list[tuple[Place, bytes]]:
        reader = self._client.create_reader(name, pulsar.MessageId.earliest)
        read = []
        try:
            while reader.has_message_available():
                message = reader.read_next(int(IDLE_S * 1000))
                read.append((_place(message.message_id()), message.data()))
        finally:
            reader.close()
        return read

    async def _audit(
        self, topic: Topic, read: list[tuple[Place, bytes]], acks_are_durable: bool
    ) -> list[str]:
        entries = sorted({place[:2] for place, _ in read})
        topic.audit.producers[0].received = dict(enumerate(entries))
        for tries_left in reversed(range(TRIES)):
            check = TopicCheck(topic.audit)
            check.positions = set(entries)
            try:
                connection = await self._hosts.connect(topic.name)
                try:
                    await drain(connection, topic.audit, check, Verdict())
                finally:
                    connection.close()
                break
            except FAILURES:
                if not tries_left:
                    raise
                await asyncio.sleep(1.0)
        check.check_subscription(acks_are_durable)
        return check.problems

    def _check_deliveries(self) -> list[str]:
        deadline = time.monotonic() + IDLE_S
        problems = []
        for topic in self._topics:
            promised = set(topic.record.receipts)
            while (missing := topic.subscription.missing(promised)) and (
                time.monotonic() < deadline
            ):
                time.sleep(0.02)
            if missing:
                problems.append(
                    f"{topic.subscription.name}: {len(missing)} messages were not delivered,"
                    f" first {missing[0]} at {topic.record.receipts[missing[0]]}"
                )
            problems += topic.subscription.problems[:5]
            topic.subscription.problems.clear()
        return problems

    def close(self, _: dict[str, Any]) -> Any:
        """End all clients of these topics."""
        self._ended = True
        self._sending.set()
        self._stop_audits()
        self._loop.call_soon_threadsafe(self._loop.stop)
        for each in self._clients:
            each.shutdown()


def main() -> None:
    """Answer requests until the input ends."""
    clients: Clients | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any] = {"id": asked["id"]}
        try:
            if asked["op"] == "open":
                clients = Clients(asked["args"])
                answer["ok"] = clients.names()
            else:
                answer["ok"] = getattr(clients, asked["op"])(asked["args"])
        except Exception as error:
            answer["error"] = {"result": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
