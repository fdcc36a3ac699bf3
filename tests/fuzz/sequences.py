#!/usr/bin/env python3
"""Random sequences of commands against real handlers, topics and storage, in one process.

    python tests/fuzz/sequences.py --sequences 1000000 --seed 7
    python tests/fuzz/sequences.py --seconds 60

A sequence has a few clients, which send commands of every type: whole ones, and ones with a field
missing, out of range, repeated, with the id of another's producer or consumer, in the wrong state,
cut short, with text that is too long or not UTF-8. Held to after each sequence:

- each request is answered once, or its connection is closed;
- nothing that goes wrong is a fault of ours: no answer says that the broker failed, and nothing of
  the kind reaches the log;
- a client that did nothing wrong is served as before;
- when the clients are gone, so is everything they had: producers, consumers, readers, watchers,
  tasks, admitted lookups and publish bytes in flight.

A failure prints the seed and the number of the sequence; `--seed S --first N --sequences 1` repeats
it on a fresh broker. The exit status is 1 when a sequence failed.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from late_store import LateStore
from one_broker import Broker, Client, command_of, section
from oracles import wire
from pyxbroker.base.log import LineFormatter
from pyxbroker.broker.commands import seek
from pyxbroker.proto import PulsarApi as pb

SEQUENCES_PER_BROKER = 100  # then a fresh one, so that topics stay short
# The first of them have a broker of their own, whose metadata store answers late: few, so that one
# is often closed while something is on its way.
LATE_SEQUENCES = 3
CLIENTS_MAX = 3
COMMANDS_MAX = 16
SETTLE_S = 20.0  # of processor time
PREFIX = "persistent://public/default/"
TOPICS = [PREFIX + name for name in ("a", "b", "c-partition-0", "c")]
TOPICS += ["non-" + PREFIX + "a", "d", "bad://x", ""]
NUMBERS = [0, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]
WORDS = ["", "s", "t", "x" * 300, "\u00e9", "a/b"]
IDS = [1, 2, 3, 4]
MARK = "@@@@"  # stands where bytes come that are not UTF-8
LONG = ["x" * 1_024, "x" * 1_025, "\u00e9" * 600, "x" * 5_000]


cached_section = functools.cache(section)  # its checksum is the plain, slow one


class Broken(Exception):
    """A sequence did not end as it has to; the sentence says how."""


class Choices:
    """What a sequence is made of, from one seed."""

    def __init__(self, seed: int, number: int) -> None:
        self.random = random.Random(seed * 1_000_003 + number)
        self.requests = 0

    def message_id(self) -> Any:
        choose = self.random.choice
        made = pb.MessageIdData(ledgerId=choose([0, 1, 2, 3, 50]), entryId=choose(range(20)))
        if self.random.random() < 0.3:
            made.batch_index = choose([-1, 0, 1, 5])
        if self.random.random() < 0.2:
            made.ack_set.extend(choose([[0], [1], [2**63 - 1], [-1, -1], [5] * 40]))
        if self.random.random() < 0.1:
            made.partition = choose([-1, 0, 9])
        return made

    def request(self) -> int:
        self.requests += 1
        return self.requests

    def command(self) -> tuple[Any, bytes]:
        """A whole command, and the payload section behind it."""
        make = self.random.choice(MAKERS)
        message = make(self)
        payload = b""
        if isinstance(message, pb.CommandSend):
            fields: dict[str, Any] = {}
            if self.random.random() < 0.7:
                fields["num_messages_in_batch"] = self.random.choice([1, 3, 100])
            if self.random.random() < 0.3:
                fields["partition_key"] = self.random.choice("abcdef")
            if self.random.random() < 0.1:
                fields["deliver_at_time"] = self.random.choice([1, 2**62])
            payload = cached_section(b"x" * self.random.choice([0, 10, 600]), **fields)
        return message, payload

    def spoil(self, message: Any) -> None:
        """Makes one field of a command something else."""
        field = self.random.choice(list(message.DESCRIPTOR.fields))
        how = self.random.random()
        if how < 0.35:
            message.ClearField(field.name)
        elif field.message_type is not None:
            if field.is_repeated and how < 0.6:
                getattr(message, field.name).add()
            elif not field.is_repeated:
                getattr(message, field.name).SetInParent()
        else:
            values = self._values_for(field)
            if field.is_repeated:
                getattr(message, field.name).extend(values[:3])
            else:
                setattr(message, field.name, self.random.choice(values))

    def spoil_text(self, message: Any) -> bytes:
        """The command with a text that is too long, nearly so, or not UTF-8."""
        if self.random.random() < 0.5:
            text, spoiled = MARK, self.random.choice([b"\xff\xfe\xc0a", b"\xed\xa0\x80a"])
        else:
            text = self.random.choice(LONG)
            spoiled = text.encode()
        fields = [each for each in message.DESCRIPTOR.fields if each.type == each.TYPE_STRING]
        pairs = [each for each in ("metadata", "subscription_properties") if hasattr(message, each)]
        if fields and (not pairs or self.random.random() < 0.7):
            field = self.random.choice(fields)
            if field.is_repeated:
                getattr(message, field.name).append(text)
            else:
                setattr(message, field.name, text)
        elif pairs:
            key, value = self.random.choice([(text, "v"), ("k", text)])
            getattr(message, self.random.choice(pairs)).add(key=key, value=value)
        return command_of(message, partial=True).replace(text.encode(), spoiled)

    @staticmethod
    def _values_for(field: Any) -> list[Any]:
        if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            words = WORDS if field.type == field.TYPE_STRING else [w.encode() for w in WORDS]
            return list(words)
        if field.type == field.TYPE_BOOL:
            return [True, False]
        if field.type == field.TYPE_ENUM:
            return [value.number for value in field.enum_type.values]
        if field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
            return [0.0, -1.0, 1e300, float("nan")]
        bits = 32 if field.type in (field.TYPE_INT32, field.TYPE_UINT32) else 64
        signed = field.type in (field.TYPE_INT32, field.TYPE_INT64, field.TYPE_SINT64)
        most = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
        values = [min(each, most) for each in NUMBERS]
        return [*values, -1, -(2 ** (bits - 1))] if signed else values


def _subscribe(c: Choices) -> Any:
    choose = c.random.choice
    made = pb.CommandSubscribe(
        topic=choose(TOPICS[:6]),
        subscription=choose(["s", "t"]),
        subType=choose(range(4)),
        consumer_id=choose(IDS),
        request_id=c.request(),
        durable=c.random.random() < 0.8,
        initialPosition=choose(range(2)),
        priority_level=choose([0, 0, 1]),
    )
    if c.random.random() < 0.3:
        made.consumer_name = choose("nm")
    if c.random.random() < 0.2:
        made.start_message_id.CopyFrom(c.message_id())
    if made.subType == pb.CommandSubscribe.Key_Shared and c.random.random() < 0.4:
        policy = pb.KeySharedMeta(keySharedMode=pb.STICKY)
        policy.hashRanges.add(start=choose([0, 5]), end=choose([4, 65535]))
        made.keySharedMeta = policy.SerializeToString()
    return made


def _producer(c: Choices) -> Any:
    made = pb.CommandProducer(
        topic=c.random.choice(TOPICS[:6]),
        producer_id=c.random.choice(IDS),
        request_id=c.request(),
    )
    if c.random.random() < 0.3:
        made.producer_name = c.random.choice("pq")
        made.epoch = c.random.choice([0, 1])
    if c.random.random() < 0.1:
        made.initial_subscription_name = "dlq"
    return made


def _ack(c: Choices) -> Any:
    made = pb.CommandAck(
        consumer_id=c.random.choice(IDS),
        ack_type=c.random.choice(range(2)),
        message_id=[c.message_id() for _ in range(c.random.choice([0, 1, 1, 1, 5]))],
    )
    if c.random.random() < 0.7:
        made.request_id = c.request()
    return made


def _seek(c: Choices) -> Any:
    made = pb.CommandSeek(consumer_id=c.random.choice(IDS), request_id=c.request())
    if c.random.random() < 0.7:
        made.message_id.CopyFrom(c.message_id())
    else:
        made.message_publish_time = c.random.choice(NUMBERS)
    return made


def _redeliver(c: Choices) -> Any:
    return pb.CommandRedeliverUnacknowledgedMessages(
        consumer_id=c.random.choice(IDS),
        message_ids=[c.message_id() for _ in range(c.random.choice([0, 0, 2]))],
        consumer_epoch=c.random.choice([0, 1, 2]),
    )


MAKERS: list[Callable[[Choices], Any]] = [
    *[_subscribe] * 6,
    *[_producer] * 4,
    *[lambda c: pb.CommandSend(producer_id=c.random.choice(IDS), sequence_id=c.requests)] * 8,
    *[lambda c: pb.CommandFlow(consumer_id=c.random.choice(IDS), messagePermits=100)] * 4,
    *[_ack] * 5,
    *[_seek] * 2,
    *[_redeliver] * 2,
    lambda c: pb.CommandLookupTopic(topic=c.random.choice(TOPICS), request_id=c.request()),
    lambda c: pb.CommandPartitionedTopicMetadata(
        topic=c.random.choice(TOPICS), request_id=c.request()
    ),
    lambda c: pb.CommandCloseProducer(producer_id=c.random.choice(IDS), request_id=c.request()),
    lambda c: pb.CommandCloseConsumer(consumer_id=c.random.choice(IDS), request_id=c.request()),
    lambda c: pb.CommandUnsubscribe(
        consumer_id=c.random.choice(IDS), request_id=c.request(), force=c.random.random() < 0.3
    ),
    lambda c: pb.CommandConsumerStats(consumer_id=c.random.choice(IDS), request_id=c.request()),
    lambda c: pb.CommandGetLastMessageId(consumer_id=c.random.choice(IDS), request_id=c.request()),
    lambda c: pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=c.request()),
    lambda c: pb.CommandWatchTopicList(
        request_id=c.request(),
        watcher_id=c.random.choice(IDS),
        namespace="public/default",
        topics_pattern=c.random.choice(["public/default/.*", ".*a", "["]),
    ),
    lambda c: pb.CommandWatchTopicListClose(
        watcher_id=c.random.choice(IDS), request_id=c.request()
    ),
    lambda c: pb.CommandGetSchema(topic=TOPICS[0], request_id=c.request()),
    lambda c: pb.CommandGetOrCreateSchema(
        topic=c.random.choice(TOPICS), request_id=c.request(), schema=_schema(c)
    ),
    lambda c: pb.CommandNewTxn(request_id=c.request(), txn_ttl_seconds=1),
    lambda c: pb.CommandSuccess(request_id=c.request()),
    lambda c: pb.CommandConnect(client_version="again", protocol_version=21),
]


def _schema(choices: Choices) -> pb.Schema:
    """Of any type; some of them are one."""
    data = choices.random.choice([b"", b'"int"', b'{"type":"record","name":"R","fields":[]}', b"{"])
    kind = choices.random.choice(pb.Schema.Type.values())
    return pb.Schema(name="", schema_data=data, type=kind)


class Sender:
    """One client of a sequence: what it asked, and what was answered."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.asked: set[int] = set()
        self.answered: list[int] = []
        self.pongs = 0
        self.producers: list[int] = []
        self.gone = False

    def send(self, choices: Choices) -> None:
        message, payload = choices.command()
        if isinstance(message, pb.CommandProducer):
            self.producers.append(message.producer_id)
        elif isinstance(message, pb.CommandSend) and choices.random.random() > 0.02:
            # To an unknown producer, a SEND ends the connection, and with it much of the sequence.
            if not self.producers:
                return
            message.producer_id = choices.random.choice(self.producers)
        choose = choices.random.random()
        whole = choose > 0.3
        if not whole:
            choices.spoil(message)
        if 0.03 < choose < 0.06:
            body = choices.spoil_text(message)
        else:
            body = command_of(message, partial=True)
        if choose < 0.03:
            body = body[: choices.random.randrange(len(body))]
        data = wire.frame(body, payload)
        for _ in range(2 if choose > 0.97 else 1):
            self.write(data)
        request = getattr(message, "request_id", None)
        if whole and request is not None and message.HasField("request_id"):
            self.asked.add(request)

    def write(self, data: bytes) -> None:
        if not self.gone:
            try:
                self.client.far.send(data)
            except (BrokenPipeError, ConnectionResetError):
                self.gone = True

    def read(self) -> None:
        """Takes what has come. Raises Broken."""
        try:
            while data := self.client.far.recv(1 << 20):
                self._look_at(data)
            self.gone = True
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self.gone = True

    def _look_at(self, data: bytes) -> None:
        frames, consumed, error = wire.scan(self.client.rest + data, 1 << 30)
        if error is not None:
            raise Broken(f"a client was sent what is no frame: {error}")
        self.client.rest = (self.client.rest + data)[consumed:]
        for command, _ in frames:
            parsed = pb.BaseCommand()
            parsed.ParseFromString(command)
            [(field, message)] = [each for each in parsed.ListFields() if each[0].name != "type"]
            self.pongs += field.name == "pong"
            if field.name == "ping":
                self.write(wire.frame(command_of(pb.CommandPong()), b""))
            told = getattr(message, "message", "") if field.name != "message" else ""
            if isinstance(told, str) and told.startswith("The broker failed"):
                raise Broken(f"a defect of ours reached a client: {told}")
            if getattr(message, "request_id", None) is not None:
                self.answered.append(message.request_id)

    def has_all(self) -> bool:
        """Whether the PONG is there and each whole request is answered, or it was sent away."""
        return self.gone or (self.pongs > 0 and self.asked <= set(self.answered))


