"""`pyxbroker client consume`, `read` and `tail`: print messages of a topic."""

from __future__ import annotations

import asyncio
import functools
import re
import sys
import uuid
from argparse import Namespace
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from pyxbroker.cli import Parser
from pyxbroker.cli.client.printing import Printer
from pyxbroker.cli.client.session import (
    Counts,
    InputError,
    Pace,
    UsageError,
    milliseconds,
    parser_of,
    run,
)
from pyxbroker.cli.client.topics import Received, Receiver, names_like, names_of
from pyxbroker.client import requests
from pyxbroker.client.client import Client
from pyxbroker.client.consumer import Consumer, ConsumerSettings
from pyxbroker.client.entries import EARLIEST, LATEST, MessageId
from pyxbroker.proto import PulsarApi as pb

CONSUME = """\
Receive messages of a subscription, and acknowledge each after it is printed. The
subscription is created if it does not exist.

Examples:
  pyxbroker client consume orders -s billing -p Earliest -n 10
  pyxbroker client consume orders -s billing -t Shared -n 0 --output json
"""
READ = """\
Read messages from a position on. No subscription is stored, and nothing is
acknowledged.

Examples:
  pyxbroker client read orders -m earliest -n 0 --end
  pyxbroker client read orders -m 81:4 -i -n 3 --output json
  pyxbroker client read orders --start-timestamp 2026-07-01T12:00:00Z -n 0
"""
TAIL = """\
Print the last messages of a topic, then each that is published, until Ctrl-C.

Of each partition at most the messages of its newest ledger are printed.

Examples:
  pyxbroker client tail orders
  pyxbroker client tail orders -n 0 --output json
"""

QUEUE_SIZE = 1000
LOST_AFTER_S = 1.0
POSITION_MAX = (1 << 63) - 1
TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")
POSITIONS = {"latest": LATEST, "earliest": EARLIEST}
_ID = re.compile(r"(\d{1,19}):(\d{1,19})(?::(-?\d{1,9}))?(?::(-?\d{1,9}))?")

Print = Callable[[Received], Awaitable[None]]


def consume(arguments: Sequence[str]) -> None:
    parser = parser_of("consume", CONSUME)
    add = parser.options.add_argument
    add("-s", "--subscription-name", metavar="NAME", required=True, help="The subscription.")
    add("-t", "--subscription-type", choices=TYPES, default=TYPES[0], help="[%(default)s].")
    add(
        *("-m", "--subscription-mode"),
        choices=("Durable", "NonDurable"),
        default="Durable",
        help="Durable: the broker stores what is acknowledged [%(default)s].",
    )
    add(
        *("-p", "--subscription-position"),
        choices=("Latest", "Earliest"),
        default="Latest",
        help="Where a new subscription begins [%(default)s].",
    )
    add("-rs", "--replicated", action="store_true", help="Replicate the subscription.")
    add("--regex", action="store_true", help="TOPIC is a regular expression of names.")
    _add_times(parser)
    _add_receiving(parser, "consume")
    options = parser.parse(arguments)
    _receive(options, "consumed", _consume)


def read(arguments: Sequence[str]) -> None:
    parser = parser_of("read", READ)
    add = parser.options.add_argument
    add(
        *("-m", "--start-message-id"),
        metavar="ID",
        default="latest",
        help="latest, earliest, or a message id as it is printed [%(default)s].",
    )
    add("-i", "--start-message-id-inclusive", action="store_true", help="Begin with that message.")
    add("--end", action="store_true", help="Stop at the message that is the last one now.")
    _add_times(parser)
    _add_receiving(parser, "read")
    options = parser.parse(arguments)
    _receive(options, "read", _read)


def tail(arguments: Sequence[str]) -> None:
    parser = parser_of("tail", TAIL)
    parser.options.add_argument(
        *("-n", "--num-messages"), metavar="N", type=int, default=10, help="How many [%(default)s]."
    )
    _add_printing(parser)
    options = parser.parse(arguments)
    _receive(options, "read", _tail)


def _add_times(parser: Parser) -> None:
    for short, name, text in (
        ("-stp", "--start-timestamp", "Begin with the first message published then"),
        ("-etp", "--end-timestamp", "Stop behind the last message published until then"),
    ):
        parser.options.add_argument(
            *(short, name),
            metavar="TIME",
            type=milliseconds,
            help=f"{text}: ms since 1970, ISO 8601, or now.",
        )


def _add_receiving(parser: Parser, verb: str) -> None:
    add = parser.options.add_argument
    add(
        *("-n", "--num-messages"),
        metavar="N",
        type=int,
        default=1,
        help=f"How many messages to {verb}; 0: until Ctrl-C [%(default)s].",
    )
    add("-r", "--rate", metavar="N", type=float, default=0.0, help="Messages per second; 0: any.")
    add(
        *("-q", "--queue-size"),
        metavar="N",
        type=int,
        default=0,
        help=f"Messages that the broker sends ahead [{QUEUE_SIZE}, or -n].",
    )
    _add_printing(parser)
    for names in (
        ("-mc", "--max_chunked_msg"),
        ("-pm", "--pool-messages"),
        ("-ekv", "--encryption-key-value"),
    ):
        add(*names, metavar="X", help="Accepted for scripts of pulsar-client; without effect.")
    add("-ac", "--auto_ack_chunk_q_full", action="store_true", help="Likewise.")


