"""`pyxbroker perf produce`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from pyxbroker.cli import fail
from pyxbroker.cli.perf.options import (
    REFUSED,
    PerfParser,
    add_connection_options,
    add_duration_option,
    add_messages_option,
    add_output_options,
    add_topic_options,
    count,
    positive,
    rate,
    seconds,
    topics,
)
from pyxbroker.cli.perf.running import run, write_files
from pyxbroker.client.entries import CODECS
from pyxbroker.perf.groups import KEYS, ProducerGroup
from pyxbroker.proto import PulsarApi as pb

ABOUT = """\
Publish messages and measure the time until the broker has stored them.

Examples:
  pyxbroker perf produce orders                        100 messages per second
  pyxbroker perf produce orders --rate max -time 30    as many as the broker accepts
  pyxbroker perf produce orders -r 5000 -db --json result.json
"""

_PAYLOADS = "payloads are random letters of --size bytes"
_ENCRYPTION = "messages are not encrypted"
_DELAY = "messages are delivered without delay"

REFUSED_HERE = REFUSED | {
    "-e": _PAYLOADS,
    "--payload-delimiter": _PAYLOADS,
    "-f": _PAYLOADS,
    "--payload-file": _PAYLOADS,
    "-fc": _PAYLOADS,
    "--format-class": _PAYLOADS,
    "-fp": _PAYLOADS,
    "--format-payload": _PAYLOADS,
    "-k": _ENCRYPTION,
    "--encryption-key-name": _ENCRYPTION,
    "-v": _ENCRYPTION,
    "--encryption-key-value-file": _ENCRYPTION,
    "-d": _DELAY,
    "--delay": _DELAY,
    "-dr": _DELAY,
    "--delay-range": _DELAY,
    "-au": "create topics by `pyxbroker admin` or pulsar-admin",
    "--admin-url": "create topics by `pyxbroker admin` or pulsar-admin",
    "-np": "create partitioned topics by `pyxbroker admin` or pulsar-admin",
    "--partitions": "create partitioned topics by `pyxbroker admin` or pulsar-admin",
    "-ch": "messages are not split into chunks",
    "--chunking": "messages are not split into chunks",
    "-ef": "a message that the broker refuses counts as a failure",
    "--exit-on-failure": "a message that the broker refuses counts as a failure",
    "-p": "--max-outstanding is the limit of each partition",
    "--max-outstanding-across-partitions": "--max-outstanding is the limit of each partition",
    "-set": "messages have no event time",
    "--set-event-time": "messages have no event time",
    "--send-timeout": "a message without receipt 10 s after the end counts as a failure",
}


def command(arguments: Sequence[str]) -> None:
    options = _parser().parse(arguments)
    group = producer_group(options, topics(options.topics, options.num_topics, options.separator))
    result = run(options, "perf produce", [group], options.test_duration, options.warmup_time)
    write_files(options, [result])


def _parser() -> PerfParser:
    parser = PerfParser("produce", ABOUT, "[OPTIONS] TOPIC...", REFUSED_HERE)
    add_topic_options(parser)
    add_producer_options(parser)
    add = parser.options.add_argument
    add("--separator", metavar="TEXT", default="-", help="Between topic and number [-].")
    add_messages_option(parser, "-m", "producers")
    add_time_options(parser)
    add_connection_options(parser)
    add_output_options(parser)
    return parser


def add_time_options(parser: PerfParser, default: float = 0.0) -> None:
    add_duration_option(parser, default)
    parser.options.add_argument(
        "--warmup-time",
        type=seconds,
        metavar="S",
        default=1.0,
        help="Time before the test, which does not count [%(default)g].",
    )


def add_producer_options(parser: PerfParser) -> None:
    add = parser.options.add_argument
    add(
        *("-r", "--rate"),
        type=rate,
        metavar="N",
        default=100.0,
        help="Messages per second of all producers; 0 or max: the maximum [100].",
    )
    add("-s", "--size", type=count, metavar="BYTES", default=1024, help="Payload bytes [1024].")
    add(
        *("-n", "--num-producers"),
        type=positive,
        metavar="N",
        default=1,
        help="Producers of each topic, or of each of its partitions [%(default)s].",
    )
    add("-pn", "--producer-name", metavar="NAME", default="", help="Prefix of producer names.")
    add(
        *("-o", "--max-outstanding"),
        type=count,
        metavar="N",
        default=0,
        help="Messages without receipt of a producer; 0: 1000, or two batches [%(default)s].",
    )
    add(
        *("-b", "--batch-time-window"),
        type=seconds,
        metavar="MS",
        default=1.0,
        help="Time for which a batch waits for messages [1].",
    )
    add(
        *("-bm", "--batch-max-messages"),
        type=positive,
        metavar="N",
        default=1000,
        help="Messages in a batch [%(default)s].",
    )
    add(
        *("-bb", "--batch-max-bytes"),
        type=positive,
        metavar="BYTES",
        default=4 << 20,
        help="Bytes of a batch [%(default)s].",
    )
    add("-db", "--disable-batching", action="store_true", help="Publish each message by itself.")
    add("-z", "--compression", choices=tuple(CODECS), default="NONE", help="A codec [NONE].")
    add(
        *("-mk", "--message-key-generation-mode"),
        choices=KEYS,
        default="none",
        help="Keys: one per producer, ascending or random numbers [none]. Needs -db.",
    )
    add(
        *("-am", "--access-mode"),
        choices=("Shared", "Exclusive", "ExclusiveWithFencing", "WaitForExclusive"),
        default="Shared",
        help="Access mode of the producers [%(default)s].",
    )


def producer_group(options: Namespace, names: tuple[str, ...]) -> ProducerGroup:
    if options.message_key_generation_mode != "none" and not options.disable_batching:
        fail("Messages of a batch have no keys here. Add --disable-batching", 2)
    return ProducerGroup(
        names,
        "produce",
        options.num_producers,
        options.producer_name,
        options.size,
        options.rate,
        getattr(options, "num_messages", 0),
        options.max_outstanding,
        1 if options.disable_batching else options.batch_max_messages,
        options.batch_max_bytes,
        options.batch_time_window / 1000,
        CODECS[options.compression],
        options.message_key_generation_mode,
        access_mode=pb.ProducerAccessMode.Value(options.access_mode),
    )
