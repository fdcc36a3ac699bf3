"""Apache Pulsar's Java client: one process serves all tests.

    java = Java()
    with java.client(broker.url) as client:
        consumer = client.subscribe(topic, "s", schema={"AVRO": "User"}, ackReceiptEnabled=True)
        producer = client.create_producer(topic, schema={"AVRO": "User"})
        producer.send({"name": "Ada", "age": 36}, key="k")
        assert consumer.receive().value == {"name": "Ada", "age": 36}

Options in Java's spelling are the fields of the client's configuration classes
(``ProducerConfigurationData`` and the others, ``loadConf`` of the builders); one that there is not
is an error.  Schemas are named as ``javaclient/Schemas.java`` tells, values are what
``javaclient/Values.java`` makes of them, with ``bytes`` for Java's.  A method of Java's interfaces
that has no arguments is called by its name: ``producer.call("getLastSequenceId")``.

What Java throws is a ``JavaError`` with the name of its class.  ``JAVACLIENT_LOG=debug`` makes the
client tell what it does on standard error.
"""

from __future__ import annotations

import base64
import concurrent.futures
import itertools
import os
import time
from typing import Any, TypeAlias

from harness.java_build import JavaProgram
from harness.line_program import Kept, Program

PROGRAM = JavaProgram("javaclient")
# Longer than any operation of a test may take; an answer that does not come is an error then.
_LIMIT_S = 120.0
_RECEIVE_MS = 20_000

Schema: TypeAlias = "str | dict[str, Any] | None"
Future: TypeAlias = "concurrent.futures.Future[Any]"


class JavaError(Exception):
    """What Java has thrown: the name of the class, without its packages, and the text."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name, self.text = name, text


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: _to_json(each) for name, each in value.items()}
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"base64"}:
            return base64.b64decode(value["base64"])
        return {name: _from_json(each) for name, each in value.items()}
    return [_from_json(each) for each in value] if isinstance(value, list) else value


class Java:
    """The process.  Clients are closed with it at the latest."""

    def __init__(self) -> None:
        level = os.environ.get("JAVACLIENT_LOG", "off")
        flag = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={level}"
        self.program = Program("the Java client", PROGRAM.command("Main", flag), JavaError)
        self.handles = itertools.count(1)

    def client(self, url: str, **options: Any) -> Client:
        """A client of a broker; options as in ``ClientConfigurationData``."""
        return Client(self, url, options)

    def keys(self) -> dict[str, str]:
        """A new pair of keys for encryption, ``public`` and ``private``."""
        keys: dict[str, str] = self.program.ask("new_keys", 0, {}, _LIMIT_S)
        return keys

    def kept_count(self) -> int:
        """The messages and ids that the process keeps because somebody here may name them."""
        count: int = self.program.ask("kept_count", 0, {}, _LIMIT_S)
        return count

    def close(self) -> None:
        self.program.end()


class _Object:
    """Something that Java has made."""

    def __init__(self, java: Java, handle: int) -> None:
        self._java, self._handle = java, handle

    def _start(self, op: str, arguments: dict[str, Any], make: int = 0) -> Future:
        future: Future = concurrent.futures.Future()

        def done(answer: Any, error: Exception | None) -> None:
            if error is None:
                future.set_result(_from_json(answer))
            else:
                future.set_exception(error)

        self._java.program.start(op, self._handle, _to_json(arguments), done, make)
        return future

    def _ask(self, op: str, **arguments: Any) -> Any:
        return self._start(op, arguments).result(_LIMIT_S)

    def call(self, method: str) -> Any:
        """What a method without arguments returns."""
        return self._ask(method)

    def close(self) -> None:
        self.call("close")


class MessageId:
    """Its parts; those of a batch or chunk that it does not have are -1 and None."""

    def __init__(self, java: Java, told: dict[str, Any]) -> None:
        self.kept = Kept(java.program, told["kept"])
        self.bytes: bytes = told["bytes"]
        self.ledger_id: int = told["ledger_id"]
        self.entry_id: int = told["entry_id"]
        self.partition: int = told["partition"]
        self.batch_index: int = told["batch_index"]
        self.first_chunk_entry_id: int | None = told["first_chunk_entry_id"]
        self.topic: str | None = told["topic"]

    @property
    def position(self) -> tuple[int, int]:
        return self.ledger_id, self.entry_id


class Message:
    """What ``Message`` of Java's API tells, under its names in Python's manner."""

    def __init__(self, java: Java, told: dict[str, Any]) -> None:
        self.kept = Kept(java.program, told["kept"])
        self.id = MessageId(java, told["id"])
        self._value, self._undecodable = told.get("value"), told.get("undecodable")
        self.data: bytes = told["data"]
        self.key: str | None = told["key"]
        self.key_bytes: bytes | None = told["key_bytes"]
        self.ordering_key: bytes | None = told["ordering_key"]
        self.properties: dict[str, str] = told["properties"]
        self.topic: str = told["topic"]
        self.producer_name: str = told["producer_name"]
        self.sequence_id: int = told["sequence_id"]
        self.publish_time: int = told["publish_time"]
        self.event_time: int = told["event_time"]
        self.redelivery_count: int = told["redelivery_count"]
        self.schema_id: bytes | None = told["schema_id"]
        self.broker_publish_time: int | None = told["broker_publish_time"]
        self.index: int | None = told["index"]
        self.is_encrypted: bool = told["encrypted"]
        version: bytes | None = told["schema_version"]
        self.schema_version = int.from_bytes(version, "big") if version else None

    @property
    def value(self) -> Any:
        """What the schema makes of the data; raises ``ValueError`` with Java's reason."""
        if self._undecodable is not None:
            raise ValueError(self._undecodable)
        return self._value