def _tasks() -> str:
    return ": " + ", ".join(repr(each.get_coro()) for each in asyncio.all_tasks())


async def settle(broker: Broker, senders: list[Sender]) -> None:
    """Waits until every client has got its answers. Raises Broken when one is missing."""
    for sender in senders:
        sender.write(wire.frame(command_of(pb.CommandPing()), b""))
    waiting = set(senders)
    deadline = time.process_time() + SETTLE_S
    live = broker.node.connections.live
    while waiting or any(each.session.tasks for each in live):
        await asyncio.sleep(0)
        for sender in list(waiting):
            sender.read()
            if sender.has_all():
                waiting.discard(sender)
        if time.process_time() > deadline:
            missing = [sorted(each.asked - set(each.answered)) for each in waiting]
            raise Broken(f"no PONG, or no answer to the requests {missing}{_tasks()}")


def leftovers(broker: Broker, baseline: int) -> list[str]:
    """What is left of clients that are gone; baseline: tasks without any."""
    connections = broker.node.connections
    left: list[str] = []
    if connections.live:
        left.append(f"{len(connections.live)} connections")
    if connections.publish_bytes:
        left.append(f"{connections.publish_bytes} publish bytes in flight")
    if broker.handlers._lookups.admitted_now:
        left.append(f"{broker.handlers._lookups.admitted_now} admitted lookups")
    if len(asyncio.all_tasks()) > baseline:
        left.append("tasks" + _tasks())
    for topic in broker.topics.registry:
        if topic.producers:
            left.append(f"producers {list(topic.producers)} of {topic.name}")
        for subscription in topic.all_subscriptions():
            if subscription.consumers:
                left.append(f"consumers of {subscription.name} of {topic.name}")
            if not subscription.cursor.durable:
                left.append(f"the reader {subscription.name} of {topic.name}")
    return left


