"""A hundred thousand partitions by REST: how long they and their list take, and what others feel.

    python -m bench.partitions --only pyxbroker
    python -m bench.partitions --only pyxbroker --count 10000

PUT .../partitions makes a partitioned topic, while messages of another topic are sent one by one.
"""

from __future__ import annotations

import http.client
import statistics
import sys
import time

from harness.brokers import Broker

from bench import side_by_side
from bench.delayed import Others
from bench.side_by_side import Numbers

TOPICS = "/admin/v2/persistent/public/default"
PATH = f"{TOPICS}/many/partitions"
LISTS = 5
REQUEST_S_MAX = 900.0
QUIET_S = 3.0  # of sends alone, to compare with

# (number, title, unit, decimals)
ROWS = [
    ("s", "making the partitions", "s", 1),
    ("cpu_s", "  broker CPU", "s", 1),
    ("memory_mib", "  memory then", "MiB", 0),
    ("list_s", "listing them as topics, once", "s", 2),
    ("list_again_s", "  median of five", "s", 2),
    ("alone_p50_ms", "another topic before, one send at a time, p50", "ms", 2),
    ("alone_p99_ms", "  p99", "ms", 2),
    ("other_p50_ms", "another topic meanwhile, p50", "ms", 2),
    ("other_p99_ms", "  p99", "ms", 2),
    ("other_max_ms", "  at most", "ms", 2),
]


def make(broker: Broker, count: int) -> float:
    """Seconds until the request is answered."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.web_port, timeout=REQUEST_S_MAX)
    began = time.perf_counter()
    connection.request("PUT", PATH, str(count), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 204, (answer.status, body)
    connection.close()
    return time.perf_counter() - began


def listed(broker: Broker, count: int) -> list[float]:
    """Seconds of each list of all topics."""
    seconds = []
    for _ in range(LISTS):
        began = time.perf_counter()
        status, topics = broker.rest("GET", TOPICS)
        seconds.append(time.perf_counter() - began)
        assert status == 200, topics
        assert sum("/many-partition-" in each for each in topics) == count, len(topics)
    return seconds


def one_life(broker: Broker, count: int) -> Numbers:
    """All numbers of one broker on a fresh data directory."""
    broker.start()
    others = Others(broker)
    time.sleep(QUIET_S)
    alone = others.stop()
    others, cpu_s = Others(broker), broker.cpu_s()
    seconds = make(broker, count)
    numbers = others.stop()
    lists = listed(broker, count)
    return numbers | {
        "list_s": lists[0],
        "list_again_s": statistics.median(lists),
        "s": seconds,
        "cpu_s": broker.cpu_s() - cpu_s,
        "memory_mib": broker.memory_kib() / 1024,
        "alone_p50_ms": alone["other_p50_ms"],
        "alone_p99_ms": alone["other_p99_ms"],
        "other_max_ms": max(others.times),
    }


def main(arguments: list[str] | None = None) -> int:
    """Runs the brokers one after the other and prints the table."""
    parser = side_by_side.parser(__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    options = parser.parse_args(arguments)
    side_by_side.run(options, ROWS, lambda broker: one_life(broker, options.count))
    return 0


if __name__ == "__main__":
    sys.exit(main())
