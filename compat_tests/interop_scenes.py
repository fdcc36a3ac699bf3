"""What two kinds of brokers write in turns: each scene has its topics and knows their state.

A scene's `write` adds messages and acknowledgements through one broker, its `check` compares what
another broker has with all that was written before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import pulsar
from harness.brokers import Broker
from harness.raw import RawConnection
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String

from compat_tests import holes, policy_cases
from compat_tests import test_compaction as compaction
from compat_tests.messages import payload, publish, receive

SHARED = pulsar.ConsumerType.Shared
EARLIEST = pulsar.InitialPosition.Earliest
RECEIVE_MS = 20_000
QUIET_MS = 300
PATIENCE_S = 5.0
HOUR_MS = 3_600_000
DUE_MS = 5000
MIB = 1 << 20
FEW = 5000
MANY = 50_000

Message = tuple[str, bytes]


class Turn(NamedTuple):
    """A broker's turn, and a client of that broker."""

    number: int
    broker: Broker
    client: pulsar.Client


class Scene:
    """Topics below a namespace, as in public/default."""

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace = namespace
        self.topic = f"persistent://{namespace}/{name}"
        self.name = f"{namespace}/{name}"

    @property
    def path(self) -> str:
        return compaction.path(self.topic)

    def write(self, turn: Turn) -> None:
        raise NotImplementedError

    def check(self, turn: Turn) -> None:
        raise NotImplementedError

    def backlog(self, turn: Turn, subscription: str = "s") -> dict[str, Any]:
        """Return the statistics of a subscription, with a precise backlog."""
        path = f"{self.path}/stats?getPreciseBacklog=true"
        code, stats = turn.broker.rest("GET", path)
        assert code == 200, stats
        found: dict[str, Any] = stats["subscriptions"][subscription]
        return found


def text_of(message_id: pulsar.MessageId) -> str:
    return str(message_id)


def read_all(turn: Turn, topic: str, count: int) -> list[Any]:
    """Read a topic's messages, which are `count`."""
    reader = turn.client.create_reader(
        topic, pulsar.MessageId.earliest, receiver_queue_size=max(1, min(count, 1000))
    )
    found = [reader.read_next(RECEIVE_MS) for _ in range(count)]
    assert not reader.has_message_available()
    reader.close()
    return found


def receive_rest(consumer: Any, count: int) -> list[Any]:
    """Receive `count` messages, and none after them."""
    found = []
    while True:
        try:
            found.append(consumer.receive(RECEIVE_MS if len(found) < count else QUIET_MS))
        except pulsar.Timeout:
            return found


class Batches(Scene):
    """Messages in batches and alone; a subscription that acknowledges cumulatively."""

    BATCHED, ALONE, ACKNOWLEDGED = 100, 20, 45

    def __init__(self, namespace: str, name: str) -> None:
        super().__init__(namespace, name)
        self.sent: list[Message] = []
        self.acknowledged = 0

    def write(self, turn: Turn) -> None:
        consumer = turn.client.subscribe(self.topic, "s", initial_position=EARLIEST)
        for count, options in (
            (self.BATCHED, {"batching_enabled": True, "batching_max_messages": 10}),
            (self.ALONE, {"batching_enabled": False}),
        ):
            codec = list(pulsar.CompressionType.__members__.values())[turn.number % 4]
            producer = turn.client.create_producer(self.topic, compression_type=codec, **options)
            first = len(self.sent)
            bodies = [payload(number) for number in range(first, first + count)]
            ids = publish(producer, bodies)
            self.sent += zip(map(text_of, ids), bodies, strict=True)
            producer.close()
        messages = [consumer.receive(RECEIVE_MS) for _ in range(self.ACKNOWLEDGED)]
        consumer.acknowledge_cumulative(messages[-1])
        last = text_of(messages[-1].message_id())
        self.acknowledged = [at for at, _ in self.sent].index(last) + 1
        consumer.close()

    def check(self, turn: Turn) -> None:
        found = read_all(turn, self.topic, len(self.sent))
        assert [(text_of(each.message_id()), each.data()) for each in found] == self.sent
        consumer = turn.client.subscribe(self.topic, "s", initial_position=EARLIEST)
        # Without acknowledgements of batch indexes, a batch is redelivered as a whole.
        rest = receive_rest(consumer, len(self.sent) - self.acknowledged)
        consumer.close()
        begin = len(self.sent) - len(rest)
        assert self.acknowledged - 10 < begin <= self.acknowledged, (begin, self.acknowledged)
        assert [each.data() for each in rest] == [body for _, body in self.sent[begin:]]


