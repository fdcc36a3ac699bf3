"""`pyxbroker perf consume`."""

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
    positive,
    seconds,
    topics,
)
from pyxbroker.cli.perf.running import run, write_files
from pyxbroker.perf.groups import TYPES, ConsumerGroup
from pyxbroker.proto import PulsarApi as pb

ABOUT = """\
Receive and acknowledge messages; measure the time since they were published.

The time is exact for messages of `pyxbroker perf produce` on the same machine.
Messages of other programs have a publish time in milliseconds.

Examples:
  pyxbroker perf consume orders -time 30
  pyxbroker perf consume orders -ss billing -st Key_Shared -n 4 -sp Earliest
"""

_CHUNKS = "chunks count as messages"

REFUSED_HERE = REFUSED | {
    "-ac": _CHUNKS,
    "--auto_ack_chunk_q_full": _CHUNKS,
    "-mc": _CHUNKS,
    "--max_chunked_msg": _CHUNKS,
    "-e": _CHUNKS,
    "--expire_time_incomplete_chunked_messages": _CHUNKS,
    "-aq": "--receiver-queue-size does not change",
    "--auto-scaled-receiver-queue-size": "--receiver-queue-size does not change",
    "--batch-index-ack": "whole batches are acknowledged",
    "-p": "--receiver-queue-size is the limit of each partition",
    "--receiver-queue-size-across-partitions": "--receiver-queue-size is that of each partition",
    "-pm": "messages are not stored",
    "--pool-messages": "messages are not stored",
    "-r": "messages are received as fast as the broker sends them",
    "--rate": "messages are received as fast as the broker sends them",
    "-rs": "subscriptions are not replicated",
    "--replicated": "subscriptions are not replicated",
    "-v": "messages are not decrypted",
    "--encryption-key-value-file": "messages are not decrypted",
}


def command(arguments: Sequence[str]) -> None:
    options = _parser().parse(arguments)
    group = consumer_group(options, topics(options.topics, options.num_topics))
    result = run(
        options,
        "perf consume",
        [group],
        options.test_duration,
        ack_delay_s=options.acks_delay_millis / 1000,
    )
    write_files(options, [result])


def _parser() -> PerfParser:
    parser = PerfParser("consume", ABOUT, "[OPTIONS] TOPIC...", REFUSED_HERE)
    add_topic_options(parser)
    add_consumer_options(parser)
    add = parser.options.add_argument
    add_messages_option(parser, "-m", "consumers")
    add_duration_option(parser)
    add(
        *("-sp", "--subscription-position"),
        choices=("Latest", "Earliest"),
        default="Latest",
        help="Position of a new subscription [%(default)s].",
    )
    add_connection_options(parser)
    add_output_options(parser)
    return parser


def add_consumer_options(
    parser: PerfParser, count_option: str = "-n", type: str = TYPES[0]
) -> None:
    add = parser.options.add_argument
    add(
        *(count_option, "--num-consumers"),
        type=positive,
        metavar="N",
        default=1,
        help="Consumers of each subscription and topic [%(default)s].",
    )
    add(
        *("-ns", "--num-subscriptions"),
        type=positive,
        metavar="N",
        default=1,
        help="Subscriptions of each topic: NAME-0, NAME-1 and so on [%(default)s].",
    )
    add(
        *("-ss", "--subscriptions"),
        action="append",
        metavar="NAME",
        help="A subscription, or several with commas between them [sub].",
    )
    add(
        *("-st", "--subscription-type"),
        choices=TYPES,
        default=type,
        help="Type of the subscriptions [%(default)s].",
    )
    add(
        *("-q", "--receiver-queue-size"),
        type=positive,
        metavar="N",
        default=1000,
        help="Messages that the broker may send ahead to a consumer [%(default)s].",
    )
    add(
        "--acks-delay-millis",
        type=seconds,
        metavar="MS",
        default=100.0,
        help="Time for which acknowledgements are collected [100].",
    )


def consumer_group(options: Namespace, names: tuple[str, ...]) -> ConsumerGroup:
    subscriptions = [
        name for each in options.subscriptions or ["sub"] for name in each.split(",") if name
    ]
    wanted = options.num_subscriptions
    if not subscriptions:
        fail("--subscriptions has no name", 2)
    if wanted > 1 and len(subscriptions) == 1:
        subscriptions = [f"{subscriptions[0]}-{index}" for index in range(wanted)]
    elif wanted > 1 and len(subscriptions) != wanted:
        fail(f"--num-subscriptions is {wanted}, and {len(subscriptions)} are named", 2)
    if options.num_consumers > 1 and options.subscription_type == "Exclusive":
        fail("An Exclusive subscription has one consumer. Use --subscription-type Shared", 2)
    position = getattr(options, "subscription_position", "Latest")
    return ConsumerGroup(
        names,
        "consume",
        options.num_consumers,
        tuple(subscriptions),
        options.subscription_type,
        pb.CommandSubscribe.InitialPosition.Value(position),
        options.receiver_queue_size,
        getattr(options, "num_messages", 0),
    )
