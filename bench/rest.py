"""What requests to the web port cost, and what others feel of the most expensive ones.

    python -m bench.rest                                  pyxbroker and Apache Pulsar
    python -m bench.rest --only pyxbroker --figure cost --requests 8000
    python -m bench.rest --only pyxbroker --figure turns --topics 10000 --seconds 60

cost    requests of a kind, one after the other on one kept connection: how many a second, and the
        broker's CPU (user and system) of each. Time is the client's, in which its own work counts,
        too. Each kind is asked some times before it is measured: a JVM has to warm up.
turns   RATE requests a second of the kinds that cost the most, in a namespace with TOPICS topics,
        beside a client that sends one message at a time: the longest turn of the event loop (a
        bound, from the histogram in /metrics; Apache Pulsar has none), and that client's latency.
"""

from __future__ import annotations

import argparse
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection
from harness.turns import longest_ms, turns_of

from bench import side_by_side
from bench.delayed import Others
from bench.side_by_side import Numbers, Row
from bench.web_client import WebClient, request

RATE = 100.0  # requests a second, of `turns`
CONNECTIONS = 8
PIPELINED = 16  # requests that make topics
SUBSCRIPTIONS = 200  # of the topic whose statistics are asked for
PARTITIONS = 100
LISTED = 1_000  # topics, of `cost`
WARM_UP = 0.25  # of the requests that are measured
QUIET_S = 5.0

NAMESPACE = "/admin/v2/persistent/public/many"
BUSY = f"{NAMESPACE}/busy"
PARTS = f"{NAMESPACE}/parts"


Asked = tuple[str, str, str]  # method, path, body


class Kind(NamedTuple):
    """Requests of one kind: the n-th one, and the statuses that say that it was done."""

    name: str
    title: str
    request: Callable[[int], Asked]  # method, path, body
    statuses: tuple[int, ...] = (200,)
    share: float = 1.0  # of --requests


def get(path: str) -> Callable[[int], Asked]:
    """The same GET each time."""
    return lambda number: ("GET", path, "")


COST = (
    Kind("clusters", "GET clusters", get("/admin/v2/clusters")),
    Kind("nothing", "GET of nothing", get(f"{NAMESPACE}/t/nothing/here"), (404,)),
    Kind("list", f"list of {LISTED:,} topics", get(NAMESPACE), share=0.1),
    Kind("stats", "statistics of a topic", get(f"{NAMESPACE}/topic-0/stats"), share=0.25),
    Kind("put", "PUT topic", lambda number: ("PUT", f"{NAMESPACE}/made-{number}", ""), (204,), 0.1),
    Kind(
        *("delete", "DELETE topic", lambda number: ("DELETE", f"{NAMESPACE}/made-{number}", "")),
        (204,),
        0.1,
    ),
    Kind(
        *("parts", "PUT partitions, one"),
        lambda number: ("PUT", f"{NAMESPACE}/parts-{number}/partitions", "1"),
        (204,),
        0.05,
    ),
)

EXPENSIVE = (
    get(NAMESPACE),
    get(f"{BUSY}/stats?getPreciseBacklog=true&getEarliestTimeInBacklog=true"),
    get(f"{BUSY}/internalStats?metadata=true"),
    get(f"{PARTS}/partitioned-stats?perPartition=true"),
    get(f"{PARTS}/partitioned-internalStats"),
    get("/metrics/"),
    get("/admin/v2/broker-stats/topics"),
    get("/admin/v2/broker-stats/metrics"),
    get("/admin/v2/namespaces/public/many/topics?mode=ALL"),
    get("/admin/v2/namespaces/public/many"),
    lambda number: ("PUT", f"{NAMESPACE}/new-{number}/partitions", "10"),
    lambda number: ("DELETE", f"{NAMESPACE}/new-{number - 1}/partitions?force=true", ""),
)


# --- cost -------------------------------------------------------------------------------------


def cost(broker: Broker, options: argparse.Namespace) -> Numbers:
    """Requests a second and CPU of each kind."""
    make_topics(broker, LISTED)
    numbers = {}
    for kind in COST:
        count = max(50, int(options.requests * kind.share))
        cold = int(count * WARM_UP)
        web = WebClient(broker.web_port)
        ask_all(web, kind, range(cold))
        cpu_s, began = broker.cpu_s(), time.perf_counter()
        ask_all(web, kind, range(cold, cold + count))
        numbers[f"{kind.name}_rate"] = count / (time.perf_counter() - began)
        numbers[f"{kind.name}_us"] = (broker.cpu_s() - cpu_s) / count * 1e6
        web.close()
    return numbers


def ask_all(web: WebClient, kind: Kind, numbers: range) -> None:
    """One after the other."""
    for number in numbers:
        asked = kind.request(number)
        status = web.ask(request(*asked))[0]
        if status not in kind.statuses:
            raise SystemExit(f"{asked[0]} {asked[1]}: {status} {web.body[:200]!r}")


# --- turns ------------------------------------------------------------------------------------


