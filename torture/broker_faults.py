"""Faults of the brokers of a cluster and of their links, and the schedule of a seed."""

from __future__ import annotations

import http.client
import random
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from harness.brokers import BrokerFailed
from harness.cluster import Cluster, ClusterBroker, send

from torture.cluster_faults import IMPAIRMENTS, Fault

WEIGHTS = {
    "kill": 4,
    "restart": 3,
    "stop": 3,
    "rolling": 1,
    "pause": 4,
    "session": 3,
    "unload": 2,
    "transfer": 2,
    "cut": 4,
    "cut-one-way": 4,
    "delay": 2,
    "loss": 2,
    "clock": 2,
}
"""How often a fault happens."""
OF_LINKS = ("cut", "cut-one-way", "delay", "loss")
OF_TOPICS = ("unload", "transfer")
MEASURED = ("kill", "pause", "restart", "stop", "session", "unload", "transfer", "rolling")
"""The kinds of faults whose gaps are measured one by one."""
TWO_FAULTS = 0.35
LONG_FAULTS = 0.25  # last longer than a session of ZooKeeper
JUMPS_S = (-3600.0, -20.0, 20.0, 3600.0)
RELOADS = ("unload", "unload", "unload", "kill", "none")
UNLOAD_TIMEOUT_S = 15.0
NOT_SUPPORTED = 409


@dataclass(frozen=True)
class BrokerFault(Fault):
    """A fault of a broker, or of its link to `peer`; `choice` selects the topic or the jump."""

    peer: str = ""
    choice: int = 0
    at_s: float = 0.0
    lasts_s: float = 0.0

    def __str__(self) -> str:
        if self.kind in OF_TOPICS:
            what = f"{self.kind} topic {self.choice} by {self.target}"
        elif self.kind == "clock":
            what = f"clock {self.target} {self.jump_s:+.0f} s"
        elif self.kind == "rolling":
            what = "rolling restart"
        else:
            what = f"{self.kind} {self.target}" + (f" to {self.peer}" if self.peer else "")
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{what} at {self.at_s:.1f} s{lasts}"

    @property
    def jump_s(self) -> float:
        """The seconds by which the clock jumps."""
        return JUMPS_S[self.choice % len(JUMPS_S)]

    @property
    def link(self) -> frozenset[str]:
        """The hosts that the fault concerns. A link can have one fault at a time."""
        return frozenset((self.target, self.peer))

    @property
    def name(self) -> str:
        if not self.peer:
            return self.kind
        return f"{self.kind} {self.target.split('-')[0]}-{self.peer.split('-')[0]}"


@dataclass(frozen=True)
class BrokerRound:
    """One round: faults under load, then a reload of all topics, then the check."""

    faults: tuple[BrokerFault, ...]
    reload: str
    is_measured: bool = False
    """The fault lasts until all topics are served."""

    def __str__(self) -> str:
        return f"{' and '.join(map(str, self.faults))}, then {self.reload}"


def plan(
    seed: int, number: int, brokers: int, bookies: int, measured: Sequence[str] = ()
) -> BrokerRound:
    """Return a round of a seed, which does not depend on other rounds.

    `measured`: one fault of these kinds, and nothing else.
    """
    chance = random.Random(f"brokers-{seed}-{number}")
    names = [f"broker-{each}" for each in range(1, brokers + 1)]
    others = ["zookeeper", "clients", *(f"bookie-{each}" for each in range(1, bookies + 1))]
    if measured:
        kind = measured[number % len(measured)]
        fault = _fault(chance, kind, chance.choice(names), names, others, 0.1 + chance.random())
        return BrokerRound((fault,), "none", is_measured=True)
    targets = chance.sample(names, 2 if chance.random() < TWO_FAULTS else 1)
    faults: list[BrokerFault] = []
    for target in targets:
        [kind] = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        if kind == "rolling" and faults:
            kind = "session"
        faults.append(_fault(chance, kind, target, names, others, 0.1 + 1.5 * chance.random()))
        if kind == "rolling":
            break
    if len({each.link for each in faults}) < len(faults):
        faults.pop()
    return BrokerRound(tuple(faults), chance.choice(RELOADS))


def _fault(
    chance: random.Random,
    kind: str,
    target: str,
    brokers: list[str],
    others: list[str],
    at_s: float,
) -> BrokerFault:
    lasts_s = 0.3 + 3.7 * chance.random() ** 2
    if chance.random() < LONG_FAULTS:
        lasts_s = 7.0 + 4.0 * chance.random()
    if kind in ("restart", "rolling", "session", *OF_TOPICS):
        lasts_s = 0.0
    peer = ""
    if kind in OF_LINKS:
        peers = [each for each in brokers if each != target] + others
        peer = chance.choice(peers)
        if kind == "cut-one-way" and chance.random() < 0.5:
            target, peer = peer, target
    return BrokerFault(kind, target, peer, chance.randrange(100), at_s, lasts_s)


