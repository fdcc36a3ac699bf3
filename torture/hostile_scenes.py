"""What hostile requests ask about: as much as is expensive, and can be made in a second or two.

Each function prepares one row of the tables. What is only read is made once for all rows that read
it; what a request destroys is made anew for each, and has the number of the request in its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import cache
from itertools import islice

from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

from pyxbroker.base.limits import TRANSACTION_NAMES_MAX
from torture.hostile_exchange import Answers, exchange

TOPIC = "persistent://public/default/hostile"
LOCAL = "ä" * 500
NAME = "%C3%A4" * 500
BASE = "/admin/v2/persistent/public/default"
LONG_TOPIC = f"persistent://public/default/{LOCAL}"
LONG_TOPIC_OF_TRANSACTIONS = f"{LONG_TOPIC}-txn"
PROPERTIES = (
    b'{"a":'
    + b'"'
    + b"x" * 1000
    + b'"'
    + b"".join(b',"k%d":"%s"' % (i, b"v" * 230) for i in range(999))
    + b"}"
)
# A page of the list of all holes of a subscription, and of the list of all subscriptions.
MESSAGES = 20_000
SUBSCRIPTIONS = 1_000
CLIENTS = 20  # producers, and consumers, each with all the metadata that it may have
TOPICS = 2_000  # of one namespace
PARTITIONS = 1_000
VAST = 100_000  # partitions, the most that a topic may have; they are closed
ENTRIES = 500  # of a list of clusters, ..., half of what there may be
OTHERS_MAX = 400  # besides, which requests make and destroy
VERSIONS = 5  # of a schema
TRANSACTIONS = 2_000  # open ones
PARTICIPANTS = 9_000  # of one of them
GRANTED_TOPICS = 400  # of one namespace
ROLES_GRANTED = 200  # with names of 1,000 bytes: 512 KiB are all there may be
TOGETHER = 500  # commands that are sent before their answers are read

CROWD = "public/hostile-crowd"
POLICIES = "public/hostile-policies"
SCHEMAS = "public/hostile-schemas"
GRANTS = "public/hostile-grants"
VAST_NAMESPACE = "public/hostile-vast"


def pairs(count: int, size: int) -> list[bytes]:
    """Properties with values of that many bytes."""
    return [wire.encode({1: f"k{i}", 2: "v" * size}) for i in range(count)]


@cache
def definition(more: bytes = b"") -> bytes:
    """An Avro record of as many fields as there may be, with more to say of each."""
    count = 2_800 if more else 3_900  # of 20,000 values of JSON
    fields = [b'{"name":"f%d","type":"int"%b}' % (n, more) for n in range(count)]
    return b'{"type":"record","name":"R","fields":[' + b",".join(fields) + b"]}"


def schema_body(first_field: str) -> bytes:
    """The schema, which differs from others in one field. Each may follow the others. With it are
    as many values as a body may have.
    """
    text = definition(b',"default":0').decode().replace('"f0"', f'"{first_field}"')
    whole = {"type": "AVRO", "schema": text, "properties": json.loads(PROPERTIES)}
    return json.dumps(whole).encode()[:-1] + b',"a":[' + b"[]," * 8_500 + b"1]}"


def http(method: str, path: str, body: bytes = b"", head: str = "") -> bytes:
    """The bytes of a request."""
    kind = "Content-Type: application/json\r\n" if body else ""
    length = f"Content-Length: {len(body)}\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{kind}{length}{head}\r\n".encode() + body


Prepare = Callable[["Stage", range], None]
"""Makes what a row asks about; it gets the numbers of its requests."""


def worded(path: str, n: int) -> str:
    """The path of a request: `{n}` is its number, `{k}` and `{m}` are numbers of what there may be
    only so many of: what requests make and destroy, and what is in a list.
    """
    words = {"{n}": n, "{k}": n % OTHERS_MAX, "{m}": n % ENTRIES}
    for word, value in words.items():
        path = path.replace(word, str(value))
    return path


class Stage:
    """One broker, and what was made in it for the rows so far."""

    def __init__(self, broker: Broker, share: float = 1.0) -> None:
        """`share`: of all messages, topics, ..., so much is made."""
        self.broker = broker
        self._share = share
        self._made: set[str] = set()
        # Of the topic that a request is about, by the request's number.
        self.ledger: Callable[[int], int] = lambda n: 0
        self.transaction: Callable[[int], int] = lambda n: 0  # likewise
        self.first_transaction = 0  # of those that stay open
        self.ledgers: dict[str, int] = {}  # of topics that many rows are about
        self._broker_id = ""
        self._open = ExitStack()
        self._next = 0

    def begin_again(self) -> None:
        """The broker was started again: nothing is known of what it has."""
        self._made.clear()
        self.ledgers.clear()
        self._broker_id = ""
        self._open.close()

    def numbers(self, count: int) -> range:
        """Of the requests of a row: no two rows have the same, so each finds its own."""
        first, self._next = self._next, self._next + count
        return range(first, self._next)

    @property
    def broker_id(self) -> str:
        """What the broker is called in paths."""
        if not self._broker_id:
            status, brokers = self.broker.rest("GET", "/admin/v2/brokers")
            assert status == 200, status
            self._broker_id = str(brokers[0])
        return self._broker_id

    def some(self, count: int) -> int:
        """So many of a large number as this stage has."""
        return max(1, round(count * self._share))

    def once(self, name: str, make: Callable[[], None]) -> None:
        """Makes what has that name unless it is there."""
        if name not in self._made:
            make()
            self._made.add(name)

    def ask(self, requests: Iterable[bytes], allowed: tuple[int, ...] = ()) -> Answers:
        """All of them, which must be answered by a success, or by one of these."""
        # One after the other, as many that change one record at once are refused.
        answers = exchange(self.broker.web_port, iter(requests), connections=1)
        wrong = {each for each in answers.statuses if each >= 400 and each not in allowed}
        assert answers.is_whole and not wrong, f"a scene was answered by {answers}"
        return answers

    def ask_one(self, method: str, path: str, body: bytes = b"") -> None:
        self.ask([http(method, path, body)])

    def namespace(self, name: str) -> None:
        """A namespace, unless it is there."""
        self.once(name, lambda: self._make_namespace(name))

    def _make_namespace(self, name: str) -> None:
        body = b'{"bundles":{"numBundles":4}}'
        self.ask([http("PUT", f"/admin/v2/namespaces/{name}", body)], allowed=(409,))

    def fill(
        self,
        topics: Iterable[str],
        *,
        messages: int = 1,
        subscriptions: Iterable[str] = (LOCAL,),
        holes: bool = False,
        keys: int = 0,
    ) -> list[int]:
        """Topics with messages that wait for each of their subscriptions; with holes, every second
        one is acknowledged by the first of them. Their ledgers, 0 without messages.
        """
        names = list(subscriptions)
        ledgers: list[int] = []
        with RawConnection(self.broker.port, timeout_s=60) as raw:
            some = iter(topics)
            while chunk := list(islice(some, 200)):
                ledgers += _fill(raw, chunk, messages, names, holes, keys)
        return ledgers

    def keep(self, raw: RawConnection) -> RawConnection:
        """A connection that stays open for the rows to come."""
        return self._open.enter_context(raw)


def _asked(raw: RawConnection, commands: Iterable[bytes], answer: int) -> list[wire.Frame]:
    """The answers to commands, of which some are on their way at a time."""
    found = []
    some = iter(commands)
    while chunk := list(islice(some, TOGETHER)):
        raw.write(b"".join(chunk))
        found += [raw.expect(answer, 60) for _ in chunk]
    return found


def _fill(
    raw: RawConnection,
    topics: list[str],
    messages: int,
    subscriptions: list[str],
    holes: bool,
    keys: int,
) -> list[int]:
    kind = wire.command
    number = raw.request_id
    _asked(
        raw, (kind(wire.LOOKUP, {1: each, 2: number()}) for each in topics), wire.LOOKUP_RESPONSE
    )
    _asked(
        raw,
        (kind(wire.PRODUCER, {1: each, 2: i, 3: number()}) for i, each in enumerate(topics)),
        wire.PRODUCER_SUCCESS,
    )
    wanted = [(each, name) for each in topics for name in subscriptions]
    _asked(
        raw,
        (
            kind(
                wire.SUBSCRIBE,
                {1: each, 2: name, 3: wire.SHARED, 4: i, 5: number(), 13: wire.EARLIEST},
            )
            for i, (each, name) in enumerate(wanted)
        ),
        wire.SUCCESS,
    )
    ledgers = []
    for i in range(len(topics)):
        texts = (_message(i, n, n % keys if keys else None) for n in range(messages))
        receipts = _asked(raw, texts, wire.SEND_RECEIPT)
        ledgers.append(wire.position(receipts[-1].data(3))[0] if receipts else 0)
        if holes:
            _acknowledge(raw, i * len(subscriptions), ledgers[-1], messages)
    # The next topics have the same ids.
    ids = [(wire.CLOSE_PRODUCER, i) for i in range(len(topics))]
    ids += [(wire.CLOSE_CONSUMER, i) for i in range(len(wanted))]
    _asked(raw, (kind(each, {1: i, 2: number()}) for each, i in ids), wire.SUCCESS)
    return ledgers


def _message(producer: int, n: int, key: int | None) -> bytes:
    fields = {} if key is None else {6: f"key-{key}"}
    return wire.send(producer, n, wire.metadata("fill", n, 1, fields=fields), b"x")


def _acknowledge(raw: RawConnection, consumer: int, ledger: int, messages: int) -> None:
    """Every second message."""
    entries = iter(range(0, messages, 2))
    while chunk := list(islice(entries, 5_000)):
        ids = b"".join(wire.encode({3: wire.message_id(ledger, each)}) for each in chunk)
        body = wire.encode({1: consumer, 2: 0, 8: raw.request_id()}) + ids
        base = wire.encode({1: wire.ACK, wire.ACK: body})
        raw.write((len(base) + 4).to_bytes(4, "big") + len(base).to_bytes(4, "big") + base)
        raw.expect(wire.ACK_RESPONSE, 60)


# --- topics ---------------------------------------------------------------------------------------


def nothing_asked(stage: Stage, numbers: range) -> None:
    """Asks about nothing that has to be made."""


def big_topic(stage: Stage, numbers: range) -> None:
    """A topic with many messages, holes, subscriptions, properties and clients."""
    stage.once("big topic", lambda: _make_big_topic(stage))
    ledger = stage.ledgers["big topic"]
    stage.ledger = lambda n: ledger


def _make_big_topic(stage: Stage) -> None:
    others = (f"s{i}" for i in range(stage.some(SUBSCRIPTIONS)))
    (stage.ledgers["big topic"],) = stage.fill(
        [LONG_TOPIC], messages=stage.some(MESSAGES), holes=True
    )
    stage.fill([LONG_TOPIC], messages=0, subscriptions=others)
    stage.ask_one("PUT", f"{BASE}/{NAME}/properties", PROPERTIES)
    stage.ask_one("PUT", f"{BASE}/{NAME}/subscription/{NAME}/properties", PROPERTIES)
    stage.ask(
        http("POST", f"{BASE}/{NAME}/permissions/r{i}", b'["produce","consume"]')
        for i in range(ROLES_GRANTED)
    )
    raw = stage.keep(RawConnection(stage.broker.port, timeout_s=60))
    producers = (
        wire.command(wire.PRODUCER, {1: LONG_TOPIC, 2: i, 3: raw.request_id(), 6: pairs(1000, 240)})
        for i in range(CLIENTS)
    )
    _asked(raw, producers, wire.PRODUCER_SUCCESS)
    consumers = (
        wire.command(
            wire.SUBSCRIBE,
            {1: LONG_TOPIC, 2: LOCAL, 3: 1, 4: i, 5: raw.request_id(), 6: f"c{i}"}
            | {10: pairs(1000, 240)},
        )
        for i in range(CLIENTS)
    )
    _asked(raw, consumers, wire.SUCCESS)


def reset_topic(stage: Stage, numbers: range) -> None:
    """A topic whose subscription is set back again and again."""
    stage.once("reset", lambda: _make_reset_topic(stage))
    ledger = stage.ledgers["reset"]
    stage.ledger = lambda n: ledger


def _make_reset_topic(stage: Stage) -> None:
    (stage.ledgers["reset"],) = stage.fill(
        [TOPIC + "-reset"], messages=stage.some(MESSAGES), holes=True
    )


def own_topics(stage: Stage, numbers: range) -> None:
    """A topic for each request; all together have as many messages as can be made."""
    each = max(10, stage.some(MESSAGES) // len(numbers))
    names = [
        LOCAL,
        *(f"s{i}" for i in range(max(1, stage.some(SUBSCRIPTIONS) // len(numbers)) - 1)),
    ]
    topics = (f"{TOPIC}-own-{n}" for n in numbers)
    made = stage.fill(topics, messages=each, subscriptions=names, holes=True, keys=each // 2)
    ledgers = dict(zip(numbers, made, strict=True))
    stage.ledger = lambda n: ledgers.get(n, 0)


def transactions(stage: Stage, numbers: range) -> None:
    """Open transactions, the first of which has a message, an acknowledgement and as many
    topics as it can have.
    """
    stage.once("transactions", lambda: _make_transactions(stage))
    ledger, first = stage.ledgers["transactions"], stage.first_transaction
    stage.ledger, stage.transaction = lambda n: ledger, lambda n: first


def _make_transactions(stage: Stage) -> None:
    raw = stage.keep(RawConnection(stage.broker.port, timeout_s=60))
    first, *_ = _begin(raw, stage.some(TRANSACTIONS))
    _add_topics(raw, first, (f"{TOPIC}-none-{i}" for i in range(stage.some(PARTICIPANTS))))
    stage.first_transaction = first
    # The answers to the topics are not read.
    raw = stage.keep(RawConnection(stage.broker.port, timeout_s=60))
    raw.producer(LONG_TOPIC_OF_TRANSACTIONS)
    raw.subscribe(LONG_TOPIC_OF_TRANSACTIONS, LOCAL, sub_type=wire.SHARED)
    raw.flow(2)
    for i, ids in enumerate(({}, {22: first, 23: 0})):
        metadata = wire.metadata("fill", i, 1, fields=ids)
        fields = {4: first, 5: 0} if ids else {}
        raw.write(wire.send(1, i, metadata, b"x", send_fields=fields))
        position = wire.position(raw.wait_for(wire.SEND_RECEIPT).data(3))
        if not ids:
            one = wire.message_id(*position)
            ack = {1: 1, 2: 0, 3: one, 6: first, 7: 0, 8: raw.request_id()}
            raw.command(wire.ACK, ack)
            raw.wait_for(wire.ACK_RESPONSE)
            stage.ledgers["transactions"] = position[0]


def own_transactions(stage: Stage, numbers: range) -> None:
    """A transaction for each request, with topics that do not exist."""
    with RawConnection(stage.broker.port, timeout_s=60) as raw:
        made = dict(zip(numbers, _begin(raw, len(numbers)), strict=True))
        for each in made.values():
            _add_topics(raw, each, (f"{TOPIC}-none-{i}" for i in range(10)))
    stage.transaction = lambda n: made.get(n, 0)


def _begin(raw: RawConnection, count: int) -> list[int]:
    """Transactions of the first coordinator, which do not time out."""
    number = raw.request_id
    wanted = (wire.command(wire.NEW_TXN, {1: number(), 2: 1 << 40}) for _ in range(count))
    return [each.number(2) for each in _asked(raw, wanted, wire.NEW_TXN + 1)]


def _add_topics(raw: RawConnection, transaction: int, topics: Iterable[str]) -> None:
    left = iter(topics)
    while some := list(islice(left, TRANSACTION_NAMES_MAX)):
        fields = {1: raw.request_id(), 2: transaction, 3: 0, 4: some}
        raw.command(wire.ADD_PARTITION_TO_TXN, fields)
    assert 4 not in raw.wait_for(wire.ADD_PARTITION_TO_TXN + 1).fields


def crowd(stage: Stage, numbers: range) -> None:
    """A namespace of many topics, each with a subscription that has a message to read."""
    stage.namespace(CROWD)
    stage.once("crowd", lambda: _fill_crowd(stage))


def crowd_anew(stage: Stage, numbers: range) -> None:
    """The same, after what a row has cleared."""
    stage.namespace(CROWD)
    _fill_crowd(stage)


def _fill_crowd(stage: Stage) -> None:
    stage.fill(f"persistent://{CROWD}/t{i}" for i in range(stage.some(TOPICS)))


def partitioned(stage: Stage, numbers: range) -> None:
    """A topic of many partitions that are loaded, each with a subscription."""
    stage.once("partitioned", lambda: _make_partitioned(stage))


def _make_partitioned(stage: Stage) -> None:
    stage.ask_one("PUT", f"{BASE}/hostile-parts/partitions", b"%d" % stage.some(PARTITIONS))
    stage.fill(f"{TOPIC}-parts-partition-{i}" for i in range(stage.some(PARTITIONS)))


def vast(stage: Stage, numbers: range) -> None:
    """A topic of as many partitions as there may be, which nobody has used."""
    stage.once("vast", lambda: _make_vast(stage))


def _make_vast(stage: Stage) -> None:
    stage.namespace(VAST_NAMESPACE)
    path = f"/admin/v2/persistent/{VAST_NAMESPACE}/vast/partitions"
    # Apache Pulsar would make them for minutes.
    count = VAST if stage.broker.kind == "pyxbroker" else PARTITIONS
    stage.ask_one("PUT", path, b"%d" % stage.some(count))


def own_partitioned(stage: Stage, numbers: range) -> None:
    """A topic of some partitions for each request."""
    stage.ask(http("PUT", f"{BASE}/parts-{n}/partitions", b"20") for n in numbers)


def published(stage: Stage, numbers: range) -> None:
    """Topics that messages are published to by REST."""
    stage.ask(http("PUT", f"{BASE}/parts-{n}/partitions", b"2") for n in numbers)


# --- namespaces and what is above them ------------------------------------------------------------


def own_namespaces(stage: Stage, numbers: range) -> None:
    stage.ask(http("PUT", f"/admin/v2/namespaces/public/hostile-{n}") for n in numbers)


def roles(stage: Stage, numbers: range) -> None:
    """A namespace in which many roles have rights, and some have them on a subscription."""
    stage.namespace(POLICIES)
    stage.once("roles", lambda: _grant(stage))


def _grant(stage: Stage) -> None:
    path = f"/admin/v2/namespaces/{POLICIES}/permissions"
    stage.ask(http("POST", f"{path}/{NAME}-{i}", b'["produce"]') for i in range(ROLES_GRANTED))
    names = json.dumps([f"r{i}" for i in range(1_000)]).encode()
    stage.ask_one("POST", f"{path}/subscription/s", names)


def topics_with_grants(stage: Stage, numbers: range) -> None:
    """A namespace with topics that roles may be granted."""
    stage.namespace(GRANTS)
    stage.once("grants", lambda: _fill_grants(stage))


def _fill_grants(stage: Stage) -> None:
    stage.fill(f"persistent://{GRANTS}/t{i}" for i in range(GRANTED_TOPICS))


def namespace_properties(stage: Stage, numbers: range) -> None:
    """A namespace with all the properties that it may have."""
    stage.namespace(POLICIES)
    stage.ask_one("PUT", f"/admin/v2/namespaces/{POLICIES}/properties", PROPERTIES)


def many(name: str, path: str, body: bytes = b"", method: str = "PUT") -> Prepare:
    """A list with many entries; `{k}` in the path is another one each. Without a name it is made
    anew for each row.
    """

    def make(stage: Stage) -> None:
        paths = (path.replace("{k}", f"many-{i}") for i in range(ENTRIES))
        stage.ask((http(method, each, body) for each in paths), allowed=(409,))

    return lambda stage, numbers: stage.once(name, lambda: make(stage)) if name else make(stage)


def one_each(path: str, body: bytes = b"", method: str = "PUT") -> Prepare:
    """What each request is about, which may be there already."""

    def prepare(stage: Stage, numbers: range) -> None:
        paths = dict.fromkeys(worded(path, n) for n in numbers)
        stage.ask((http(method, each, body) for each in paths), allowed=(409,))

    return prepare


def there(method: str, path: str, body: bytes = b"") -> Prepare:
    """What one request makes, made anew for each row."""

    def prepare(stage: Stage, numbers: range) -> None:
        stage.ask([http(method, path, body)], allowed=(409,))

    return prepare


def both(*steps: Prepare) -> Prepare:
    """One scene after the other."""

    def prepare(stage: Stage, numbers: range) -> None:
        for each in steps:
            each(stage, numbers)

    return prepare


# --- schemas --------------------------------------------------------------------------------------

SCHEMA_PATH = f"/admin/v2/schemas/{SCHEMAS}/{NAME}"


def schemas(stage: Stage, numbers: range) -> None:
    """A topic with many versions of a large schema, to all of which the next one is compared."""
    stage.namespace(SCHEMAS)
    stage.once("schemas", lambda: _make_schemas(stage))


def schemas_anew(stage: Stage, numbers: range) -> None:
    """The same, after it was deleted."""
    stage.namespace(SCHEMAS)
    _make_schemas(stage)


def _make_schemas(stage: Stage) -> None:
    path = f"/admin/v2/namespaces/{SCHEMAS}/schemaCompatibilityStrategy"
    stage.ask_one("PUT", path, b'"FULL_TRANSITIVE"')
    for i in range(VERSIONS):
        stage.ask_one("POST", SCHEMA_PATH + "/schema", schema_body(f"g{i}"))
