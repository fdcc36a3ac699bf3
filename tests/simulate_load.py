"""A cluster in virtual time: brokers with skewed, noisy load, and a leader that balances it.

Each broker measures its bundles and its usage once a minute, at a second of its own, as averages
over that minute, and checks every 5 s if its report is due. The leader takes reports as they are
written and sheds once a minute. A moved bundle is on no broker for a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random

from pyxbroker.base.bundles import Bundle
from pyxbroker.base.compact_json import to_json
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.cluster.cluster_load import ClusterLoad
from pyxbroker.cluster.load_report import (
    BundleStats,
    LocalBrokerData,
    ResourceUsage,
    is_report_due,
    read_report,
)
from pyxbroker.cluster.placement import NO_RULES, Placement, Rules, choose
from pyxbroker.cluster.shedding import Move, Shedding, shed
from pyxbroker.settings.config import Config

STEP_S = 5
MINUTE_S = 60
MESSAGE_BYTES = 1_000
NOISE = 0.05  # standard deviation of the rate of a bundle in a minute, relative
USAGE_NOISE = 0.01  # of the usage of a broker, absolute
IDLE_USAGE = 0.02
CORES = 4


class Moved(NamedTuple):
    """A move and its second."""

    at_s: int
    move: Move


def names_of(count: int, namespace: str = "public/default") -> list[str]:
    """Return the full names of the bundles of a namespace."""
    size = 2**32 // count
    ends = [at * size for at in range(count)] + [0xFFFFFFFF]
    return [f"{namespace}/{Bundle(low, high)}" for low, high in pairwise(ends)]


def zipf(names: list[str], total: float, random: Random, exponent: float = 1.0) -> dict[str, float]:
    """Return rates in messages per second that are skewed: the n-th has 1/n of the first."""
    weights = [1 / (rank + 1) ** exponent for rank in range(len(names))]
    random.shuffle(weights)
    return {name: total * each / sum(weights) for name, each in zip(names, weights, strict=True)}


class SimulatedBroker:
    """A broker that measures and reports. One of Apache's also reports its heartbeat bundle."""

    def __init__(
        self,
        broker_id: str,
        config: Config,
        random: Random,
        capacity: float,
        is_apache: bool = False,
    ) -> None:
        self.id = broker_id
        self._always = {f"pulsar/{broker_id}/0x00000000_0xffffffff"} if is_apache else set()
        self.config = config
        self.bundles: dict[str, int] = {}  # with the second when it got them
        self.usage = IDLE_USAGE
        self.written: LocalBrokerData | None = None
        self._random = random
        self._capacity = capacity
        self._phase = random.randrange(0, MINUTE_S, STEP_S)
        self._measured: dict[str, BundleStats] = {}
        self._left: dict[str, int] = {}

    def measure(self, at_s: int, rates: dict[str, float]) -> None:
        """Measure the minute before, once a minute."""
        if at_s % MINUTE_S != self._phase:
            return
        total = 0.0
        self._measured = {}
        for name, since_s in self.bundles.items():
            part = min((at_s - since_s) / MINUTE_S, 1.0)
            rate = part * rates[name] * max(self._random.gauss(1.0, NOISE), 0.0)
            total += rate
            self._measured[name] = stats_of(rate)
        for name, until_s in self._left.items():
            total += rates[name] * max(MINUTE_S - (at_s - until_s), 0) / MINUTE_S
        self._left = {}
        used = IDLE_USAGE + total / self._capacity + self._random.gauss(0.0, USAGE_NOISE)
        self.usage = min(max(used, 0.0), 1.0)

    def report(self, at_s: int) -> LocalBrokerData | None:
        """Return the report if it is due."""
        usage = 100 * CORES * self.usage
        now = LocalBrokerData(
            cpu=ResourceUsage(usage, 100.0 * CORES),
            last_update=at_s * 1_000,
            last_stats={
                name: self._measured.get(name, BundleStats())
                for name in self._always.union(self.bundles)
            },
            broker_version_string="4.2.4",
        )
        if self.written is not None and not is_report_due(
            self.written, now, at_s * 1_000, self.config
        ):
            return None
        self.written = read_report(to_json(now.fields()))
        assert self.written == now
        return now

    def unload(self, bundle: str, at_s: int) -> None:
        """Give a bundle up."""
        del self.bundles[bundle]
        self._measured.pop(bundle, None)
        self._left[bundle] = at_s


def stats_of(rate: float) -> BundleStats:
    """Return the stats of a bundle with one consumer for each producer."""
    half = rate / 2
    return BundleStats(half, half * MESSAGE_BYTES, half, half * MESSAGE_BYTES, 1, 1, 10)


class SimulatedCluster:
    """Brokers, the load of their bundles, and a leader."""

    def __init__(
        self,
        config: Config,
        rates: dict[str, float],
        brokers: list[SimulatedBroker],
        random: Random,
        rules: Rules = NO_RULES,
    ) -> None:
        self.config = config
        self.rates = rates
        self.rules = rules
        self.brokers = {each.id: each for each in brokers}
        self.load = ClusterLoad()
        self.placement = Placement(config, random)
        self.shedding = Shedding()
        self.at_s = 0
        self.moves: list[Moved] = []
        self._arriving: list[tuple[str, str]] = []

    def start(self) -> None:
        """Register all brokers and place all bundles, whose loads are unknown."""
        self._report()
        for name in self.rates:
            broker = choose(name, self.load, self.rules, self.placement, self.config)
            assert broker is not None
            self.load.place(name, broker, self.at_s * 1_000)
            self.brokers[broker].bundles[name] = self.at_s

    def add(self, broker: SimulatedBroker) -> None:
        """Add an idle broker."""
        self.brokers[broker.id] = broker

    def run(self, seconds: int) -> Iterator[list[Move]]:
        """Yield the moves of each check for `seconds`, after they are applied."""
        end_s = self.at_s + seconds
        while self.at_s < end_s:
            self.at_s += STEP_S
            for bundle, target in self._arriving:
                self.brokers[target].bundles[bundle] = self.at_s
            self._arriving = []
            self._report()
            interval_s = self.config.loadBalancerSheddingIntervalMinutes * MINUTE_S
            if self.at_s % interval_s == 0:
                yield self._shed()

    def loads(self) -> dict[str, float]:
        """Return the true load of each broker in messages per second, with what arrives there."""
        loads = {
            each.id: sum(self.rates[name] for name in each.bundles)
            for each in self.brokers.values()
        }
        for bundle, target in self._arriving:
            loads[target] += self.rates[bundle]
        return loads

    def imbalance(self) -> float:
        """Return the largest distance of a broker's load from the mean, relative to the mean."""
        loads = self.loads()
        mean = sum(loads.values()) / len(loads)
        return max(abs(each - mean) for each in loads.values()) / mean

    def _report(self) -> None:
        for broker in self.brokers.values():
            broker.measure(self.at_s, self.rates)
            report = broker.report(self.at_s)
            if report is not None:
                broker.written = report
                self.load.report(broker.id, report, self.config)

    def _shed(self) -> list[Move]:
        moves = shed(
            *(self.load, self.rules, self.placement, self.shedding),
            self.at_s * 1_000,
            self.config,
        )
        for each in moves:
            if each.bundle not in self.brokers[each.source].bundles:
                self.load.move_failed(*each)
                continue
            self.brokers[each.source].unload(each.bundle, self.at_s)
            self._arriving.append((each.bundle, each.target))
            self.moves.append(Moved(self.at_s, each))
        return moves