class Chunks(Scene):
    """Messages above the largest size."""

    def __init__(self, namespace: str, name: str) -> None:
        super().__init__(namespace, name)
        self.sent: list[Message] = []

    def write(self, turn: Turn) -> None:
        producer = turn.client.create_producer(
            self.topic, chunking_enabled=True, batching_enabled=False
        )
        for size in (5 * MIB + 7 * turn.number, 5):
            body = payload(len(self.sent), size)
            self.sent.append((text_of(producer.send(body)), body))
        producer.close()

    def check(self, turn: Turn) -> None:
        found = read_all(turn, self.topic, len(self.sent))
        assert [each.data() for each in found] == [body for _, body in self.sent]
        assert [text_of(each.message_id()) for each in found] == [at for at, _ in self.sent]


class Schemas(Scene):
    """A schema that has one field more in each turn."""

    def __init__(self, namespace: str, name: str, kind: type) -> None:
        super().__init__(namespace, name)
        self.kind = kind
        self.sent: list[tuple[str, bytes, int]] = []
        self.schemas: list[dict[str, Any]] = []

    def _listed(self, turn: Turn) -> list[dict[str, Any]]:
        topic = self.topic.removeprefix("persistent://")
        code, answer = turn.broker.rest("GET", f"/admin/v2/schemas/{topic}/schemas")
        assert code == 200, answer
        found: list[dict[str, Any]] = answer["getSchemaResponses"]
        return found

    def _record(self, fields: int) -> type:
        names = {f"f{number}": String(required_default=True) for number in range(fields)}
        return type("Event", (Record,), {"number": Integer(), **names})

    def write(self, turn: Turn) -> None:
        # The previous turn's schema is found, and the next one is added.
        for fields in dict.fromkeys((max(turn.number - 1, 0), turn.number)):
            record = self._record(fields)
            producer = turn.client.create_producer(self.topic, schema=self.kind(record))
            number = len(self.sent)
            at = producer.send(record(number=number))
            producer.close()
            reader = turn.client.create_reader(self.topic, at, start_message_id_inclusive=True)
            message = reader.read_next(RECEIVE_MS)
            reader.close()
            self.sent.append((text_of(at), message.data(), _version(message)))
        listed = self._listed(turn)
        assert listed[: len(self.schemas)] == self.schemas
        self.schemas = listed

    def check(self, turn: Turn) -> None:
        assert self._listed(turn) == self.schemas
        found = read_all(turn, self.topic, len(self.sent))
        assert self.sent == [
            (text_of(each.message_id()), each.data(), _version(each)) for each in found
        ]
        kind = self.kind(self._record(0))
        reader = turn.client.create_reader(self.topic, pulsar.MessageId.earliest, schema=kind)
        values = [reader.read_next(RECEIVE_MS).value().number for _ in self.sent]
        reader.close()
        assert values == list(range(len(self.sent)))


def _version(message: Any) -> int:
    return int.from_bytes(message.schema_version().encode("latin-1"), "big")


