"""`pyxbroker client produce`: sends messages from options, files and lines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyxbroker.base.topic_name import TopicName
from pyxbroker.cli import Parser
from pyxbroker.cli.client.session import (
    Counts,
    InputError,
    Pace,
    UsageError,
    milliseconds,
    parser_of,
    run,
)
from pyxbroker.cli.client.topics import Route, names_of
from pyxbroker.cli.client.values import (
    Codec,
    KeyValue,
    codec_of,
    key_value_schema,
    named_schema,
)
from pyxbroker.client.client import Client
from pyxbroker.client.entries import CODECS, MessageId, OutgoingMessage
from pyxbroker.client.errors import ClientError
from pyxbroker.client.producer import ProducerSettings

ABOUT = """\
Send messages to a topic. A topic that does not exist is created if its namespace
lets clients do that.

The values are text, which the topic's schema turns into bytes: JSON for AVRO
and JSON, decimal numbers for INT32 and such. --value-schema bytes sends the
text as it is.

Examples:
  pyxbroker client produce orders -m hello -m world -k customer-7 -p source=shop
  pyxbroker client produce orders -m '{"id": 7, "total": 9.5}' -n 100 -r 10
  zcat orders.gz | pyxbroker client produce orders --lines - --compression ZSTD
"""

LINE_BYTES_MAX = 16 << 20
FLUSH_TIMEOUT_S = 5.0
LOCAL_CLUSTER = "__local__"
"""The only entry of `replicate_to` of a message that no other cluster gets."""


def produce(arguments: Sequence[str]) -> None:
    options = _parser().parse(arguments)
    counts = Counts("produced", is_shown=True)
    run(options, counts, _check, lambda client: _produce(client, options, counts))
    print(counts.sentence())


def _parser() -> Parser:
    parser = parser_of("produce", ABOUT)
    add = parser.options.add_argument
    add("-m", "--messages", metavar="TEXT", action="append", default=[], help="Values to send.")
    add(
        *("-s", "--separator"),
        metavar="TEXT",
        help="What separates values in -m; empty: nothing [, and nothing for AVRO and JSON].",
    )
    add(
        *("-f", "--files"),
        metavar="FILES",
        action="append",
        default=[],
        help="Files, each of which is a value; separated by commas.",
    )
    add(
        *("-l", "--lines"),
        metavar="FILE",
        action="append",
        default=[],
        help="A file each of whose lines is a value; - is stdin.",
    )
    add("-n", "--num-produce", metavar="N", type=int, default=1, help="Send all N times [1].")
    add("-r", "--rate", metavar="N", type=float, default=0.0, help="Messages per second; 0: any.")
    _add_metadata(parser)
    _add_schemas(parser)
    add("-db", "--disable-batching", action="store_true", help="Send each message by itself.")
    add("--batch-messages", metavar="N", type=int, default=1000, help="Messages of a batch [1000].")
    add("--batch-delay", metavar="MS", type=float, default=1.0, help="ms before it is sent [1].")
    add("--compression", choices=tuple(CODECS), default="NONE", help="The codec [%(default)s].")
    add("-c", "--chunking", action="store_true", help="Not supported: large messages are refused.")
    for name in ("-ekn", "--encryption-key-name"), ("-ekv", "--encryption-key-value"):
        add(*name, metavar="TEXT", help="Not supported: messages cannot be encrypted.")
    return parser


def _add_metadata(parser: Parser) -> None:
    add = parser.options.add_argument
    add("-k", "--key", metavar="TEXT", help="The key of all messages.")
    add(
        "--key-separator",
        metavar="TEXT",
        help="What separates a key from the value in each line of --lines.",
    )
    add(
        *("-p", "--properties"),
        metavar="K=V,...",
        action="append",
        default=[],
        help="Properties of all messages.",
    )
    add(
        "--event-time",
        metavar="TIME",
        type=milliseconds,
        default=0,
        help="The event time: ms since 1970, ISO 8601, or now.",
    )
    add("-dr", "--disable-replication", action="store_true", help="Keep them in this cluster.")


def _add_schemas(parser: Parser) -> None:
    add = parser.options.add_argument
    add(
        *("-vs", "--value-schema"),
        metavar="SCHEMA",
        default="auto",
        help="auto: the topic's; bytes, string, avro:DEFINITION, json:DEFINITION [%(default)s].",
    )
    add("-ks", "--key-schema", metavar="SCHEMA", help="The same for the key in a KeyValue schema.")
    add(
        *("-kvet", "--key-value-encoding-type"),
        metavar="TYPE",
        choices=("inline", "separated"),
        help="Send with a KeyValue schema: inline or separated.",
    )
    add("-kvk", "--key-value-key", metavar="TEXT", help="The key in a KeyValue schema.")
    add("-kvkf", "--key-value-key-file", metavar="FILE", help="A file with that key.")


class _Input(NamedTuple):
    """A value with the key of its line, if that has one."""

    value: bytes
    key: str | None = None


async def _produce(client: Client, options: Namespace, counts: Counts) -> None:
    schema = await _schema(client, options)
    codec = _codec(schema)
    pair_key = _pair_key(options, codec)
    names = await names_of(client, options.topic)
    route = Route(client, names, _settings(options, schema))
    sending = _Sending(counts)
    pace = Pace(options.rate)
    replicate_to = (LOCAL_CLUSTER,) if options.disable_replication else ()
    try:
        async for each in _inputs(options, codec):
            key: str | bytes | None = options.key if each.key is None else each.key
            if isinstance(codec, KeyValue):
                separated, value = codec.encode(pair_key, each.value)
                key = key if separated is None else separated
            else:
                value = codec.encode(each.value)
            message = OutgoingMessage(
                value,
                key,
                properties=options.properties,
                event_time_ms=options.event_time,
                replicate_to=replicate_to,
            )
            producer = await route.to(key.decode("latin-1") if isinstance(key, bytes) else key)
            await pace.wait()
            (await producer.publish(message)).add_done_callback(sending.on_answer)
            sending.raise_failure()
    finally:
        # After Ctrl-C and after a wrong value the messages before it count.
        limit_s = FLUSH_TIMEOUT_S if sys.exc_info()[1] is not None else None
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(sending.flush(route), limit_s)
    sending.raise_failure()
    await route.close()


class _Sending:
    """The answers to messages that were sent."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._failure: BaseException | None = None

    def on_answer(self, answer: asyncio.Future[MessageId]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if error is None:
            self._counts.messages += 1
        elif self._failure is None:
            self._failure = error

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def flush(self, route: Route) -> None:
        """Wait for all answers; the first failure is stored."""
        try:
            await route.flush()
        except ClientError as error:
            self._failure = self._failure or error


# --- options --------------------------------------------------------------------------------------


def _check(options: Namespace) -> None:
    if not (options.messages or options.files or options.lines):
        raise UsageError("There is nothing to send: use --messages, --files or --lines.")
    if options.num_produce < 1:
        raise UsageError(f"--num-produce is {options.num_produce}; expected 1 or more.")
    if options.num_produce > 1 and "-" in options.lines:
        raise UsageError("--num-produce needs --lines of a file: stdin can be read once.")
    if not options.rate >= 0 or not options.batch_delay >= 0:
        raise UsageError("--rate and --batch-delay need a number of 0 or more.")
    if options.batch_messages < 1:
        raise UsageError(f"--batch-messages is {options.batch_messages}; expected 1 or more.")
    if options.chunking:
        raise UsageError(
            "--chunking is not supported: messages are limited by the broker's maxMessageSize."
        )
    if options.encryption_key_name or options.encryption_key_value:
        raise UsageError("--encryption-key-name is not supported: use an official client.")
    options.properties = _properties(options.properties)


def _properties(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for each in ",".join(texts).split(",") if texts else ():
        name, equals, value = each.partition("=")
        if not equals:
            raise UsageError(f"--properties has {each!r}; expected NAME=VALUE.")
        found[name] = value
    return found


def _settings(options: Namespace, schema: Any) -> ProducerSettings:
    return ProducerSettings(
        schema=schema,
        codec=CODECS[options.compression],
        batch_messages_max=1 if options.disable_batching else options.batch_messages,
        batch_delay_s=options.batch_delay / 1000,
    )


async def _schema(client: Client, options: Namespace) -> Any:
    """Return the Schema of the producer; None: none."""
    if options.key_value_encoding_type:
        value = "bytes" if options.value_schema == "auto" else options.value_schema
        return key_value_schema(
            named_schema("--key-schema", options.key_schema or "string"),
            named_schema("--value-schema", value),
            options.key_value_encoding_type,
        )
    if options.key_schema:
        raise UsageError("--key-schema needs --key-value-encoding-type.")
    if options.value_schema == "auto":
        return await client.schema(TopicName.get(options.topic).partitioned_topic_name)
    return named_schema("--value-schema", options.value_schema)


def _codec(schema: Any) -> Codec | KeyValue:
    try:
        return codec_of(schema)
    except ValueError as error:
        raise InputError(f"The topic's schema cannot be read: {error}.") from None


def _pair_key(options: Namespace, codec: Codec | KeyValue) -> bytes:
    """Return the text of the key in a KeyValue schema."""
    if options.key_value_key is None and options.key_value_key_file is None:
        if isinstance(codec, KeyValue):
            raise UsageError("A KeyValue schema needs --key-value-key or --key-value-key-file.")
        return b""
    if not isinstance(codec, KeyValue):
        raise UsageError("--key-value-key needs --key-value-encoding-type.")
    if options.key_value_key is not None:
        return str(options.key_value_key).encode()
    return _content(options.key_value_key_file)


# --- values ---------------------------------------------------------------------------------------


async def _inputs(options: Namespace, codec: Codec | KeyValue) -> AsyncIterator[_Input]:
    is_structured = (codec.value if isinstance(codec, KeyValue) else codec).is_structured
    separator = options.separator
    if separator is None:
        separator = "" if is_structured else ","
    texts = [
        part
        for each in options.messages
        for part in (each.split(separator) if separator else (each,))
    ]
    paths = [path for each in options.files for path in each.split(",")]
    for _ in range(options.num_produce):
        for text in texts:
            yield _Input(text.encode("utf-8", "surrogateescape"))
        for path in paths:
            yield _Input(_content(path))
        for path in options.lines:
            async for line in _lines(path):
                yield _keyed(line, options.key_separator)


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None


async def _lines(path: str) -> AsyncIterator[bytes]:
    """Yield the lines of a file, or of stdin while other work continues."""
    if path != "-":
        for line in _lines_of_file(path):
            yield line
        return
    mode = os.fstat(0).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(0)):
        for line in sys.stdin.buffer:  # a file, which never blocks
            yield line.rstrip(b"\r\n")
        return
    reader = asyncio.StreamReader(LINE_BYTES_MAX)
    pipe = os.fdopen(os.dup(0), "rb", 0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        while line := await reader.readline():
            yield line.rstrip(b"\r\n")
    except ValueError:
        raise InputError(f"A line of stdin has more than {LINE_BYTES_MAX} bytes.") from None
    finally:
        transport.close()
        os.set_blocking(0, True)  # for the shell, if this is its terminal


def _lines_of_file(path: str) -> Iterator[bytes]:
    try:
        with Path(path).open("rb") as opened:
            for line in opened:
                yield line.rstrip(b"\r\n")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None


def _keyed(line: bytes, separator: str | None) -> _Input:
    if separator is None:
        return _Input(line)
    key, found, value = line.partition(separator.encode())
    if not found:
        raise InputError(f"A line has no {separator!r} between a key and a value.")
    return _Input(value, key.decode("utf-8", "replace"))