def _add_printing(parser: Parser) -> None:
    add = parser.options.add_argument
    add("--output", choices=("text", "json"), default="text", help="text or json [%(default)s].")
    add(
        *("-st", "--schema-type"),
        choices=("bytes", "auto_consume"),
        help="auto_consume: decode by the topic's schema [bytes; with --output json auto_consume].",
    )
    add("-mp", "--print-metadata", action="store_true", help="Print the metadata, too.")
    add("--hex", action="store_true", help="Print values as hexadecimal digits.")
    add("--hide-content", action="store_true", help="Print no messages.")
    add(
        *("-ca", "--crypto-failure-action"),
        choices=("FAIL", "DISCARD", "CONSUME"),
        default="FAIL",
        help="What to do with encrypted messages, which cannot be decrypted [%(default)s].",
    )


def _receive(
    options: Namespace,
    done: str,
    work: Callable[[Client, Namespace, Counts, Printer], Awaitable[None]],
) -> None:
    is_free = options.hide_content or not sys.stdout.isatty()
    counts = Counts(done, is_shown=is_free)

    async def receive(client: Client) -> None:
        await work(client, options, counts, Printer(client, options))

    run(options, counts, _check, receive)
    if options.output == "text":
        print(counts.sentence(), file=sys.stderr)


def _check(options: Namespace) -> None:
    if getattr(options, "start_message_id", None) is not None:
        options.start_message_id = _position(options.start_message_id)
    if options.num_messages < 0:
        raise UsageError(f"--num-messages is {options.num_messages}; expected 0 or more.")
    if not getattr(options, "rate", 0) >= 0 or getattr(options, "queue_size", 0) < 0:
        raise UsageError("--rate and --queue-size need a number of 0 or more.")
    start, end = (getattr(options, f"{each}_timestamp", None) for each in ("start", "end"))
    if start is not None and end is not None and end < start:
        raise UsageError("--end-timestamp is before --start-timestamp.")


# --- consume --------------------------------------------------------------------------------------


async def _consume(client: Client, options: Namespace, counts: Counts, printer: Printer) -> None:
    settings = ConsumerSettings(
        options.subscription_name,
        type=getattr(pb.CommandSubscribe, options.subscription_type),
        is_durable=options.subscription_mode == "Durable",
        initial_position=getattr(pb.CommandSubscribe, options.subscription_position),
        start=POSITIONS[options.subscription_position.lower()],
        receive_queue_size=_queue_size(options),
        is_replicated=options.replicated,
    )
    names = await (names_like if options.regex else names_of)(client, options.topic)
    receiver = await _open_all(names, lambda name: client.consumer(name, settings))
    if options.start_timestamp is not None:
        for each in receiver.consumers:
            await each.seek(None, options.start_timestamp)

    async def print_one(received: Received) -> None:
        await printer.print(received)
        await received.consumer.acknowledge(*received.ids)

    await _print_all(receiver, options, counts, print_one)


# --- read -----------------------------------------------------------------------------------------


async def _read(client: Client, options: Namespace, counts: Counts, printer: Printer) -> None:
    start = options.start_message_id
    if options.start_timestamp is not None:
        start = EARLIEST
    open_one = functools.partial(
        _reader, client, start, options.start_message_id_inclusive, _queue_size(options)
    )
    receiver = await _open_all(await _partitions_from(client, options, start), open_one)
    if options.start_timestamp is not None:
        for each in receiver.consumers:
            await each.seek(None, options.start_timestamp)
    if not options.end:
        return await _print_all(receiver, options, counts, printer.print)
    last = {each: await _end_of(each) for each in receiver.consumers}
    await _print_all(receiver, options, counts, printer.print, last)


async def _partitions_from(client: Client, options: Namespace, start: MessageId) -> list[str]:
    """Return the partitions to read: the one that a message id names, or all."""
    names = await names_of(client, options.topic)
    if start in (EARLIEST, LATEST) or len(names) == 1:
        return names
    if not 0 <= start.partition < len(names):
        raise InputError(
            f"{options.topic} has {len(names)} partitions: name one of them, or a message id with"
            " its partition."
        )
    return [names[start.partition]]


async def _end_of(reader: Consumer) -> MessageId | None:
    """Return the id of the last message that a reader will receive; None: it has received all."""
    mark, last = await requests.last_message_id(await reader.attached(), reader.number)
    if last.entry < 0 or (mark is not None and mark.entry_key >= last.entry_key):
        return None
    return last


