"""`pyxbroker perf read`."""

from __future__ import annotations

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
    positive,
    topics,
)
from pyxbroker.cli.perf.running import run, write_files
from pyxbroker.client.entries import EARLIEST, LATEST
from pyxbroker.perf.groups import ConsumerGroup

ABOUT = """\
Read topics by readers, from the first message or from a position.

Examples:
  pyxbroker perf read orders --num-messages 1000000
  pyxbroker perf read orders --start-message-id latest -time 30
"""

REFUSED_HERE = REFUSED | {
    "-r": "messages are read as fast as the broker sends them",
    "--rate": "messages are read as fast as the broker sends them",
    "--use-tls": "use a service URL that begins with pulsar+ssl://",
}


def command(arguments: Sequence[str]) -> None:
    options = _parser().parse(arguments)
    group = ConsumerGroup(
        topics(options.topics, options.num_topics),
        "read",
        queue_size=options.receiver_queue_size,
        messages=options.num_messages,
        is_reader=True,
        start=_position(options.start_message_id),
        subscriptions=("perf-reader",),
    )
    result = run(options, "perf read", [group], options.test_duration)
    write_files(options, [result])


def _parser() -> PerfParser:
    parser = PerfParser("read", ABOUT, "[OPTIONS] TOPIC...", REFUSED_HERE)
    add_topic_options(parser)
    add = parser.options.add_argument
    add(
        *("-m", "--start-message-id"),
        metavar="ID",
        default="earliest",
        help="earliest, latest, or LEDGER:ENTRY [%(default)s].",
    )
    add_messages_option(parser, "-n", "readers")
    add_duration_option(parser)
    add(
        *("-q", "--receiver-queue-size"),
        type=positive,
        metavar="N",
        default=1000,
        help="Messages that the broker may send ahead [%(default)s].",
    )
    add_connection_options(parser)
    add_output_options(parser)
    return parser


def _position(text: str) -> tuple[int, int]:
    known = {"earliest": EARLIEST.entry_key, "latest": LATEST.entry_key}
    if text in known:
        return known[text]
    ledger, _, entry = text.partition(":")
    if not (ledger.isdecimal() and entry.isdecimal()):
        fail(f"--start-message-id is {text!r}; expected earliest, latest or LEDGER:ENTRY", 2)
    return int(ledger), int(entry)
