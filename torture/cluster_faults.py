"""Faults of a cluster of bookies, ZooKeeper and a broker, and the schedule of a seed."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from harness.cluster import READ_ONLY_USAGE, Cluster, ClusterBookie, ClusterBroker, send
from harness.network import Impairment

IMPAIRMENTS = {
    "cut": Impairment(loss=1.0),
    "delay": Impairment(delay_s=0.3),
    "loss": Impairment(loss=0.05),
}
LONG_PAUSE_S = 40.0
LONG_PAUSES = 0.02  # share of pauses
RELOADS = ("crash", "kill", "unload")
"""The broker is killed under load and the faults, or when all is quiet; or it unloads topics."""


@dataclass(frozen=True)
class Fault:
    """One fault of a schedule; `target` is a host."""

    kind: str
    target: str

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"

    @property
    def name(self) -> str:
        """The kind of the fault and of its target."""
        return f"{self.kind} {self.target.split('-')[0]}"

    @property
    def has_quorum(self) -> bool:
        """True if a broker can continue to store while the fault lasts."""
        return self.target.startswith("bookie-")


@dataclass(frozen=True)
class Round:
    """One round: faults under load, then a reload of all topics, then the check."""

    before_s: float
    faults: tuple[Fault, ...]
    lasts_s: float
    reload: str

    def __str__(self) -> str:
        faults = " and ".join(map(str, self.faults))
        return f"{faults} for {self.lasts_s:.1f} s, then {self.reload}"

    def has_quorum(self, spare_bookies: int) -> bool:
        """True if sends have to continue during the round's faults."""
        if self.reload == "crash" or len(self.faults) > spare_bookies:
            return False
        return all(each.has_quorum for each in self.faults)


BOOKIE_KINDS = (
    *("kill", "kill", "pause", "pause", "cut", "cut", "delay", "loss"),
    *("disk-full", "read-only", "session"),
)
BROKER_KINDS = ("kill", "kill", "pause", "session")
ZOOKEEPER_KINDS = ("cut", "cut", "delay", "loss")


def plan(seed: int, number: int, bookies: int) -> Round:
    """Return a round of a seed; each round can be repeated without those before it."""
    chance = random.Random(f"{seed}-{number}")
    names = [f"bookie-{each}" for each in range(1, bookies + 1)]
    chance.shuffle(names)
    faults = [_fault(chance, names.pop())]
    if chance.random() < 0.15:
        faults.append(_fault(chance, names.pop()))
        if faults[0].target == faults[1].target:  # two of the broker, or of ZooKeeper
            faults.pop()
    lasts_s = 0.5 + 3.5 * chance.random() ** 2
    if any(fault.kind == "cut" for fault in faults) and chance.random() < 0.3:
        lasts_s = 8.0  # longer than requests to bookies and sessions of ZooKeeper may take
    pauses = any(fault.kind == "pause" for fault in faults)
    if pauses and chance.random() < LONG_PAUSES:
        lasts_s = LONG_PAUSE_S
    elif pauses:
        lasts_s = 8.0 if chance.random() < 0.2 else max(1.0, lasts_s)
    return Round(0.1 + chance.random(), tuple(faults), lasts_s, chance.choice(RELOADS))


def _fault(chance: random.Random, bookie: str) -> Fault:
    dice = chance.random()
    if dice < 0.6:
        return Fault(chance.choice(BOOKIE_KINDS), bookie)
    if dice < 0.8:
        return Fault(chance.choice(BROKER_KINDS), "broker")
    return Fault(chance.choice(ZOOKEEPER_KINDS), "zookeeper")


def begin(cluster: Cluster, fault: Fault) -> None:
    """Let a fault happen now."""
    if fault.kind in IMPAIRMENTS:
        cluster.network.impair("broker", fault.target, IMPAIRMENTS[fault.kind])
    else:
        _BEGIN[fault.kind](cluster, fault.target)


def end(cluster: Cluster, fault: Fault) -> None:
    """End a fault; a server that has ended is started again."""
    if fault.kind in IMPAIRMENTS:
        cluster.network.restore("broker", fault.target)
    elif fault.kind in _END:
        _END[fault.kind](cluster, fault.target)


def revive(cluster: Cluster) -> None:
    """Start each broker that has ended, as a supervisor does, and wait until it serves.

    A broker may end itself when its session has expired.
    """
    for broker in cluster.brokers.values():
        if broker.process is None or broker.process.poll() is not None:
            broker.kill()
            broker.spawn()
            broker.wait_ready()


def heal(cluster: Cluster) -> None:
    """Start the bookies that have ended, and wait until all take requests."""
    for bookie in cluster.bookies.values():
        if bookie.process is not None and bookie.process.poll() is not None:
            bookie.kill()
        if bookie.process is None:
            bookie.spawn()
    for bookie in cluster.bookies.values():
        bookie.wait_ready()
    deadline = time.monotonic() + 20
    while len(cluster.writable_bookies()) < len(cluster.bookies):
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {cluster.writable_bookies()} are writable again")
        time.sleep(0.1)


def _kill(cluster: Cluster, target: str) -> None:
    _server(cluster, target).kill()


def _pause(cluster: Cluster, target: str) -> None:
    send(_server(cluster, target).process, signal.SIGSTOP)


def _continue(cluster: Cluster, target: str) -> None:
    send(_server(cluster, target).process, signal.SIGCONT)


def _server(cluster: Cluster, target: str) -> ClusterBroker | ClusterBookie:
    return cluster.broker if target == "broker" else cluster.bookies[target]


def _start(cluster: Cluster, target: str) -> None:
    if target == "broker":
        if cluster.broker.process is None:  # else the end of the round has started it
            cluster.broker.spawn()
    else:
        cluster.bookies[target].spawn()


def _expire(cluster: Cluster, target: str) -> None:
    cluster.zookeeper.expire_sessions(_server(cluster, target).host)


_BEGIN: dict[str, Callable[[Cluster, str], None]] = {
    "kill": _kill,
    "pause": _pause,
    "session": _expire,
    "disk-full": lambda cluster, target: cluster.bookies[target].fill(1.0),
    "read-only": lambda cluster, target: cluster.bookies[target].fill(READ_ONLY_USAGE),
}
_END: dict[str, Callable[[Cluster, str], None]] = {
    "kill": _start,
    "pause": _continue,
    "disk-full": lambda cluster, target: cluster.bookies[target].disk.clear(),
    "read-only": lambda cluster, target: cluster.bookies[target].disk.clear(),
}
