"""Compare what `pulsar-perf` and `pyxbroker perf` measure of the same load on one broker.

    python -m bench.perf_tools --java /path/to/run.sh

`--java` names a program that runs Apache's tool as `perf ...` and takes the URL of the broker from
PULSAR_URL. The first half of each of its runs does not count: the JVM compiles. `pulsar-perf`
counts from the moment when it hands a message to its client, `pyxbroker perf` from the scheduled
moment: the same while neither tool is late.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from harness.brokers import Broker, pyxbroker_command

NAMES = ("rate", "p50", "p95", "p99")
LOADS = {
    "batched 5,000/s": ["-r", "5000"],
    "batched 50,000/s": ["-r", "50000"],
    "unbatched 1,000/s": ["-r", "1000", "-db"],
    "unbatched 5,000/s": ["-r", "5000", "-db"],
}
LINE = re.compile(
    r"Throughput produced:.*?([\d.]+)\s+msg/s.*Latency: mean:.*?med:\s+([\d.]+)"
    r" - 95pct:\s+([\d.]+) - 99pct:\s+([\d.]+)"
)


def of_java(
    java: str, load: list[str], seconds: int, environment: Mapping[str, str]
) -> list[float]:
    """Return the rate (msg/s) and percentiles (ms): medians of the lines of the second half."""
    command = [java, "perf", "produce", *load, "-time", str(2 * seconds), "-s", "1024", "orders"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    lines = LINE.findall(done.stdout + done.stderr)
    counted = [[float(each) for each in line] for line in lines[len(lines) // 2 :]]
    return [statistics.median(column) for column in zip(*counted, strict=True)]


def of_ours(load: list[str], seconds: int, url: str, directory: Path) -> list[float]:
    """Return the same numbers of `pyxbroker perf produce`."""
    result = directory / "result.json"
    command = [*pyxbroker_command(), "perf", "produce", "orders", *load, "-s", "1024", "-u", url]
    command += ["-time", str(seconds), "--interval", "0", "--json", str(result)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (group,) = json.loads(result.read_text())["groups"]
    latency = group["latency_ms"]
    return [group["rate"], *(latency[name] for name in NAMES[1:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--java", required=True, help="a program that runs Apache's tools")
    parser.add_argument("--broker", choices=("pyxbroker", "apache"), default="pyxbroker")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| load | figure | pulsar-perf | pyxbroker perf | ratio |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        served = Broker(options.broker, Path(directory) / "broker")
        try:
            served.start()
            for title, load in LOADS.items():
                compare(title, load, served.url, Path(directory), options)
        finally:
            served.close()


def compare(
    title: str, load: list[str], url: str, directory: Path, options: argparse.Namespace
) -> None:
    """Run a load by both tools in turns, and print the medians of the rounds."""
    theirs, ours = [], []
    environment = os.environ | {"PULSAR_URL": url}
    for _ in range(options.rounds):
        theirs.append(of_java(options.java, load, options.seconds, environment))
        ours.append(of_ours(load, options.seconds, url, directory))
    for index, name in enumerate(NAMES):
        one, other = (statistics.median(run[index] for run in runs) for runs in (theirs, ours))
        print(f"| {title} | {name} | {one:,.2f} | {other:,.2f} | {other / one:.2f} |", flush=True)


if __name__ == "__main__":
    main()
