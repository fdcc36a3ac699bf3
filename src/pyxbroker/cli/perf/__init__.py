"""`pyxbroker perf`: measures a broker by a load of messages.

options   the options that all subcommands have, and those of pulsar-perf that are refused
running   runs groups, prints progress and totals, writes files
produce, consume, read, latency, scenario   a subcommand each
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from pyxbroker.cli import Group

ABOUT = """\
Measure a broker by a load of messages.

The options are those of pulsar-perf. Latencies count from the time for which the
schedule had a message, so that they include the time for which a slow broker
delays the messages behind it.
"""

EXAMPLES = """\
Examples:
  pyxbroker perf produce orders --rate 5000 --size 1024 -time 30
  pyxbroker perf consume orders --subscriptions perf
  pyxbroker perf latency orders --rate 1000 -time 30 --html latency.html
  pyxbroker perf scenario run iot-telemetry
"""

SUBCOMMANDS = {
    "produce": "Publish messages; measure the time until the broker has stored them.",
    "consume": "Receive messages; measure the time since they were published.",
    "read": "Read topics by readers, without subscriptions.",
    "latency": "Publish and receive at a fixed rate; measure both latencies.",
    "scenario": "List or run scenarios: several groups of producers and consumers.",
}


def command(arguments: Sequence[str]) -> None:
    name, rest = Group("perf", ABOUT, SUBCOMMANDS, EXAMPLES).choose(arguments)
    importlib.import_module(f"pyxbroker.cli.perf.{name}").command(rest)
