"""Faults of several brokers of one cluster, with every promise checked.

    python -m torture.brokers --rounds 500 --seed 1 [--broker apache] [--first N] [--verbose]
    python -m torture.brokers --rounds 300 --seed 1 --figures kill

Three brokers, three Apache bookies, ZooKeeper and the clients run in network namespaces. In each
round one or two faults (torture/broker_faults.py) happen at random moments under load
(torture/cluster_clients.py). Then topics are unloaded or all brokers killed, everything is read
back, and a judge (torture/cluster_judge.py) compares it with all receipts. The schedule of a round
depends on the seed and the number of the round only. With --figures each round has one fault of
the given kinds, which lasts until all topics are served, and the times without service are printed.
The program needs root, a JDK, Maven for the jars on first use, and Debian's ZooKeeper. Exit status
1 when any promise was broken.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import json
import sys
import time
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.apache_broker import PULSAR
from harness.bookies import SERVER
from harness.brokers import BrokerFailed
from harness.clock import Clock
from harness.cluster import BROKERS_PATH, Cluster
from harness.network import isolate

from torture.broker_faults import (
    MEASURED,
    OF_TOPICS,
    BrokerFault,
    BrokerRound,
    Faults,
    MoveFailed,
    plan,
    unload,
)
from torture.cluster_faults import revive
from torture.cluster_judge import excess_s
from torture.cluster_storm import Namespace, Storm, parser_of, repair_bookies, run_storm

BROKERS = {
    "ours": ("pyxbroker", "pyxbroker", "pyxbroker"),
    "apache": ("apache", "apache", "apache"),
    "mixed": ("pyxbroker", "apache", "pyxbroker"),
}
BOOKIES = 3
CONTINUES_S = 20.0  # a session of ZooKeeper, and the longest back-off that a client has then
APACHE_CONTINUES_S = 90.0
REGISTER_S = 30.0
REGISTERED_MAX = 6  # each broker may notice late that its session has ended
BOUNDS_S = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 6.0, 7.0, 10.0, 30.0)
RECEIPTS_END_S = 0.2  # receipts that were on their way when a broker was stopped
NAMESPACES = (
    Namespace("public/three", 3, 3, 2, False),
    Namespace("public/two", 2, 2, 2, True),
    Namespace("public/once", 3, 3, 2, True),
)


class BrokerStorm(Storm):
    """Rounds of faults of several brokers."""

    topics = 2
    bundles = 12

    def __init__(self, options: argparse.Namespace, workspace: Path) -> None:
        self.kinds = BROKERS[options.broker]
        self.measured = tuple(filter(None, (options.figures or "").split(",")))
        self.gaps: defaultdict[str, list[list[float]]] = defaultdict(list)
        """By kind of fault: times without receipts, of the official client and of all clients."""
        brokers = {f"broker-{number}": kind for number, kind in enumerate(self.kinds, 1)}
        cluster = Cluster(brokers, workspace, options.seed, BOOKIES)
        for name, broker in cluster.brokers.items():
            broker.use_clock(Clock(workspace / f"{name}-clock"))
        super().__init__(options, workspace, cluster, NAMESPACES)

    def plan(self, number: int) -> BrokerRound:
        return plan(self.options.seed, number, len(self.kinds), BOOKIES, self.measured)

    def round(self, at: BrokerRound) -> list[str]:
        self.ask("resume")
        limit = self._limit_s
        late = self._settle(time.monotonic(), limit)
        if late:
            return [f"{name} has no receipt for {limit:.0f} s before any fault" for name in late]
        owners: dict[str, str] = {}
        began = time.monotonic()
        if at.is_measured:
            owners = self._owners()
            fault = self._of_owner(at.faults[0], owners)
            at = replace(at, faults=(fault,))
            began = self._measure(fault)
        else:
            self._happen(at)
        self._wait_servers()
        ended = time.monotonic()
        registered = self.cluster.zookeeper.count_changes(BROKERS_PATH)
        late = self._settle(ended, limit + 5)
        found = [f"{name} has no receipt for {limit + 5:.0f} s after the fault" for name in late]
        paused = self.ask("pause", limit_s=limit, since_s=began)
        found += paused["problems"]
        for name, start, stop in paused["gaps"]:
            excess = excess_s((start, stop), began, ended, has_quorum=False)
            self.continued_s = max(self.continued_s, excess)
            if excess > limit:
                found.append(f"{name} had no receipts for {excess:.1f} s after the faults")
        registered = self.cluster.zookeeper.count_changes(BROKERS_PATH) - registered
        if registered > REGISTERED_MAX:
            found.append(f"brokers came and went {registered} times after the faults")
        if owners:
            self._note(at.faults[0], owners, paused["silences"])
        self._reload(at.reload)
        return found + self.verify(self._acks_are_durable(at))

    @property
    def _limit_s(self) -> float:
        return APACHE_CONTINUES_S if "apache" in self.kinds else CONTINUES_S

    def _acks_are_durable(self, at: BrokerRound) -> bool:
        # Apache's broker answers before it stores an acknowledgement.
        is_quiet = at.reload != "kill" and all(fault.kind in OF_TOPICS for fault in at.faults)
        return "apache" not in self.kinds or is_quiet

    def _settle(self, after_s: float, limit_s: float) -> list[str]:
        return self.settle(after_s, limit_s, lambda: revive(self.cluster))

    def _happen(self, at: BrokerRound) -> None:
        try:
            Faults(self.cluster, self.names).run(at.faults)
        except MoveFailed:
            if len(at.faults) == 1:
                raise

    def _of_owner(self, fault: BrokerFault, owners: dict[str, str]) -> BrokerFault:
        """Return the fault with the owner of a topic as its target."""
        host = owners[self.names[fault.choice % len(self.names)]]
        [target] = [name for name, each in self.cluster.brokers.items() if each.host == host]
        return replace(fault, target=target)

    def _measure(self, fault: BrokerFault) -> float:
        """Let a fault last until all topics are served; return the time of its begin."""
        faults = Faults(self.cluster, self.names)
        time.sleep(fault.at_s)
        began = time.monotonic()
        faults.begin(fault)
        self.settle(time.monotonic() + RECEIPTS_END_S, self._limit_s, lambda: None)
        faults.end(fault)
        return began

    def _wait_servers(self) -> None:
        """Wait until all brokers serve and are registered."""
        revive(self.cluster)
        for broker in self.cluster.brokers.values():
            broker.wait_ready()
        deadline = time.monotonic() + REGISTER_S
        while len(there := self.cluster.registered_brokers()) < len(self.kinds):
            revive(self.cluster)
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {there} are registered {REGISTER_S:.0f} s later")
            time.sleep(0.1)

    def _owners(self) -> dict[str, str]:
        """Return the host of the owner of each topic."""
        return {name: self._owner(name) for name in self.names}

    def _owner(self, topic: str) -> str:
        path = f"/lookup/v2/topic/{topic.replace('://', '/')}"
        status, text = self.cluster.broker.request("GET", path)
        if status != 200:
            raise BrokerFailed(f"the lookup of {topic} failed: {status} {text}")
        return urlsplit(json.loads(text)["brokerUrl"]).hostname or ""

    def _note(self, fault: BrokerFault, owners: dict[str, str], silences: list[Any]) -> None:
        """Note the times without receipts of the topics that a fault concerns."""
        for number, (name, seconds) in enumerate(silences):
            if fault.kind in OF_TOPICS:
                is_concerned = number == fault.choice % len(silences)
            elif fault.kind == "rolling":
                is_concerned = True
            else:
                is_concerned = owners[name] == self.cluster.brokers[fault.target].host
            if is_concerned:
                self.gaps[fault.kind].append(seconds)

    def _reload(self, how: str) -> None:
        if how == "kill":
            for broker in self.cluster.brokers.values():
                broker.kill()
            for broker in self.cluster.brokers.values():
                broker.spawn()
            self._wait_servers()
        elif how == "unload":
            for name in self.names:
                status, answer = unload(self.cluster.broker, name)
                if status >= 300:
                    raise BrokerFailed(f"the unload failed: {status} {answer}")

    def repair(self) -> None:
        for broker in self.cluster.brokers.values():
            broker.kill()
            if broker.clock is not None:
                broker.clock.set_ahead(0.0)
        repair_bookies(self.cluster)
        for broker in self.cluster.brokers.values():
            broker.spawn()
        with contextlib.suppress(TimeoutError):
            self._wait_servers()

    def figures(self) -> list[str]:
        """Return lines for each kind of fault: times without receipts per topic."""
        lines = []
        for kind, gaps in sorted(self.gaps.items()):
            official, every = (sorted(column) for column in zip(*gaps, strict=True))
            lines.append(
                f"  {kind}: {len(gaps)} topics without receipts: any client"
                f" {_quantiles(every)}; official client {_quantiles(official)}"
            )
            lines.append(f"    any client: {_histogram(every)}")
        return lines


def _quantiles(values: list[float]) -> str:
    def at(share: float) -> float:
        return values[min(len(values) - 1, int(share * len(values)))]

    points = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    texts = [f"{name} {at(share):.3f} s" for name, share in points.items()]
    return ", ".join([*texts, f"max {values[-1]:.3f} s"])


def _histogram(values: list[float]) -> str:
    """Return how many sorted values are at most each bound of BOUNDS_S, and above the one below."""
    counts = Counter(bisect.bisect_left(BOUNDS_S, value) for value in values)
    bounds = [f"<= {bound:g} s" for bound in BOUNDS_S] + [f"> {BOUNDS_S[-1]:g} s"]
    return ", ".join(f"{bounds[each]}: {count}" for each, count in sorted(counts.items()))


def main(arguments: list[str]) -> int:
    """Run all rounds; return the exit status."""
    assert __doc__ is not None
    parser = parser_of(__doc__.splitlines()[0], tuple(BROKERS))
    parser.add_argument(
        "--figures",
        nargs="?",
        const=",".join(MEASURED),
        metavar="KINDS",
        help="measure the times without service after faults of these kinds",
    )
    options = parser.parse_args(arguments)
    SERVER.jars()
    if "apache" in BROKERS[options.broker]:
        PULSAR.jars()
    isolate("torture.brokers", arguments)
    return run_storm("brokers", options, BrokerStorm)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