class Compacted(Scene):
    """A compacted topic, with messages after the compaction."""

    def __init__(self, namespace: str, name: str) -> None:
        super().__init__(namespace, name)
        self.view: dict[str, tuple[str, bytes]] = {}
        self.after: list[tuple[str, str, bytes]] = []

    def write(self, turn: Turn) -> None:
        for each in self.after:
            self._put(*each)
        for batched in (False, True):
            options = {"batching_enabled": batched, "batching_max_messages": 10}
            producer = turn.client.create_producer(self.topic, **options)
            for number in range(10):
                key = f"k{number * (turn.number + 1) % 13}"
                value = b"" if number == 7 else b"%d-%d" % (turn.number, number)
                self._put(key, text_of(producer.send(value, partition_key=key)), value)
            producer.close()
        compaction.compact(turn.broker, self.topic)
        producer = turn.client.create_producer(self.topic, batching_enabled=False)
        self.after = []
        for key in ("k1", "new"):
            value = b"after %d" % turn.number
            at = text_of(producer.send(value, partition_key=key))
            self.after.append((key, at, value))
        producer.close()

    def _put(self, key: str, at: str, value: bytes) -> None:
        self.view.pop(key, None)
        if value:
            self.view[key] = at, value

    def check(self, turn: Turn) -> None:
        reader = turn.client.create_reader(
            self.topic, pulsar.MessageId.earliest, is_read_compacted=True
        )
        found = []
        while reader.has_message_available():
            message = reader.read_next(RECEIVE_MS)
            found.append((message.partition_key(), text_of(message.message_id()), message.data()))
        reader.close()
        compacted = [(key, *each) for key, each in self.view.items()]
        assert [each for each in found if each[0]] == compacted + self.after


class Delayed(Scene):
    """Messages for later, of which some are due in the next turn and others never."""

    def __init__(self, namespace: str, name: str) -> None:
        super().__init__(namespace, name)
        self.due: list[bytes] = []
        self.never = 0

    def write(self, turn: Turn) -> None:
        consumer = turn.client.subscribe(self.topic, "s", consumer_type=SHARED)
        producer = turn.client.create_producer(self.topic)
        now = int(time.time() * 1000)
        for number in range(10):
            producer.send_async(b"never", None, deliver_at=now + HOUR_MS + number)
            body = b"%d-%d" % (turn.number, number)
            producer.send_async(body, None, deliver_at=now + DUE_MS)
            self.due.append(body)
            producer.send_async(b"now", None)
        producer.flush()
        self.never += 10
        assert receive(consumer, 10) == [b"now"] * 10
        consumer.close()

    def check(self, turn: Turn) -> None:
        consumer = turn.client.subscribe(self.topic, "s", consumer_type=SHARED)
        found = receive_rest(consumer, len(self.due))
        for each in found:
            consumer.acknowledge(each)
        assert sorted(each.data() for each in found) == sorted(self.due)
        self.due = []
        deadline = time.monotonic() + PATIENCE_S  # the client acknowledges several together
        found = {}
        while found != {"msgBacklog": self.never, "msgDelayed": self.never}:
            assert time.monotonic() < deadline, (found, self.never)
            stats = self.backlog(turn)
            found = {name: stats[name] for name in ("msgBacklog", "msgDelayed")}
        consumer.close()


