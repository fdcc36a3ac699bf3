"""The clients of `torture.bookkeeper`, in a process that runs in the clients' network namespace.

Requests and answers are lines of JSON, as `harness/line_program.py` sends them. The official Python
client sends and receives. It cannot ask for the answer of an acknowledgement, so the subscriptions
whose answers are checked belong to the client of `harness/client.py`.
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
TICK_S = 0.02
WINDOW = 150
IDLE_S = 15.0
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
        self.handle.send_async(body, self._done((self.name, number)), partition_key=key)

    def _done(self, message: Message) -> Callable[[Any, Any], None]:
        def done(result: Any, place: Any) -> None:
            self.answered += 1
            if result != pulsar.Result.Ok:
                self.failures.append(f"{message} failed: {result}")
                return
            self.clock.tick(time.monotonic())
            self.topic.record.receipts[message] = _place(place)

        return done


class Topic:
    """One topic with the records of its judge."""

    def __init__(self, name: str, kind: str, is_deduplicated: bool) -> None:
        self.name, self.kind = name, kind
        order = "key" if kind == "keys" else "producer"
        self.record = TopicRecord(name, is_deduplicated, order)
        self.subscription = SubscriptionRecord(f"{name} {kind}", _TYPES[kind][2])
        # Entries of a subscription whose acknowledgements are answered.
        self.audit = TopicModel(name, kind == "exclusive", [ProducerModel("entries", name)])

    @property
    def has_audit(self) -> bool:
        return self.kind != "keys"


def _place(of: Any) -> Place:
    return of.ledger_id(), of.entry_id(), max(0, of.batch_index())


class Auditor:
    """A consumer that reconnects, and that asks for the answers of its acknowledgements."""

    def __init__(self, topic: Topic, host: str, port: int, chance: random.Random) -> None:
        self.topic = topic.audit
        self._host, self._port = host, port
        self._random = chance
        self._acks: set[asyncio.Task[None]] = set()
        self.problems: list[str] = []

    async def run(self) -> None:
        """Consume until the task is cancelled."""
        while True:
            with contextlib.suppress(OSError, Refused, TimeoutError, asyncio.TimeoutError):
                await self._consume()
            await asyncio.sleep(0.1)

    async def subscribe(self, connection: Connection) -> None:
        kind = wire.EXCLUSIVE if self.topic.cumulative else wire.SHARED
        fields = {3: kind, 13: wire.EARLIEST}
        await connection.subscribe(self.topic.name, 1, "audit", fields=fields)
        self.topic.subscribed = True

    async def _consume(self) -> None:
        connection = await asyncio.wait_for(Connection.open(self._port, self._host), 10)
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
        except (OSError, Refused, TimeoutError, asyncio.TimeoutError):
            return  # not answered, so nothing is promised
        if topic.cumulative:
            done = max(topic.acked_up_to_with_receipt, position)
            topic.acked_up_to_with_receipt = done
        else:
            topic.acked_with_receipt.add(position)


class Clients:
    """All clients of one set of topics."""

    def __init__(self, args: dict[str, Any]) -> None:
        self._host, self._port = args["host"], args["port"]
        self._random = random.Random(args["seed"])
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, args["log"])
        url = f"pulsar://{self._host}:{self._port}"
        self._client = pulsar.Client(url, logger=logger, operation_timeout_seconds=30)
        self._topics = [
            Topic(f"{args['prefix']}-{kind}", kind, args["deduplicated"]) for kind in KINDS
        ]
        self._producers: list[Producer] = []
        self._consumers: list[Any] = []
        self._sending = threading.Event()
        self._ended = False
        for topic in self._topics:
            self._client.subscribe(topic.name, "keeper").close()
            self._subscribe(topic)
            for number in range(2):
                self._produce(topic, number)
        self._loop = asyncio.new_event_loop()
        self._auditors: list[Auditor] = [
            Auditor(topic, self._host, self._port, self._random)
            for topic in self._topics
            if topic.has_audit
        ]
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
        handle = self._client.create_producer(
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
        gaps = [(p.name, *gap) for p in self._producers for gap in p.clock.gaps]
        return {"problems": problems, "gaps": gaps}

    def _stop_audits(self) -> None:
        async def stop(tasks: list[Any]) -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(self._audits), self._loop).result(30)
        self._audits = []

    def resume(self, _: dict[str, Any]) -> Any:
        """Send again."""

        async def start() -> list[Any]:
            return [asyncio.ensure_future(each.run()) for each in self._auditors]

        self._audits = asyncio.run_coroutine_threadsafe(start(), self._loop).result(30)
        for producer in self._producers:
            producer.clock.gaps.clear()
            producer.clock.last_s = time.monotonic()
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
        check = TopicCheck(topic.audit)
        check.positions = set(entries)
        connection = await Connection.open(self._port, self._host)
        try:
            await drain(connection, topic.audit, check, Verdict())
        finally:
            connection.close()
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
        self._client.shutdown()


def main() -> None:
    """Answer requests until the input ends."""
    clients: Clients | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any] = {"id": asked["id"]}
        try:
            if asked["op"] == "open":
                clients, answer["ok"] = Clients(asked["args"]), None
            else:
                answer["ok"] = getattr(clients, asked["op"])(asked["args"])
        except Exception as error:
            answer["error"] = {"result": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