def _name_of(one: Message | MessageId | bytes | str) -> Any:
    """How an id is named in a request; ``"earliest"`` and ``"latest"`` are names themselves."""
    return one.kept.number if isinstance(one, (Message, MessageId)) else one


class Producer(_Object):
    """See Java's ``Producer``."""

    def __init__(self, java: Java, handle: int, name: str, schema: Schema) -> None:
        super().__init__(java, handle)
        self.name, self._schema = name, schema

    def send_later(
        self, value: Any, schema: Schema = None, sequence: int | None = None, **more: Any
    ) -> Future:
        """The message is on its way when this returns; the future has its ``MessageId``.

        schema: another one than the producer's, as ``newMessage(schema)`` takes it.  more: key,
        key_bytes, ordering_key, properties, event_time, deliver_at (milliseconds), transaction.
        """
        arguments = {"value": value, "schema": schema or self._schema or "BYTES", **more}
        if "transaction" in more:
            arguments["transaction"] = more["transaction"].handle
        if schema is not None:
            arguments["another_schema"] = True
        if sequence is not None:
            arguments["sequence_id"] = sequence
        return self._start("send", arguments)

    def send(self, value: Any, schema: Schema = None, **more: Any) -> MessageId:
        return MessageId(self._java, self.send_later(value, schema, **more).result(_LIMIT_S))

    def send_all(self, values: list[Any], **more: Any) -> list[MessageId]:
        """Without waiting in between, so that they get into batches."""
        sent = [self.send_later(value, **more) for value in values]
        self.call("flush")
        return [MessageId(self._java, each.result(_LIMIT_S)) for each in sent]

    def topic_epoch(self) -> int | None:
        """The epoch that the broker has given, None for Shared."""
        epoch: int | None = self._ask("topic_epoch")
        return epoch


