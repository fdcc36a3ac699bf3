"""Figures of a broker on ZooKeeper and three of Apache's bookies, ours beside Apache's.

    python -m bench.cluster                                  both brokers, all figures, three rounds
    python -m bench.cluster --only pyxbroker --figure unbatched4 --rounds 1
    python -m bench.cluster --short                          one round with little load

The brokers alternate within each round. Each of them gets a new ZooKeeper and new bookies, which
sync their journals, and the loads of bench/e2e.py with the same client. Ledgers have an ensemble of
three bookies, a write quorum of two and an ack quorum of two.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from compat_tests.clusters import CLUSTER, Cluster
from harness.brokers import Broker, ClusterBroker

from bench import e2e, run, side_by_side
from bench.e2e import Figure, Numbers, Scale
from bench.policies import Opener, names_of

QUORUMS = {
    "managedLedgerDefaultEnsembleSize": "3",
    "managedLedgerDefaultWriteQuorum": "2",
    "managedLedgerDefaultAckQuorum": "2",
}
# Bundles are not split, which would close topics during a measurement.
SETTINGS = {"clusterName": CLUSTER, "loadBalancerEnabled": "false", **QUORUMS}
STOP_S = 600.0  # with many topics
TOPICS, TOPICS_SHORT = 20_000, 2_000
APACHE_SETTLES_S = 10.0

_OF_RUN = {
    ("start", "first_ack_ms"): "",
    ("ready", "rest_ms"): "1,000",
    ("idle", "memory_mib"): "60",
    ("unbatched4", "rate"): "",
    ("unbatched4", "broker_us"): "0.33 x Apache",
    ("unbatched4", "client_us"): "",
    ("batched", "rate"): "",
    ("batched", "broker_us"): "0.33 x Apache",
    ("batched", "client_us"): "",
    ("fanout100", "rate"): "",
    ("fanout100", "broker_us"): "0.33 x Apache",
    ("backlog_cache", "rate"): "",
    ("backlog_cache", "broker_us"): "0.33 x Apache",
    ("backlog_disk", "rate"): "",
    ("backlog_disk", "broker_us"): "0.33 x Apache",
}
"""Rows of bench/run.py, and what is to be reached here."""
_TITLES = {  # of figures whose entries come from elsewhere than in a standalone
    ("backlog_cache", "rate"): "reading the backlog, as long as bookies have it in memory",
    ("backlog_disk", "rate"): "reading the backlog after a restart of the broker",
}
ROWS: list[run.Row] = [
    ("idle", "distinct_mib", "idle memory, a page that is mapped twice counts once", "MiB", 1, ""),
    *(
        (*row[:2], _TITLES.get(row[:2], row[2]), *row[3:5], _OF_RUN[row[:2]])
        for row in run.ROWS
        if row[:2] in _OF_RUN
    ),
    ("paced", "p50_ms", "send 1 KiB at 1,000/s until the receipt, p50", "ms", 3, "Apache"),
    ("paced", "p99_ms", "send 1 KiB at 1,000/s until the receipt, p99", "ms", 3, "Apache"),
    ("paced", "broker_us", "  broker CPU per message", "us", 1, ""),
    ("reopened", "topic_ms", "topic opened after a restart, 50 at a time", "ms", 3, ""),
    ("reopened", "topic_cpu_ms", "  broker CPU of each", "ms", 3, ""),
    ("reopened", "topic_kib", "  memory of each", "KiB", 1, ""),
    ("reopened", "create_ms", "new topic with its first message, 50 at a time", "ms", 3, ""),
    ("reopened", "stop_s", "stop with all topics open", "s", 2, ""),
]


class Member(ClusterBroker):
    """A broker that ends its session with ZooKeeper when it is closed: the next one would wait."""

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.stop(STOP_S)
        super().close()


def reopened(topics: int, broker: Broker, scale: Scale) -> Numbers:
    """Create topics with one message each, restart the broker, and open all of them."""
    names = names_of("default", topics)
    began = time.perf_counter()
    opener = Opener(broker)
    refused = opener.send(opener.produce(names))
    assert not refused, f"{len(refused)} of {topics} messages were refused"
    opener.close()
    numbers = {"create_ms": (time.perf_counter() - began) / topics * 1000}
    began = time.perf_counter()
    broker.stop(STOP_S)
    numbers["stop_s"] = time.perf_counter() - began
    broker.start()
    time.sleep(1.0 if broker.kind != "apache" else APACHE_SETTLES_S)
    opener = Opener(broker)
    memory_kib, cpu_s = broker.distinct_memory_kib(), broker.cpu_s()
    began = time.perf_counter()
    opener.produce(names)
    numbers["topic_ms"] = (time.perf_counter() - began) / topics * 1000
    numbers["topic_cpu_ms"] = (broker.cpu_s() - cpu_s) / topics * 1000
    time.sleep(1.0)
    numbers["topic_kib"] = (broker.distinct_memory_kib() - memory_kib) / topics
    opener.close()
    return numbers


def figures_of(kind: str, wanted: list[str] | None, topics: int) -> dict[str, Figure]:
    """Return the wanted figures and those that they need, in order."""
    names = set(wanted or FIGURES)
    names |= {e2e.NEEDS[name] for name in names if name in e2e.NEEDS}
    if kind == "apache":
        names -= {*e2e.STARTS}  # Its start is that of a JVM.
    figures: Mapping[str, Figure] = FIGURES | {"reopened": partial(reopened, topics)}
    return {name: figures[name] for name in figures if name in names}


def one_life(
    kind: str,
    figures: Mapping[str, Figure],
    scale: Scale,
    directory: Path,
    settings: dict[str, str],
) -> dict[str, Numbers]:
    """All figures of one kind of broker, on a cluster of its own."""
    cluster = Cluster(directory, bookies=3)

    def create(name: str) -> Broker:
        store = f"zk:{cluster.zookeeper.address}"
        return Member(directory / f"broker-{name}", store, kind=kind, settings=settings)

    try:
        cluster.start()
        return run.one_life(figures, scale, create)
    finally:
        cluster.close()
        shutil.rmtree(directory, ignore_errors=True)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = side_by_side.parser(__doc__.splitlines()[0])
    parser.add_argument("--figure", action="append", choices=FIGURES, help="only this figure")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--topics", type=int, help="topics of the figure `reopened`")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.short else 3)
    options.topics = options.topics or (TOPICS_SHORT if options.short else TOPICS)
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; return the exit status."""
    options = parse(arguments)
    scale = Scale.short() if options.short else Scale()
    settings = SETTINGS | dict(each.split("=", 1) for each in options.set)
    workspace = options.workspace or Path(tempfile.mkdtemp(prefix="bench-cluster-"))
    results: run.Results = {}
    try:
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", flush=True)
            for kind in options.only or side_by_side.KINDS:
                figures = figures_of(kind, options.figure, options.topics)
                directory = workspace / f"{kind}-{number}"
                run.add(results, kind, one_life(kind, figures, scale, directory, settings))
    finally:
        if options.workspace is None:
            shutil.rmtree(workspace, ignore_errors=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))
    return run.report(results, ROWS)


# Those that start a broker come first, latencies when the JVMs are warm, and the figure that leaves
# many topics last.
FIGURES: dict[str, Figure] = {
    "start": e2e.start,
    "ready": e2e.ready,
    "idle": e2e.idle,
    "unbatched4": e2e.unbatched4,
    "batched": e2e.batched,
    "paced": e2e.paced,
    "fanout100": e2e.fanout100,
    "backlog_cache": e2e.backlog_cache,
    "backlog_disk": e2e.backlog_disk,
    "reopened": partial(reopened, TOPICS),
}

if __name__ == "__main__":
    sys.exit(main())