def turns(broker: Broker, options: argparse.Namespace) -> Numbers:
    """The longest turn while the most expensive requests come."""
    make_topics(broker, options.topics)
    make_busy(broker)
    others = Others(broker)
    time.sleep(QUIET_S)
    alone = others.stop()
    others, before, cpu_s = Others(broker), histogram(broker), broker.cpu_s()
    began = time.perf_counter()
    took = storm(broker, options.seconds)
    seconds = time.perf_counter() - began
    numbers = others.stop()
    return numbers | {
        "alone_p99_ms": alone["other_p99_ms"],
        "asked_rate": len(took) / seconds,
        "asked_p50_ms": statistics.median(took),
        "asked_cpu": (broker.cpu_s() - cpu_s) / seconds * 100,
        "turn_ms": longest_ms(before, histogram(broker)),
        "other_max_ms": max(others.times),
    }


def histogram(broker: Broker) -> dict[float, int]:
    """Of turns; empty of a broker that has none."""
    return turns_of(broker.request("GET", "/metrics")[1]) if broker.kind == "pyxbroker" else {}


def storm(broker: Broker, seconds: float) -> list[float]:
    """Milliseconds of each request."""
    left: queue.Queue[Asked | None] = queue.Queue(2 * CONNECTIONS)
    took: list[float] = []
    wrong: list[str] = []

    def work() -> None:
        web = WebClient(broker.web_port)
        while (asked := left.get()) is not None:
            began = time.perf_counter()
            status = web.ask(request(*asked))[0]
            took.append((time.perf_counter() - began) * 1000)
            if status not in (200, 204, 307):
                wrong.append(f"{asked[0]} {asked[1]}: {status} {web.body[:200]!r}")
        web.close()

    threads = [threading.Thread(target=work) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for asked in paced(seconds):
        left.put(asked)
    for _ in threads:
        left.put(None)
    for thread in threads:
        thread.join()
    if wrong:
        raise SystemExit("\n".join(wrong[:5]))
    return took


def paced(seconds: float) -> Iterator[Asked]:
    """Requests at their rate, the kinds in turn."""
    began = time.perf_counter()
    for number in range(int(RATE * seconds)):
        time.sleep(max(0.0, began + number / RATE - time.perf_counter()))
        turn, kind = divmod(number, len(EXPENSIVE))
        yield EXPENSIVE[kind](turn)


# --- scenes -----------------------------------------------------------------------------------


def make_topics(broker: Broker, count: int) -> None:
    """A namespace with that many topics, open."""
    broker.rest("PUT", "/admin/v2/namespaces/public/many", {})
    web = WebClient(broker.web_port)
    for first in range(0, count, PIPELINED):
        some = range(first, min(first + PIPELINED, count))
        asked = b"".join(request("PUT", f"{NAMESPACE}/topic-{number}") for number in some)
        statuses = web.ask(asked, len(some))
        assert set(statuses) == {204}, (statuses, web.body)
    web.close()


def put(web: WebClient, path: str, body: str = "") -> None:
    """Makes something."""
    status = web.ask(request("PUT", path, body))[0]
    assert status == 204, (path, status, web.body)


def make_busy(broker: Broker) -> None:
    """A topic with many subscriptions, and one with many partitions."""
    web = WebClient(broker.web_port)
    put(web, BUSY)
    for number in range(SUBSCRIPTIONS):
        put(web, f"{BUSY}/subscription/s-{number}")
    put(web, f"{NAMESPACE}/new--1/partitions", "10")  # goes first
    put(web, f"{PARTS}/partitions", str(PARTITIONS))
    web.close()
    with RawConnection(broker.port) as raw:
        raw.producer("persistent://public/many/busy")
        for number in range(LISTED):
            raw.send(bytes(100), number)
        for _ in range(LISTED):
            raw.expect(wire.SEND_RECEIPT)


def rows() -> list[Row]:
    """Of both figures."""
    found: list[Row] = []
    for kind in COST:
        found.append((f"{kind.name}_rate", kind.title, "requests/s", 0))
        found.append((f"{kind.name}_us", "  broker CPU", "us", 0))
    return [
        *found,
        ("asked_rate", "the most expensive requests", "requests/s", 0),
        ("asked_p50_ms", "  p50", "ms", 1),
        ("asked_cpu", "  broker CPU", "% of a core", 0),
        ("turn_ms", "  longest turn at most", "ms", 0),
        ("alone_p99_ms", "another client before, one send at a time, p99", "ms", 2),
        ("other_p50_ms", "  meanwhile, p50", "ms", 2),
        ("other_p99_ms", "  p99", "ms", 2),
        ("other_max_ms", "  at most", "ms", 2),
    ]


FIGURES = {"cost": cost, "turns": turns}


def one_life(broker: Broker, options: argparse.Namespace) -> Numbers:
    """All numbers of one broker on a fresh data directory."""
    broker.start()
    return FIGURES[options.figure](broker, options)


def main(arguments: list[str] | None = None) -> int:
    """Runs the brokers one after the other and prints the tables."""
    parser = side_by_side.parser(__doc__.splitlines()[0])
    parser.add_argument("--figure", choices=sorted(FIGURES), default="cost")
    parser.add_argument("--requests", type=int, default=4_000)
    parser.add_argument("--topics", type=int, default=1_000, help="of `turns`")
    parser.add_argument("--seconds", type=float, default=30.0, help="of `turns`")
    options = parser.parse_args(arguments)
    side_by_side.run(options, rows(), lambda broker: one_life(broker, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
