"""`pyxbroker perf latency`."""

from __future__ import annotations

from collections.abc import Sequence

from pyxbroker.cli.perf.consume import REFUSED_HERE as REFUSED_OF_CONSUMERS
from pyxbroker.cli.perf.consume import add_consumer_options, consumer_group
from pyxbroker.cli.perf.options import (
    PerfParser,
    add_connection_options,
    add_output_options,
    add_topic_options,
    topics,
)
from pyxbroker.cli.perf.produce import REFUSED_HERE as REFUSED_OF_PRODUCERS
from pyxbroker.cli.perf.produce import add_producer_options, add_time_options, producer_group
from pyxbroker.cli.perf.running import run, write_files
from pyxbroker.perf.groups import Group

ABOUT = """\
Publish and receive messages in one process; measure both latencies.

The latency of `produce` is the time from the schedule to the receipt, that of
`consume` the time from the schedule to the arrival at the consumer.

Examples:
  pyxbroker perf latency orders --rate 1000 -time 30
  pyxbroker perf latency orders -r 5000 -db -st Shared --html latency.html
"""


def command(arguments: Sequence[str]) -> None:
    refused = {**REFUSED_OF_CONSUMERS, **REFUSED_OF_PRODUCERS}
    parser = PerfParser("latency", ABOUT, "[OPTIONS] TOPIC...", refused)
    add_topic_options(parser)
    add_producer_options(parser)
    add_consumer_options(parser, "-nc")
    add_time_options(parser, default=10.0)
    add_connection_options(parser)
    add_output_options(parser)
    options = parser.parse(arguments)
    names = topics(options.topics, options.num_topics)
    groups: list[Group] = [consumer_group(options, names), producer_group(options, names)]
    result = run(
        options,
        "perf latency",
        groups,
        options.test_duration,
        options.warmup_time,
        options.acks_delay_millis / 1000,
    )
    write_files(options, [result])
