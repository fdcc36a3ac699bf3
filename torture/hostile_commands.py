"""The most expensive input that the limits allow: for each command of the protocol.

Who adds a command adds what costs most of it; test_hostile.py has the table's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from harness import wire
from harness.raw import RawConnection

from torture.hostile_scenes import TOPIC, definition, pairs

MIB = 1 << 20
FRAME_BYTES_MAX = 5 * MIB
COMMAND_BYTES_MAX = MIB - 100  # of most
NAMES_MAX = 1_000  # of topics that one command adds to a transaction
FIELDS_MAX = 9_900  # of a command, with those of its request
HANDSHAKE_BYTES_MAX = 100 << 10
LONG = "persistent://public/default/" + "ä" * 512  # 1,024 bytes, in a name that needs escapes
PATTERN = "|".join(f"(a{i}.*)+" for i in range(6)) + "x"  # as long as one may be
MESSAGES = 2_000
KEY_SHARED = 3


class Scene:
    """A connection with a producer (1) and a Shared consumer (1) of a topic with messages."""

    def __init__(self, port: int, name: str) -> None:
        self.port = port
        self.topic = f"{TOPIC}-{name}"
        self.raw = RawConnection(port, timeout_s=60)
        self.ledger_id = 0
        self.transaction = 0

    def with_messages(self, count: int = MESSAGES) -> None:
        """Opens a producer and a consumer; the consumer gets all messages, and keeps them."""
        self.raw.producer(self.topic)
        self.raw.subscribe(self.topic, sub_type=wire.SHARED)
        for first in range(0, count, 500):
            for i in range(first, first + 500):
                self.raw.send(b"x", i)
            for _ in range(500):
                receipt = self.raw.expect(wire.SEND_RECEIPT)
        self.ledger_id = wire.position(receipt.data(3))[0]
        self.raw.flow(count)
        for _ in range(count):
            self.raw.expect(wire.MESSAGE)

    def with_transaction(self) -> None:
        """Begins a transaction at the first coordinator."""
        self.raw.write(wire.command(wire.NEW_TXN, {1: 1, 2: 1 << 40}))
        self.transaction = self.raw.expect(wire.NEW_TXN + 1).number(2)

    def with_transaction_of_many(self) -> None:
        """Begins one with as many topics as it can have."""
        self.with_transaction()
        for n in range(10):
            self.raw.write(_with_partitions(self.transaction, n))
            self.raw.expect(wire.ADD_PARTITION_TO_TXN + 1)


def nothing(scene: Scene) -> None:
    """Needs no topic."""


class Input(NamedTuple):
    """One kind of input. `make` gives the bytes of the n-th one."""

    about: str
    make: Callable[[Scene, int], bytes]
    prepare: Callable[[Scene], None] = nothing
    ends: bool = False  # its connection: it is the last input of one


def filled(one: bytes, size: int = FRAME_BYTES_MAX) -> bytes:
    """As much of it as goes into a frame."""
    return one * (size // len(one))


def with_fields(kind: int, head: dict, field: int, one: bytes, fields: int) -> bytes:
    """A command with a field repeated until it has as many as it may have (`fields` in each), and
    then one that nobody knows, until it is as long as it may be.
    """
    body = wire.encode(head) + wire.encode({field: one}) * (FIELDS_MAX // fields)
    body += wire.encode({1000: bytes(COMMAND_BYTES_MAX - len(body))})
    return framed(kind, body)


def framed(kind: int, body: bytes) -> bytes:
    base = wire.encode({1: kind, kind: body})
    return (len(base) + 4).to_bytes(4, "big") + len(base).to_bytes(4, "big") + base


def _connect(scene: Scene, n: int) -> bytes:
    return wire.command(wire.CONNECT, {1: "v" * 1024, 4: 21, 7: "p" * (60 << 10)})


def _unknown(kind: int) -> Callable[[Scene, int], bytes]:
    """Fields that nobody knows."""
    frame = with_fields(kind, {}, 1000, b"", 1)

    def make(scene: Scene, n: int) -> bytes:
        return frame

    return make


def _lookup(scene: Scene, n: int) -> bytes:
    return with_fields(wire.LOOKUP, {1: LONG, 2: n}, 8, wire.encode({1: "", 2: ""}), 3)


def _metadata(scene: Scene, n: int) -> bytes:
    return wire.command(
        wire.PARTITIONED_METADATA, {1: LONG + f"{n}", 2: n, 3: "p" * (60 << 10), 6: 0}
    )


def _producer(scene: Scene, n: int) -> bytes:
    fields = {1: scene.topic, 2: n + 10, 3: n, 6: pairs(1000, 240)}
    return wire.command(wire.PRODUCER, fields)


def _producer_with_schema(scene: Scene, n: int) -> bytes:
    body = wire.encode({1: scene.topic, 2: n + 10, 3: n})
    body += wire.encode({6: wire.encode({1: "", 2: ""})}) * (FIELDS_MAX // 3)
    schema = {1: "s", 3: bytes(FRAME_BYTES_MAX - len(body) - 4096), 4: 2}
    return framed(wire.PRODUCER, body + wire.encode({7: wire.encode(schema)}))


def _schema_of_many_fields(scene: Scene, n: int) -> bytes:
    # Another one each, of which none may follow the first.
    data = definition().replace(b'"f0"', b'"g%d"' % n)
    schema = wire.encode({1: "s", 3: data, 4: 4})
    return wire.command(wire.GET_OR_CREATE_SCHEMA, {1: n, 2: scene.topic, 3: schema})


def _with_schema(scene: Scene) -> None:
    scene.raw.producer(scene.topic)
    scene.raw.write(_schema_of_many_fields(scene, 0))
    scene.raw.expect(wire.GET_OR_CREATE_SCHEMA_RESPONSE)


@cache
def _sticky_ranges() -> bytes:
    # Once: it takes the attacker longer than the broker.
    ranges = [wire.encode({1: i, 2: i}) for i in reversed(range(65_536))]
    return wire.encode({1: 1, 3: ranges})


def _subscribe(scene: Scene, n: int) -> bytes:
    policy = _sticky_ranges()
    fields = {1: scene.topic, 2: f"s{n}", 3: KEY_SHARED, 4: n + 10, 5: n}
    return wire.command(wire.SUBSCRIBE, fields | {10: pairs(1000, 240), 17: policy})


def _redeliver(scene: Scene, n: int) -> bytes:
    ids = b"".join(
        wire.encode({2: wire.message_id(scene.ledger_id, i)}) for i in reversed(range(MESSAGES))
    )
    body = wire.encode({1: 1}) + filled(ids, FRAME_BYTES_MAX - 4096)
    return framed(wire.REDELIVER, body)


def _ack_of_many(scene: Scene, n: int) -> bytes:
    ids = b"".join(wire.encode({3: wire.message_id(scene.ledger_id, i)}) for i in range(MESSAGES))
    body = wire.encode({1: 1, 2: 0, 8: n}) + filled(ids, FRAME_BYTES_MAX - 4096)
    return framed(wire.ACK, body)


def _ack(scene: Scene, n: int) -> bytes:
    return framed(wire.ACK, wire.encode({1: 1, 2: 0}) + _with_ack_sets(scene))


def _with_ack_sets(scene: Scene) -> bytes:
    words = [(1 << 64) - 1] * 60
    ids = b"".join(
        wire.encode({3: wire.encode({1: scene.ledger_id, 2: i, 5: words})})
        for i in range(0, MESSAGES, 2)
    )
    return filled(ids, FRAME_BYTES_MAX - 4096)


def _ack_in_transaction(scene: Scene, n: int) -> bytes:
    # Each of another transaction. No message is acknowledged, so none of them conflict.
    return framed(wire.ACK, wire.encode({1: 1, 2: 0, 6: n, 7: 0, 8: n}) + _with_ack_sets(scene))


def _send(scene: Scene, n: int) -> bytes:
    meta = wire.metadata("raw", 10**6 + n, 1, fields={4: pairs(20_000, 200)})
    return wire.send(1, 10**6 + n, meta, b"x" * 400_000)


def _simple(kind: int, *, of: int = 1) -> Callable[[Scene, int], bytes]:
    """A command with the id of what it is about, and of its request."""

    def make(scene: Scene, n: int) -> bytes:
        return wire.command(kind, {1: of, 2: n})

    return make


def _with_partitions(transaction: int, n: int) -> bytes:
    names = (
        wire.encode({4: f"persistent://public/default/{n}-{each}"}) for each in range(NAMES_MAX)
    )
    body = wire.encode({1: n, 2: transaction, 3: 0}) + b"".join(names)
    return framed(wire.ADD_PARTITION_TO_TXN, body)


def _with_subscriptions(transaction: int, n: int) -> bytes:
    names = (
        wire.encode({4: wire.encode({1: f"persistent://public/default/{n}", 2: f"{each}"})})
        for each in range(NAMES_MAX)
    )
    body = wire.encode({1: n, 2: transaction, 3: 0}) + b"".join(names)
    return framed(wire.ADD_SUBSCRIPTION_TO_TXN, body)


COMMANDS = {
    "CONNECT": Input("a second one, 60 KiB", _connect, ends=True),
    "SEND": Input("4.8 MB, 20,000 properties", _send, Scene.with_messages),
    "ACK": Input("5 MiB of ids with ack sets", _ack, Scene.with_messages),
    "FLOW": Input(
        "all permits there are",
        lambda scene, n: wire.command(wire.FLOW, {1: 1, 2: (1 << 31) - 1}),
        Scene.with_messages,
    ),
    "LOOKUP": Input("3,300 empty properties, a long name, 1 MiB", _lookup),
    "PARTITIONED_METADATA": Input("another long name each, 60 KiB", _metadata),
    "PING": Input("9,900 unknown fields, 1 MiB", _unknown(wire.PING)),
    "PONG": Input("9,900 unknown fields, 1 MiB", _unknown(wire.PONG)),
    "AUTH_RESPONSE": Input("9,900 unknown fields, 1 MiB, unasked", _unknown(wire.AUTH_RESPONSE)),
    "PRODUCER": Input("1,000 properties, 256 KiB", _producer),
    "CLOSE_PRODUCER": Input("of none", _simple(wire.CLOSE_PRODUCER, of=9)),
    "SUBSCRIBE": Input("65,536 sticky ranges backwards, 1,000 properties", _subscribe),
    "UNSUBSCRIBE": Input("of none", _simple(wire.UNSUBSCRIBE, of=9)),
    "CLOSE_CONSUMER": Input("of none", _simple(wire.CLOSE_CONSUMER, of=9)),
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": Input(
        "5 MiB of ids, backwards", _redeliver, Scene.with_messages
    ),
    "CONSUMER_STATS": Input(
        "of a consumer",
        lambda scene, n: wire.command(wire.CONSUMER_STATS, {1: n, 4: 1}),
        Scene.with_messages,
    ),
    "SEEK": Input(
        "to the beginning, by time",
        lambda scene, n: wire.command(wire.SEEK, {1: 1, 2: n, 4: 1}),
        Scene.with_messages,
    ),
    "GET_LAST_MESSAGE_ID": Input(
        "of a consumer", _simple(wire.GET_LAST_MESSAGE_ID), Scene.with_messages
    ),
    "GET_TOPICS_OF_NAMESPACE": Input(
        "3,300 properties, 1 MiB",
        lambda scene, n: with_fields(
            wire.GET_TOPICS_OF_NAMESPACE,
            {1: n, 2: "public/default", 3: 2},
            6,
            wire.encode({1: "", 2: ""}),
            3,
        ),
    ),
    "WATCH_TOPIC_LIST": Input(
        "another one each, a pattern of 6 branches",
        lambda scene, n: wire.command(
            wire.WATCH_TOPIC_LIST, {1: n, 2: n, 3: "public/default", 4: PATTERN}
        ),
    ),
    "GET_SCHEMA": Input(
        "an Avro record of 3,900 fields",
        lambda scene, n: wire.command(wire.GET_SCHEMA, {1: n, 2: scene.topic}),
        _with_schema,
    ),
    "GET_OR_CREATE_SCHEMA": Input(
        "an Avro record of 3,900 fields", _schema_of_many_fields, Scene.with_messages
    ),
    "WATCH_TOPIC_LIST_CLOSE": Input("of none", _simple(wire.WATCH_TOPIC_LIST_CLOSE)),
    "TC_CLIENT_CONNECT_REQUEST": Input(
        "the only one", lambda scene, n: wire.command(wire.TC_CLIENT_CONNECT_REQUEST, {1: n, 2: 0})
    ),
    "NEW_TXN": Input(
        "one each, for years", lambda scene, n: wire.command(wire.NEW_TXN, {1: n, 2: 1 << 40})
    ),
    "ADD_PARTITION_TO_TXN": Input(
        "1,000 others",
        lambda scene, n: _with_partitions(scene.transaction, n),
        Scene.with_transaction,
    ),
    "ADD_SUBSCRIPTION_TO_TXN": Input(
        "1,000 others",
        lambda scene, n: _with_subscriptions(scene.transaction, n),
        Scene.with_transaction,
    ),
    "END_TXN": Input(
        "of 10,000 topics that do not exist",
        lambda scene, n: wire.command(wire.END_TXN, {1: n, 2: scene.transaction, 3: 0, 4: 0}),
        Scene.with_transaction_of_many,
    ),
    "END_TXN_ON_PARTITION": Input(
        "of a topic that does not exist, with a name of 2 KiB",
        lambda scene, n: wire.command(
            wire.END_TXN_ON_PARTITION, {1: n, 2: n, 3: 0, 4: LONG, 5: 0, 6: 0}
        ),
    ),
    "END_TXN_ON_SUBSCRIPTION": Input(
        "of a topic that does not exist, with a name of 2 KiB",
        lambda scene, n: wire.command(
            wire.END_TXN_ON_SUBSCRIPTION,
            {1: n, 2: n, 3: 0, 4: wire.encode({1: LONG, 2: "s"}), 5: 0, 6: 0},
        ),
    ),
}


# Further ones that cost much in another way.
MORE_COMMANDS = {
    "ACK of many": Input("400,000 ids", _ack_of_many, Scene.with_messages),
    "ACK in a transaction": Input(
        "5 MiB of ids with ack sets, another transaction each",
        _ack_in_transaction,
        Scene.with_messages,
    ),
    "PRODUCER with a schema": Input("3,300 properties, 5 MiB", _producer_with_schema),
    "LOOKUP of too many fields": Input(
        "2,600,000 unknown fields",
        lambda scene, n: framed(
            wire.LOOKUP,
            wire.encode({1: TOPIC, 2: n}) + filled(wire.encode({15: b""}), FRAME_BYTES_MAX - 4096),
        ),
    ),
    "REDELIVER_UNACKNOWLEDGED_MESSAGES of all": Input(
        "20,000 messages that wait",
        lambda scene, n: wire.command(wire.REDELIVER, {1: 1}),
        lambda scene: scene.with_messages(20_000),
    ),
}