class Faults:
    """Lets faults happen on a cluster; `topics` are those that a fault may move."""

    def __init__(self, cluster: Cluster, topics: Sequence[str]) -> None:
        self._cluster = cluster
        self._topics = topics
        self._begin: dict[str, Callable[[BrokerFault], None]] = {
            "kill": lambda fault: self._broker(fault).kill(),
            "restart": self._restart,
            "stop": lambda fault: _stop(self._broker(fault)),
            "rolling": self._roll,
            "pause": lambda fault: send(self._broker(fault).process, signal.SIGSTOP),
            "session": self._expire,
            "unload": lambda fault: self._unload(fault, ""),
            "transfer": self._transfer,
            "clock": lambda fault: self._set_clock(fault, fault.jump_s),
        }

    def run(self, faults: Sequence[BrokerFault]) -> None:
        """Let faults begin and end at their times. Raises BrokerFailed."""
        with ThreadPoolExecutor(len(faults)) as threads:
            for _ in threads.map(self._run, faults):
                pass

    def _run(self, fault: BrokerFault) -> None:
        time.sleep(fault.at_s)
        self.begin(fault)
        time.sleep(fault.lasts_s)
        self.end(fault)

    def begin(self, fault: BrokerFault) -> None:
        """Let a fault happen now."""
        if fault.kind in OF_LINKS:
            is_one_way = fault.kind == "cut-one-way"
            impairment = IMPAIRMENTS["cut" if is_one_way else fault.kind]
            self._cluster.network.impair(
                fault.target, fault.peer, impairment, is_one_way=is_one_way
            )
        else:
            self._begin[fault.kind](fault)

    def end(self, fault: BrokerFault) -> None:
        """End a fault; a broker that has ended is started again."""
        if fault.kind in OF_LINKS:
            self._cluster.network.restore(fault.target, fault.peer)
        elif fault.kind == "pause":
            send(self._broker(fault).process, signal.SIGCONT)
        elif fault.kind in ("kill", "stop"):
            self._broker(fault).spawn()
        elif fault.kind == "clock":
            self._set_clock(fault, 0.0)

    def _broker(self, fault: BrokerFault) -> ClusterBroker:
        return self._cluster.brokers[fault.target]

    def _set_clock(self, fault: BrokerFault, ahead_s: float) -> None:
        clock = self._broker(fault).clock
        assert clock is not None
        clock.set_ahead(ahead_s)

    def _restart(self, fault: BrokerFault) -> None:
        self._broker(fault).kill()
        self._broker(fault).spawn()

    def _roll(self, _: BrokerFault) -> None:
        for broker in self._cluster.brokers.values():
            _stop(broker)
            broker.start()

    def _expire(self, fault: BrokerFault) -> None:
        self._cluster.zookeeper.expire_sessions(self._broker(fault).host)

    def _transfer(self, fault: BrokerFault) -> None:
        others = [name for name in self._cluster.brokers if name != fault.target]
        wanted = self._cluster.brokers[others[fault.choice % len(others)]]
        self._unload(fault, f"?destinationBroker={wanted.broker_id}")

    def _unload(self, fault: BrokerFault, query: str) -> None:
        topic = self._topics[fault.choice % len(self._topics)]
        try:
            status, text = unload(self._broker(fault), topic, query)
        except (OSError, http.client.HTTPException) as error:
            status, text = 0, str(error)
        if status >= 300 or not status:
            raise MoveFailed(f"{fault} failed: {status} {text}")


class MoveFailed(BrokerFailed):
    """A topic was not moved, which another fault may explain."""


def unload(broker: ClusterBroker, topic: str, query: str = "") -> tuple[int, str]:
    """Unload the bundle of a topic by a request to any broker; return the status and the answer.

    A broker that refuses the new owner that `query` names is asked to unload without one.
    """
    path = topic.replace("://", "/")
    namespace = path.split("/", 1)[1].rpartition("/")[0]
    target = f"/lookup/v2/topic/{path}/bundle"
    status, bundle = broker.request("GET", target, timeout_s=UNLOAD_TIMEOUT_S)
    if status != 200:
        return status, bundle
    target = f"/admin/v2/namespaces/{namespace}/{bundle}/unload"
    status, text = broker.request("PUT", target + query, timeout_s=UNLOAD_TIMEOUT_S)
    if query and status == NOT_SUPPORTED:
        return broker.request("PUT", target, timeout_s=UNLOAD_TIMEOUT_S)
    return status, text


def _stop(broker: ClusterBroker) -> None:
    """End a broker by SIGTERM, if it runs, and wait."""
    if broker.process is not None and broker.process.poll() is None:
        broker.stop()