class _Receiving(_Object):
    """What consumers and readers have in common."""

    def seek(self, place: Message | MessageId | bytes | str | int) -> None:
        """To an id, or to a publish time in milliseconds."""
        if isinstance(place, int):
            self._ask("seek", time_ms=place)
        else:
            self._ask("seek", id=_name_of(place))

    def last_ids(self) -> list[MessageId]:
        """``getLastMessageIds``."""
        return [MessageId(self._java, each) for each in self._ask("last_ids")]


class Consumer(_Receiving):
    """See Java's ``Consumer``."""

    def receive(self, timeout_ms: int = _RECEIVE_MS) -> Message:
        """Raises ``JavaError`` TimeoutException when nothing comes."""
        return Message(self._java, self._ask("receive", timeout_ms=timeout_ms))

    def receive_all(self, count: int) -> list[Message]:
        """Each of them acknowledged."""
        found = []
        for _ in range(count):
            found.append(self.receive())
            self.acknowledge(found[-1])
        return found

    def acknowledge(self, *messages: Message | MessageId, cumulative: bool = False) -> None:
        names = [_name_of(each) for each in messages]
        self._ask("acknowledge", messages=names, cumulative=cumulative)

    def acknowledge_within(
        self, transaction: Transaction, *messages: Message | MessageId, cumulative: bool = False
    ) -> None:
        """Acknowledge in a transaction; return when the broker has answered."""
        names = [_name_of(each) for each in messages]
        arguments = {"transaction": transaction.handle, "messages": names}
        self._ask("acknowledge_within", **arguments, cumulative=cumulative)

    def negative_acknowledge(self, message: Message) -> None:
        self._ask("negative_acknowledge", message=_name_of(message))

    def reconsume_later(self, message: Message, delay_ms: int) -> None:
        self._ask("reconsume_later", message=_name_of(message), delay_ms=delay_ms)


class Reader(_Receiving):
    """See Java's ``Reader``."""

    def read_next(self, timeout_ms: int = _RECEIVE_MS) -> Message:
        """Raises ``JavaError`` TimeoutException when nothing comes."""
        return Message(self._java, self._ask("read_next", timeout_ms=timeout_ms))

    def read_all(self) -> list[Message]:
        """While there is one (``hasMessageAvailable``)."""
        found = []
        while self.call("hasMessageAvailable"):
            found.append(self.read_next())
        return found


class TableView(_Object):
    """See Java's ``TableView``."""

    def entries(self) -> dict[str, Any]:
        entries: dict[str, Any] = self._ask("entries")
        return entries

    def await_entries(self, wanted: dict[str, Any], limit_s: float = 60.0) -> None:
        """Refreshes until these are the entries.

        The client calls a view fresh when it has got the last message, which may be a moment before
        that is in the view.
        """
        until = time.monotonic() + limit_s
        while (found := self._refreshed()) != wanted:
            assert time.monotonic() < until, found

    def _refreshed(self) -> dict[str, Any]:
        self.call("refresh")
        return self.entries()


class Transaction(_Object):
    """See Java's ``Transaction``; ``id`` has the most and the least significant bits."""

    def __init__(self, java: Java, handle: int, id: tuple[int, int]) -> None:
        super().__init__(java, handle)
        self.handle, self.id = handle, id

    def commit(self) -> None:
        self._ask("commit")

    def abort(self) -> None:
        self._ask("abort")

    def state(self) -> str:
        """Return the state that the client knows: OPEN, COMMITTED, TIME_OUT..."""
        state: str = self.call("getState")
        return state