def _reader(
    client: Client, start: MessageId, is_included: bool, queue_size: int, name: str
) -> Awaitable[Consumer]:
    settings = ConsumerSettings(f"reader-{uuid.uuid4().hex[:16]}", receive_queue_size=queue_size)
    return client.reader(name, start, settings, is_included)


def _position(text: str) -> MessageId:
    if text in POSITIONS:
        return POSITIONS[text]
    found = _ID.fullmatch(text)
    if found is None or max(int(found[1]), int(found[2])) > POSITION_MAX:
        raise UsageError(
            f"--start-message-id is {text!r}; expected latest, earliest, LEDGER:ENTRY or a message"
            " id as it is printed."
        )
    ledger, entry, partition, batch = (-1 if each is None else int(each) for each in found.groups())
    return MessageId(ledger, entry, batch, partition)


# --- tail -----------------------------------------------------------------------------------------


async def _tail(client: Client, options: Namespace, counts: Counts, printer: Printer) -> None:
    names = await names_of(client, options.topic)
    wanted = options.num_messages
    old: list[Received] = []
    starts = {}
    for each in await asyncio.gather(*(_last(client, name, wanted) for name in names)):
        name, last, found = each
        starts[name] = last
        old.extend(found)
    old.sort(key=lambda each: each.message.metadata.publish_time)
    for received in old[max(0, len(old) - wanted) :]:
        await printer.print(received)
        counts.messages += 1
    receiver = await _open_all(
        names, lambda name: _reader(client, starts[name], False, QUEUE_SIZE, name)
    )
    options.num_messages, options.rate, options.end_timestamp = 0, 0.0, None
    await _print_all(receiver, options, counts, printer.print)


async def _last(client: Client, name: str, wanted: int) -> tuple[str, MessageId, list[Received]]:
    """Return a topic's name, the id behind which to continue, and so many messages up to it."""
    probe = await _reader(client, LATEST, False, 1, name)
    newest = await probe.last_message_id()
    await probe.close()
    if newest.entry < 0:
        return name, EARLIEST, []
    first = MessageId(newest.ledger, max(0, newest.entry - wanted + 1))
    reader = await _reader(client, first, True, QUEUE_SIZE, name)
    receiver = Receiver([reader])
    last = await _end_of(reader) if wanted else None
    found: deque[Received] = deque(maxlen=wanted)
    while last is not None:
        received = await receiver.receive()
        if received is None:
            break
        found.append(received)
        if _is_at(received.message.id, last):
            break
    await receiver.close()
    return name, (found[-1].message.id if found else newest), list(found)


# --- all ------------------------------------------------------------------------------------------


async def _open_all(
    names: Sequence[str], open_one: Callable[[str], Awaitable[Consumer]]
) -> Receiver:
    return Receiver(await asyncio.gather(*map(open_one, names)))


async def _print_all(
    receiver: Receiver,
    options: Namespace,
    counts: Counts,
    print_one: Print,
    last: dict[Consumer, MessageId | None] | None = None,
) -> None:
    """Print messages up to their number, the end time or the last ones. Close the consumers."""
    pace = Pace(options.rate)
    watching = asyncio.ensure_future(_watch(receiver.consumers))
    left = {} if last is None else {each: id for each, id in last.items() if id is not None}
    try:
        while last is None or left:
            await pace.wait()
            received = await receiver.receive()
            if received is None:
                return
            end = options.end_timestamp
            if end is not None and received.message.metadata.publish_time > end:
                return
            id = received.message.id
            end_id = left.get(received.consumer)
            if last is not None and (end_id is None or id.entry_key > end_id.entry_key):
                continue  # published meanwhile
            if end_id is not None and _is_at(id, end_id):
                del left[received.consumer]
            await print_one(received)
            counts.messages += 1
            if counts.messages == options.num_messages:
                return
    finally:
        watching.cancel()
        await receiver.close()


async def _watch(consumers: Sequence[Consumer]) -> None:
    """Print on stderr that consumers have no broker for a while, and that they have one again."""
    is_lost = False
    while True:
        await asyncio.sleep(LOST_AFTER_S)
        lost = [each for each in consumers if not each.url]
        if lost and not is_lost:
            reason = lost[0].last_failure or "no broker serves the topic"
            print(f"Connecting again: {reason}.", file=sys.stderr, flush=True)
        elif is_lost and not lost:
            print("Connected again.", file=sys.stderr, flush=True)
        is_lost = bool(lost)


def _is_at(id: MessageId, last: MessageId) -> bool:
    """Return True for a topic's last message, and for one behind it."""
    return id.entry_key > last.entry_key or (
        id.entry_key == last.entry_key and (id.batch < 0 or id.batch >= id.batch_size - 1)
    )


def _queue_size(options: Namespace) -> int:
    """Return how many messages a broker may send ahead: those that others could get stay there."""
    return options.queue_size or min(QUEUE_SIZE, options.num_messages or QUEUE_SIZE)
