"""A scenario of `pyxbroker perf` on pyxbroker and on Apache Pulsar, with the CPU of the brokers.

    python -m bench.scenario                              iot-telemetry at its own rates
    python -m bench.scenario --rate max --rate 5000 --seconds 20 --only pyxbroker

Each broker lives alone. A run at the maximum rate that does not count comes first, for the JVM.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from harness.brokers import Broker, pyxbroker_command

from bench import side_by_side
from bench.side_by_side import Numbers
from pyxbroker.perf.groups import ConsumerGroup
from pyxbroker.perf.scenario import load

OF_A_RATE = (
    ("in_rate", "published", "msg/s", 0),
    ("out_rate", "received", "msg/s", 0),
    ("in_p50", "p50 to the receipt", "ms", 2),
    ("in_p99", "p99 to the receipt", "ms", 2),
    ("in_p99.9", "p99.9 to the receipt", "ms", 2),
    ("out_p50", "p50 to the consumer", "ms", 2),
    ("out_p99", "p99 to the consumer", "ms", 2),
    ("out_p99.9", "p99.9 to the consumer", "ms", 2),
    ("backlog", "backlog at the end", "messages", 0),
    ("cpu_us", "CPU of the broker for a message", "us", 1),
    ("cores", "CPU of the broker", "cores", 2),
    ("per_core", "published per core of the broker", "msg/s", 0),
    ("own_cores", "CPU of the load generator", "cores", 2),
)


def one_run(broker: Broker, scenario: str, rate: str, seconds: float) -> Numbers:
    """Run a step; the connections are part of its CPU, and the warm-up is none of it."""
    for each in load(scenario).groups:
        if isinstance(each, ConsumerGroup):
            _clear(broker, each)
    result = broker.directory / "result.json"
    command = [*pyxbroker_command(), "perf", "scenario", "run", scenario, "-u", broker.url]
    command += ["--rate", rate, "-time", str(seconds), "--warmup-time", "0"]
    before = broker.cpu_s()
    subprocess.run(
        [*command, "--interval", "0", "--json", str(result)], check=True, stdout=subprocess.DEVNULL
    )
    cpu_s = broker.cpu_s() - before
    whole: dict[str, Any] = json.loads(result.read_text())
    numbers: Numbers = {"own_cores": whole["cpu_share"]}
    for kind, prefix in (("produce", "in"), ("consume", "out")):
        groups = [each for each in whole["groups"] if each["kind"] == kind]
        numbers[f"{prefix}_rate"] = sum(each["rate"] for each in groups)
        for name in ("p50", "p99", "p99.9"):
            numbers[f"{prefix}_{name}"] = max(each["latency_ms"][name] for each in groups)
        if kind == "consume":
            numbers["backlog"] = sum(each["backlog"] for each in groups)
        else:
            sent = sum(each["messages"] for each in groups)
            numbers["cpu_us"] = cpu_s / sent * 1e6
            numbers["per_core"] = sent / cpu_s
            numbers["cores"] = cpu_s / seconds
    return numbers


def _clear(broker: Broker, group: ConsumerGroup) -> None:
    """Drop the backlog of the run before."""
    for topic in group.topics:
        path = topic.replace("persistent://", "/admin/v2/persistent/", 1)
        for subscription in group.subscriptions:
            status, _ = broker.rest("POST", f"{path}/subscription/{subscription}/skip_all")
            assert status in (204, 404), status


def main(arguments: list[str] | None = None) -> int:
    parser = side_by_side.parser(__doc__.splitlines()[0])
    parser.add_argument("--scenario", default="iot-telemetry")
    parser.add_argument("--rate", action="append")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--warm-up", type=float, default=15)
    options = parser.parse_args(arguments)
    rates = options.rate or ["max", "2000", "5000", "10000"]

    def one_life(broker: Broker) -> Numbers:
        broker.start()
        one_run(broker, options.scenario, "max", options.warm_up)
        return {
            f"{rate}_{name}": value
            for rate in rates
            for name, value in one_run(broker, options.scenario, rate, options.seconds).items()
        }

    rows = [
        (f"{rate}_{name}", f"rate {rate}: {title}", unit, decimals)
        for rate in rates
        for name, title, unit, decimals in OF_A_RATE
    ]
    side_by_side.run(options, rows, one_life)
    return 0


if __name__ == "__main__":
    sys.exit(main())