async def one_sequence(broker: Broker, choices: Choices, baseline: int) -> None:
    senders = [Sender(await broker.client()) for _ in range(choices.random.randint(1, CLIENTS_MAX))]
    for _ in range(choices.random.randint(1, COMMANDS_MAX)):
        sender = choices.random.choice(senders)
        sender.send(choices)
        if choices.random.random() < 0.2:
            await asyncio.sleep(0)
            sender.read()
        if choices.random.random() < 0.02:
            sender.client.far.close()
            sender.gone = True
            senders.remove(sender)
            if not senders:
                break
    await settle(broker, senders)
    for sender in senders:
        sender.client.far.close()
    broker.clients.clear()
    deadline = time.process_time() + SETTLE_S
    while left := leftovers(broker, baseline):
        await asyncio.sleep(0)
        if time.process_time() > deadline:
            raise Broken("left behind: " + ", ".join(left))


class Faults(logging.Handler):
    """What the log calls an error: nothing that a client sends may cause one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.setFormatter(LineFormatter())
        self.seen: list[str] = []
        logger = logging.getLogger("pyxbroker")
        logger.propagate = False
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(self.format(record))

    def check(self) -> None:
        if self.seen:
            raise Broken(f"the log has errors: {self.seen[0]}")


async def one_broker(
    options: argparse.Namespace, faults: Faults, first: int, count: int, until: float
) -> int:
    """Runs sequences first..first + count - 1, or the first of them, on a fresh broker; returns how
    many.
    """
    with tempfile.TemporaryDirectory(prefix="pyxbroker-sequences-", dir=options.workspace) as path:
        opened = Broker(Path(path) / "bookie", defaultNumPartitions=2)
        # By the number, so that a sequence that is repeated by itself has such a store as it had.
        at, end = first % SEQUENCES_PER_BROKER, SEQUENCES_PER_BROKER
        if at < LATE_SEQUENCES:
            chance = random.Random(options.seed)
            opened.node.make_store = functools.partial(LateStore, chance=chance)
            end = LATE_SEQUENCES
        count = min(count, end - at)
        async with opened as broker:
            baseline = len(asyncio.all_tasks())
            for number in range(first, first + count):
                if time.monotonic() >= until:
                    return number - first
                try:
                    await one_sequence(broker, Choices(options.seed, number), baseline)
                    faults.check()
                except Exception:
                    print(f"sequence {number} of seed {options.seed} failed", file=sys.stderr)
                    print(*faults.seen[:1], file=sys.stderr)  # the client was told a reference
                    raise
    return count


def main() -> int:
    """Runs the sequences; 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=1_000_000_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--workspace", help="folder for data (default: temporary)")
    options = parser.parse_args()
    faults = Faults()
    seek.READER_KEPT_S = 0.01  # a reader that was moved and whose client does not come back
    began = time.monotonic()
    done = 0
    while done < options.sequences and time.monotonic() - began < options.seconds:
        count = options.sequences - done
        ran = asyncio.run(
            one_broker(options, faults, options.first + done, count, began + options.seconds)
        )
        faults.check()  # closing the broker is a part of its last sequence
        done += ran
    seconds = time.monotonic() - began
    print(f"sequences: ok, seed {options.seed}, {done} in {seconds:.0f} s ({done / seconds:.0f}/s)")
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
