"""Faults of Apache bookies, ZooKeeper, the broker and the network, with every promise checked.

    python -m torture.bookkeeper --rounds 300 --seed 1 [--broker apache] [--first N] [--verbose]

Four Apache bookies, ZooKeeper, the broker and the clients run in network namespaces. In each round
one or two faults (torture/cluster_faults.py) happen under load (torture/cluster_clients.py). Then
the broker is killed or unloads its topics, everything is read back, and a judge
(torture/cluster_judge.py) compares it with all receipts. Topics live for a few rounds. The schedule
of a round depends on the seed and the number of the round only. The program needs root, a JDK,
Maven for the jars on first use, and Debian's ZooKeeper. Exit status 1 when any promise was broken.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from harness.apache_broker import PULSAR
from harness.bookies import SERVER
from harness.brokers import BrokerFailed
from harness.cluster import Cluster
from harness.network import isolate

from torture.cluster_faults import Round, begin, end, heal, plan, revive
from torture.cluster_judge import excess_s
from torture.cluster_storm import Namespace, Storm, parser_of, repair_bookies, run_storm

BROKERS = {"ours": "pyxbroker", "apache": "apache"}
BOOKIES = 4
CONTINUES_S = 10.0
APACHE_CONTINUES_S = 60.0  # it takes as long to start
NAMESPACES = (
    Namespace("public/three", 3, 3, 2, False),
    Namespace("public/four", 4, 3, 2, True),
    Namespace("public/once", 3, 3, 2, True),
    Namespace("public/often", 3, 2, 2, False),
)


class BookieStorm(Storm):
    """Rounds of faults of bookies, ZooKeeper and one broker."""

    def __init__(self, options: argparse.Namespace, workspace: Path) -> None:
        self.kind = BROKERS[options.broker]
        cluster = Cluster({"broker": self.kind}, workspace, options.seed, BOOKIES)
        super().__init__(options, workspace, cluster, NAMESPACES)

    def plan(self, number: int) -> Round:
        return plan(self.options.seed, number, BOOKIES)

    def round(self, at: Round) -> list[str]:
        cluster = self.cluster
        self.ask("resume")
        self._settle(time.monotonic(), 20.0)
        time.sleep(at.before_s)
        began = time.monotonic()
        for fault in at.faults:
            begin(cluster, fault)
        time.sleep(at.lasts_s)
        if at.reload == "crash":
            cluster.broker.kill()
            cluster.broker.spawn()
            time.sleep(1.0)  # the broker recovers while the faults last
        for fault in at.faults:
            end(cluster, fault)
        revive(cluster)
        cluster.broker.wait_ready()
        # A bookie takes a while to start, or to register again after its session has expired.
        heal(cluster)
        ended = time.monotonic()
        limit = self._limit_s
        late = self._settle(ended, limit + 5)
        found = [f"{name} has no receipt for {limit + 5:.0f} s after the fault" for name in late]
        paused = self.ask("pause", limit_s=limit, since_s=began)
        found += paused["problems"]
        has_quorum = at.has_quorum(BOOKIES - self.namespace.ensemble)
        which = "although a quorum was left" if has_quorum else "after the end of the faults"
        for name, start, stop in paused["gaps"]:
            excess = excess_s((start, stop), began, ended, has_quorum)
            self.continued_s = max(self.continued_s, excess)
            if excess > limit:
                found.append(f"{name} had no receipts for {excess:.1f} s {which}")
        self._reload(at.reload)
        # Apache's broker answers before it stores an acknowledgement.
        is_killed = at.reload != "unload" or any(each.target == "broker" for each in at.faults)
        durable = self.kind == "pyxbroker" or not is_killed
        return found + self.verify(durable)

    @property
    def _limit_s(self) -> float:
        return APACHE_CONTINUES_S if self.kind == "apache" else CONTINUES_S

    def _settle(self, after_s: float, limit_s: float) -> list[str]:
        return self.settle(after_s, limit_s, lambda: revive(self.cluster))

    def _reload(self, how: str) -> None:
        broker = self.cluster.broker
        if how == "kill":
            broker.kill()
            broker.start()
        if how != "unload":
            return
        status, answer = broker.request("PUT", f"/admin/v2/namespaces/{self.namespace.name}/unload")
        if status >= 300:
            raise BrokerFailed(f"the unload failed: {status} {answer}")

    def repair(self) -> None:
        self.cluster.broker.kill()
        repair_bookies(self.cluster)
        self.cluster.broker.start()


def main(arguments: list[str]) -> int:
    """Run all rounds; return the exit status."""
    assert __doc__ is not None
    options = parser_of(__doc__.splitlines()[0], tuple(BROKERS)).parse_args(arguments)
    SERVER.jars()
    if options.broker == "apache":
        PULSAR.jars()
    isolate("torture.bookkeeper", arguments)
    return run_storm("bookkeeper", options, BookieStorm)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