class Client(_Object):
    """See Java's ``PulsarClient``."""

    def __init__(self, java: Java, url: str, options: dict[str, Any]) -> None:
        super().__init__(java, 0)
        handle = next(java.handles)
        conf = {"serviceUrl": url, "operationTimeoutMs": 60_000} | options
        self._start("new_client", {"conf": conf}, handle).result(_LIMIT_S)
        self._handle = handle

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_producer(
        self,
        topic: str,
        schema: Schema = None,
        *,
        encrypt: str | None = None,
        key_based_batches: bool = False,
        **options: Any,
    ) -> Future:
        """The future has a ``Producer`` when the broker has let it in.

        encrypt: a public key.
        """
        conf = {"topicName": topic} | options
        arguments = {"conf": conf, "schema": schema, "key_based_batches": key_based_batches}
        if encrypt is not None:
            arguments["encrypt"] = encrypt
        handle, made = next(self._java.handles), concurrent.futures.Future[Any]()

        def done(name: Future) -> None:
            if name.exception() is None:
                made.set_result(Producer(self._java, handle, name.result(), schema))
            else:
                made.set_exception(name.exception())

        self._start("create_producer", arguments, handle).add_done_callback(done)
        return made

    def create_producer(self, topic: str, schema: Schema = None, **options: Any) -> Producer:
        """See ``start_producer``."""
        made: Producer = self.start_producer(topic, schema, **options).result(_LIMIT_S)
        return made

    def subscribe(
        self,
        topic: str | list[str] | None,
        name: str,
        schema: Schema = None,
        *,
        pattern: str | None = None,
        dead_letters: dict[str, Any] | None = None,
        sticky_ranges: list[tuple[int, int]] | None = None,
        decrypt: str | None = None,
        **options: Any,
    ) -> Consumer:
        """From the earliest message unless told otherwise; None for a topic wants a pattern.

        dead_letters: max_redeliver_count and perhaps topic, retry_topic, initial_subscription.
        decrypt: a private key.
        """
        conf = {"subscriptionName": name, "subscriptionInitialPosition": "Earliest"} | options
        if topic is not None:
            conf["topicNames"] = [topic] if isinstance(topic, str) else topic
        more = {
            "pattern": pattern,
            "dead_letters": dead_letters,
            "sticky_ranges": sticky_ranges,
            "decrypt": decrypt,
        }
        given = {name: each for name, each in more.items() if each is not None}
        handle = next(self._java.handles)
        self._start("subscribe", {"conf": conf, "schema": schema, **given}, handle).result(_LIMIT_S)
        return Consumer(self._java, handle)

    def create_reader(
        self,
        topic: str,
        start: MessageId | Message | bytes | str = "earliest",
        schema: Schema = None,
        *,
        rollback_s: int | None = None,
        decrypt: str | None = None,
        **options: Any,
    ) -> Reader:
        """From behind an id, or from so many seconds ago."""
        conf = {"topicNames": [topic]} | options
        arguments = {"conf": conf, "schema": schema, "start": _name_of(start)}
        if rollback_s is not None:
            arguments["rollback_s"] = rollback_s
        if decrypt is not None:
            arguments["decrypt"] = decrypt
        handle = next(self._java.handles)
        self._start("create_reader", arguments, handle).result(_LIMIT_S)
        return Reader(self._java, handle)

    def create_table_view(self, topic: str, schema: Schema = None, **options: Any) -> TableView:
        """With what is in the topic by now."""
        arguments = {"conf": {"topicName": topic} | options, "schema": schema}
        handle = next(self._java.handles)
        self._start("create_table_view", arguments, handle).result(_LIMIT_S)
        return TableView(self._java, handle)

    def new_transaction(self, timeout_ms: int = 60_000) -> Transaction:
        """Start a transaction; the client needs ``enableTransaction``."""
        handle = next(self._java.handles)
        started = self._start("new_transaction", {"timeout_ms": timeout_ms}, handle)
        id = started.result(_LIMIT_S)
        return Transaction(self._java, handle, (id["most"], id["least"]))

    def end_transaction(self, id: tuple[int, int], commit: bool) -> None:
        """End the transaction of any client by its id."""
        self._ask("end_transaction", most=id[0], least=id[1], commit=commit)

    def partitions(self, topic: str) -> list[str]:
        """``getPartitionsForTopic``."""
        partitions: list[str] = self._ask("partitions", topic=topic)
        return partitions