class Holes(Scene):
    """A subscription in which every other message is acknowledged."""

    def __init__(self, namespace: str, name: str, count: int) -> None:
        super().__init__(namespace, name)
        self.count = count
        self.left: list[holes.Position] = []

    def write(self, turn: Turn) -> None:
        with RawConnection(turn.broker.port) as raw:
            holes.subscribe(raw, self.topic, "s")
        count = 2 * self.count if not self.left else min(self.count // 10, 5000)
        with RawConnection(turn.broker.port) as raw:
            sent = holes.positions_of(holes.publish(raw, self.topic, count))
        # Another connection: one that answers no ping for a minute is closed.
        with RawConnection(turn.broker.port) as raw:
            holes.subscribe(raw, self.topic, "s")
            # Of the older messages, few are acknowledged, so that the holes remain.
            done = sent[1::2] + self.left[5:200:10]
            holes.acknowledge(raw, done[:-1])
            holes.acknowledge_and_wait(raw, done[-1])
        self.left = sorted({*self.left, *sent} - {*done})

    def check(self, turn: Turn) -> None:
        with RawConnection(turn.broker.port) as raw:
            holes.subscribe(raw, self.topic, "s")
            assert self.backlog(turn)["msgBacklog"] == len(self.left)
            if turn.number > 2 and len(self.left) > FEW:
                return  # it takes seconds; the smaller topics are read in each turn
            expected, permits = self.left, 1 << 30
            if len(expected) > MANY:
                # All of them take minutes. The backlog has their number.
                expected, permits = expected[:MANY], MANY
            found = holes.deliver(
                raw, len(expected), QUIET_MS / 1000, acknowledges=False, permits=permits
            )
        too_many, missing = found - {*expected}, {*expected} - found
        assert (len(too_many), len(missing)) == (0, 0), (min(too_many | missing), len(self.left))


class BatchIndexes(Scene):
    """Single messages of batches are acknowledged, and all of every third batch."""

    def __init__(self, namespace: str, name: str) -> None:
        super().__init__(namespace, name)
        self.left: dict[str, bytes] = {}

    def _consumer(self, turn: Turn) -> Any:
        return turn.client.subscribe(
            self.topic, "s", consumer_type=SHARED, batch_index_ack_enabled=True
        )

    def write(self, turn: Turn) -> None:
        consumer = self._consumer(turn)
        producer = turn.client.create_producer(
            self.topic, batching_max_messages=70, batching_max_publish_delay_ms=1000
        )
        bodies = [b"%d-%d" % (turn.number, number) for number in range(280)]
        ids = publish(producer, bodies)
        self.left |= zip(map(text_of, ids), bodies, strict=True)
        for number, message in enumerate(receive_rest(consumer, len(self.left))):
            if number % 7 < 3 or message.message_id().entry_id() % 3 == 1:
                consumer.acknowledge(message)
                del self.left[text_of(message.message_id())]
        consumer.close()

    def check(self, turn: Turn) -> None:
        consumer = self._consumer(turn)
        found = receive_rest(consumer, len(self.left))
        consumer.close()
        assert {text_of(each.message_id()): each.data() for each in found} == self.left
        assert len(found) == len(self.left)


class Properties(Scene):
    """Properties of a topic and of a subscription, and a partitioned topic that grows."""

    def __init__(self, namespace: str, name: str) -> None:
        super().__init__(namespace, name)
        self.properties: dict[str, str] = {}
        self.topic_properties: dict[str, str] = {}
        self.partitions = 0
        self.sent: dict[str, bytes] = {}

    def write(self, turn: Turn) -> None:
        rest = turn.broker.rest
        grown = f"{self.path}-grown/partitions"
        if not self.partitions:
            assert rest("PUT", self.path, {})[0] == 204
            assert rest("PUT", f"{self.path}/subscription/s", {})[0] == 204
        self.partitions += 1
        method = "PUT" if self.partitions == 1 else "POST"
        assert rest(method, grown, self.partitions)[0] == 204
        self.properties = {f"turn-{turn.number}": "é", "last": str(turn.number)}
        assert rest("PUT", f"{self.path}/subscription/s/properties", self.properties)[0] == 204
        added = {f"turn-{turn.number}": "x"}
        self.topic_properties |= added
        assert rest("PUT", f"{self.path}/properties", added)[0] == 204
        producer = turn.client.create_producer(f"{self.topic}-grown", batching_enabled=False)
        for number in range(2 * self.partitions):
            body = b"%d-%d" % (turn.number, number)
            self.sent[text_of(producer.send(body))] = body
        producer.close()

    def check(self, turn: Turn) -> None:
        rest = turn.broker.rest
        found = rest("GET", f"{self.path}/subscription/s/properties")
        assert found == (200, self.properties)
        assert rest("GET", f"{self.path}/properties") == (200, self.topic_properties)
        assert rest("GET", f"{self.path}-grown/partitions")[1]["partitions"] == self.partitions
        reader = turn.client.create_reader(f"{self.topic}-grown", pulsar.MessageId.earliest)
        read = {}
        while reader.has_message_available():
            message = reader.read_next(RECEIVE_MS)
            read[text_of(message.message_id())] = message.data()
        reader.close()
        assert sorted(read.values()) == sorted(self.sent.values())


class Deduplicated(Scene):
    """A producer whose messages are stored once, whichever broker gets them again."""

    def __init__(self, namespace: str, name: str) -> None:
        super().__init__(namespace, name)
        self.sent: list[bytes] = []

    def write(self, turn: Turn) -> None:
        if not self.sent:
            assert turn.broker.rest("PUT", self.path, {})[0] == 204
            assert turn.broker.rest("POST", f"{self.path}/deduplicationEnabled", True)[0] == 204
        first = len(self.sent)
        if turn.number == 1:
            # Apache's broker does so by itself after a minute, and deletes the log before it.
            compaction.compact(turn.broker, f"persistent://{self.namespace}/__change_events")
        # The client's library sends what the broker has already.
        self._send(turn, range(max(0, first - 5), first + 30))
        self.sent += [b"%d" % number for number in range(first, first + 30)]

    def _send(self, turn: Turn, numbers: Iterable[int]) -> None:
        producer = turn.client.create_producer(
            self.topic, producer_name="p", initial_sequence_id=0, batching_enabled=False
        )
        for number in numbers:
            producer.send(b"%d" % number, sequence_id=number)
        producer.close()

    def check(self, turn: Turn) -> None:
        producer = turn.client.create_producer(self.topic, producer_name="p")
        last = producer.last_sequence_id()
        producer.close()
        assert last == len(self.sent) - 1, (last, len(self.sent))
        found = read_all(turn, self.topic, len(self.sent))
        assert [each.data() for each in found] == self.sent


class Policies(Scene):
    """All policies of a topic or of a namespace: set in three turns, removed in three.

    Each has a namespace of its own: Apache's broker obeys the limits of a namespace when it reads
    the policies of topics from it.
    """

    def __init__(self, namespace: str, *levels: str) -> None:
        super().__init__(namespace, "t")
        self.levels = levels
        self.set: dict[tuple[str, str], Any] = {}

    def _places(self, turn: Turn) -> list[policy_cases.Place]:
        namespace = f"/admin/v2/namespaces/{self.namespace}"
        return [
            policy_cases.Place(
                turn.broker, case, level, namespace if level == "namespace" else self.path
            )
            for case in policy_cases.CASES
            for level in case.levels
            if level in self.levels
        ]

    def write(self, turn: Turn) -> None:
        if not self.set:
            turn.broker.rest("PUT", f"/admin/v2/namespaces/{self.namespace}")
            assert turn.broker.rest("PUT", self.path, {})[0] == 204
        for number, place in enumerate(self._places(turn)):
            if number % 3 != turn.number % 3:
                continue
            if turn.number < 3:
                code, answer = place.set(place.case.value)
                self.set[place.case.name, place.level] = place.case.expected
            elif place.level in place.case.nothing_removes and place.case.removed_by is None:
                continue
            else:
                code, answer = place.remove()
                self.set[place.case.name, place.level] = None
            assert code == 204, (place.case.name, place.level, answer)
        for place in self._places(turn):
            if (place.case.name, place.level) in self.set:
                self.set[place.case.name, place.level] = _told(place)

    def check(self, turn: Turn) -> None:
        differences = [
            (place.case.name, place.level, told, self.set[place.case.name, place.level])
            for place in self._places(turn)
            if (place.case.name, place.level) in self.set
            and (told := _told(place)) != self.set[place.case.name, place.level]
        ]
        assert not differences, json.dumps(differences)


def _told(place: policy_cases.Place) -> Any:
    """Return the value of a policy, which brokers answer in different ways if it is not set."""
    code, text = place.broker.request("GET", place.path("GET"))
    assert code in (200, 204), (code, text)
    value = json.loads(text) if text else None
    if place.case.quota_type:
        value = value.get(place.case.quota_type)
    return None if value in ([], place.case.unset) else policy_cases.in_order(value)


def scenes(namespaces: list[str], name: str, hole_count: int) -> list[Scene]:
    """Return scenes for namespaces of different quorums; the last of them has the most."""
    found: list[Scene] = []
    *_, last = namespaces
    for namespace in namespaces:
        found += [
            Holes(namespace, f"{name}-holes", hole_count // (1 if namespace is last else 10)),
            Batches(namespace, f"{name}-batches"),
            Schemas(namespace, f"{name}-json", JsonSchema),
            Schemas(namespace, f"{name}-avro", AvroSchema),
            Compacted(namespace, f"{name}-compacted"),
            Delayed(namespace, f"{name}-delayed"),
            BatchIndexes(namespace, f"{name}-indexes"),
        ]
    return [
        *found,
        Policies(f"public/{name}-topic", *policy_cases.OF_TOPICS),
        Policies(f"public/{name}-namespace", policy_cases.NAMESPACE),
        Chunks(namespaces[-1], f"{name}-chunks"),
        Properties(namespaces[-1], f"{name}-properties"),
        Deduplicated(namespaces[-1], f"{name}-deduplicated"),
    ]
