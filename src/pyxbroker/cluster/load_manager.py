"""The load manager of one broker of a cluster: its load reports, the choice of brokers for bundles,
and the duties of a leader.

What is decided follows from the load reports alone (placement.py, shedding.py, splitting.py). Each
periodic task is one of its own, so that one that fails or waits stops no other. The leader moves or
splits a bundle by a REST request to its owner, as Pulsar's does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Set
from random import Random
from typing import TYPE_CHECKING

from pyxbroker.base.compact_json import to_short_json
from pyxbroker.base.errors import NamespaceNotFound
from pyxbroker.base.log import get_logger
from pyxbroker.broker.listeners import Addresses
from pyxbroker.cluster.addresses import OF_BROKER, addresses_of, read_fields
from pyxbroker.cluster.cluster_load import ClusterLoad
from pyxbroker.cluster.load_report import (
    BundleStats,
    LocalBrokerData,
    gains_and_losses,
    is_report_due,
)
from pyxbroker.cluster.measured_load import stats_by_bundle
from pyxbroker.cluster.placement import Placement, choose, namespace_of
from pyxbroker.cluster.rules import RulesReader
from pyxbroker.cluster.shedding import Move, Shedding, is_of_one_broker, shed
from pyxbroker.cluster.splitting import Split, bundles_to_split
from pyxbroker.cluster.time_averages import BundleData, broker_averages, of_quota, read_bundle_data
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import NotFound, SessionEvent, Unsubscribe

if TYPE_CHECKING:
    from pyxbroker.broker.broker import Broker
    from pyxbroker.cluster.brokers import RegisteredBrokers
    from pyxbroker.cluster.election import Election
    from pyxbroker.cluster.ownership import BundleName, BundleOwnership
    from pyxbroker.cluster.registry import BrokerRegistration
    from pyxbroker.stats.load import Usage

log = get_logger("pyxbroker.load")

MINUTE_S = 60
CONNECTED = (SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED)

MeasureHost = Callable[[], "Usage | None"]


class OwnerFailed(Exception):
    """Raised when the owner of a bundle did not carry a request out."""


Put = Callable[[Addresses, str], Awaitable[None]]


class LoadManager:
    """The part of one broker in the balance of the load.

    `report` is the report of this broker without load. `measure_host` returns the use of the
    machine, and may block. `put` sends a PUT request to the web port of a broker, with a path and a
    query; it raises OwnerFailed. `unreached` returns the brokers that this one does not reach: they
    get bundles only where no other broker may serve them.
    """

    def __init__(
        self,
        broker: Broker,
        brokers: RegisteredBrokers,
        owned: BundleOwnership,
        election: Election,
        registration: BrokerRegistration,
        report: LocalBrokerData,
        measure_host: MeasureHost,
        put: Put,
        unreached: Callable[[], Set[str]],
    ) -> None:
        self.load = ClusterLoad()
        self._broker = broker
        self._config = broker.config
        self._store = broker.metadata
        self._brokers = brokers
        self._owned = owned
        self._election = election
        self._registration = registration
        self._rules = RulesReader(broker)
        self._placement = Placement(broker.config, Random())
        self._shedding = Shedding()
        self._measure_host = measure_host
        self._put = put
        self._unreached = unreached
        self._written = report
        self._measured = report  # with the use of the host
        self._of_bundles: dict[str, BundleStats] = {}
        self._is_connected = True
        self._unsubscribe: Unsubscribe | None = None

    async def start(self) -> None:
        """Begin to take the reports of all brokers, and measure the host for the first report of
        this one. Call it before the broker registers.
        """
        self._unsubscribe = self._store.on_session(self._on_session_event)
        self._brokers.listen(self._take)
        self._take()
        await self._measure_use()
        # The CPU was used for the start of the process, and a small change is not reported.
        cpu = self._measured.cpu._replace(usage=0.0)
        self._measured = self._written = self._measured._replace(cpu=cpu)
        await self._registration.update(self._written.fields())

    def work(self) -> None:
        """Begin with the periodic tasks."""
        config, repeat = self._config, self._broker.repeat
        repeat(
            "measured load",
            lambda: config.loadBalancerHostUsageCheckIntervalMinutes * MINUTE_S,
            self.measure,
        )
        repeat(
            "load report",
            lambda: config.loadBalancerReportUpdateMinIntervalMillis / 1000,
            self.report,
        )

        def shedding_interval_s() -> float:
            return config.loadBalancerSheddingIntervalMinutes * MINUTE_S

        repeat("moves of bundles", shedding_interval_s, self.move_bundles)
        repeat("splits of bundles", shedding_interval_s, self.split_bundles)
        repeat(
            "average loads",
            config.loadBalancerResourceQuotaUpdateIntervalMinutes * MINUTE_S,
            self.store_averages,
        )

    def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()

    def _on_session_event(self, event: SessionEvent) -> None:
        self._is_connected = event in CONNECTED

    def _take(self) -> None:
        """Take the reports of all registered brokers."""
        for broker_id, report in self._brokers.reports.items():
            try:
                self.load.report(broker_id, report.load, self._config)
            except Exception as error:
                # The list of brokers is followed on, and so are the other reports.
                log.failure("a load report was not taken", error, broker=broker_id)
        self.load.keep(self._brokers.reports)

    @property
    def _leads(self) -> bool:
        return self._is_connected and self._election.is_leader

    # --- the report of this broker ------------------------------------------------------------

    async def measure(self) -> None:
        """Measure the use of the host and the load of the bundles."""
        await self._measure_use()
        broker = self._broker
        self._of_bundles = await stats_by_bundle(
            broker.topics.registry, broker.namespaces.boundaries
        )

    async def _measure_use(self) -> None:
        # In a thread: the kernel is slow to list thousands of open files.
        usage = await asyncio.get_running_loop().run_in_executor(None, self._measure_host)
        if usage is not None:
            self._measured = self._measured.with_usage(
                (usage.cpu_percent, usage.cpu_percent_max),
                (usage.memory_mib, usage.memory_mib_max),
                (usage.kbit_in, usage.kbit_out),
                usage.kbit_max,
            )

    async def report(self) -> None:
        """Write the load report if it is due."""
        if not self._is_connected:
            return
        of_bundles = self._of_bundles
        now = self._measured._replace(
            last_update=_now_ms(),
            last_stats={
                str(bundle): of_bundles.get(str(bundle), BundleStats())
                for bundle in self._owned.owned()
                if not is_of_one_broker(bundle.namespace)
            },
        )
        if not is_report_due(self._written, now, now.last_update, self._config):
            return
        gains, losses = gains_and_losses(self._written, now)
        now = now._replace(last_bundle_gains=gains, last_bundle_losses=losses)
        await self._registration.update(now.fields())
        self._written = now

    # --- placement ----------------------------------------------------------------------------

    async def choose(self, bundle: BundleName, excluded: str, is_persistent: bool) -> str | None:
        """Return the broker for a bundle without an owner; None if no broker may serve it.

        `excluded` is a broker that does not take bundles, or empty. Raises MetadataError.
        """
        namespace, name = bundle.namespace, str(bundle)
        if is_of_one_broker(namespace):
            named = namespace.partition("/")[2]
            return named if named in self.load.brokers else None
        if name not in self.load.bundles:
            data = await self._stored(name)
            if data is not None:
                self.load.set_data(name, data)
        rules = await self._rules.of_namespace(namespace, self._served())
        chosen = None
        for left_out in ({excluded} | self._unreached(), {excluded}):
            if chosen is None:
                with self.load.without(left_out):
                    chosen = choose(
                        *(name, self.load, rules, self._placement, self._config),
                        is_persistent=is_persistent,
                    )
        if chosen is not None:
            self.load.place(name, chosen, _now_ms())
        return chosen

    def plan(self, bundle: BundleName, broker_id: str) -> None:
        """Choose a registered broker as the next one of a bundle."""
        self.load.plan(str(bundle), broker_id, _now_ms())

    async def _stored(self, bundle: str) -> BundleData | None:
        """Return the average load of a bundle as a leader stored it, or as its quota sets it."""
        averages, quota = await asyncio.gather(
            self._store.get(paths.bundle_data(bundle)),
            self._store.get(paths.resource_quotas(bundle)),
        )
        if averages is not None:
            return read_bundle_data(read_fields(averages.value))
        return None if quota is None else of_quota(read_fields(quota.value))

    def _served(self) -> set[str]:
        """Return the namespaces with bundles at brokers."""
        brokers = self.load.brokers.values()
        return {namespace_of(bundle) for each in brokers for bundle in each.bundles()}

    # --- the leader ---------------------------------------------------------------------------

    async def move_bundles(self) -> None:
        """Move bundles from loaded brokers to others, if this broker leads."""
        if not self._leads:
            return
        rules = await self._rules.of_all(self._served())
        with self.load.without(self._unreached()):
            moves = shed(
                *(self.load, rules, self._placement, self._shedding, _now_ms(), self._config)
            )
        of_sources: dict[str, list[Move]] = {}
        for each in moves:
            of_sources.setdefault(each.source, []).append(each)
        await asyncio.gather(*map(self._move_all, of_sources.values()))

    async def _move_all(self, moves: list[Move]) -> None:
        """Move bundles of one broker, one after the other."""
        for move in moves:
            bundle, source, target = move
            try:
                await self._ask(source, bundle, "unload")
            except OwnerFailed as error:
                self.load.move_failed(bundle, source, target)
                log.warning("a bundle was not moved", **move._asdict(), error=error)
            else:
                # Its next lookup finds no owner, and the leader names the target.
                log.info("a bundle was moved", **move._asdict())

    async def split_bundles(self) -> None:
        """Split large bundles, if this broker leads."""
        if not self._leads:
            return
        served = self._served()
        rules = await self._rules.of_all(served)
        counts = await self._counts(served)
        for each in bundles_to_split(
            *(self.load, rules, lambda name: counts.get(name, 0), _now_ms(), self._config)
        ):
            await self._split(each)

    async def _counts(self, namespaces: Iterable[str]) -> dict[str, int]:
        """Return the number of bundles of each namespace. A deleted one has as many as allowed."""
        counts = {}
        for each in namespaces:
            try:
                counts[each] = len(await self._broker.namespaces.boundaries(each)) - 1
            except NamespaceNotFound:
                counts[each] = self._config.loadBalancerNamespaceMaximumBundles
        return counts

    async def _split(self, split: Split) -> None:
        request = f"split?unload={str(split.is_unloaded).lower()}"
        try:
            await self._ask(split.broker_id, split.bundle, request)
        except OwnerFailed as error:
            log.warning("a large bundle was not split", bundle=split.bundle, error=error)
        else:
            log.info("a large bundle was split", bundle=split.bundle, broker=split.broker_id)

    async def _ask(self, broker_id: str, bundle: str, request: str) -> None:
        """Send a request about a bundle to its broker. Raises OwnerFailed."""
        if not self._leads:
            raise OwnerFailed("this broker leads no more")
        report = self._brokers.reports.get(broker_id)
        if report is None:
            raise OwnerFailed(f"broker {broker_id} is not registered")
        addresses = addresses_of(report.fields, OF_BROKER)
        await self._put(addresses, f"/admin/v2/namespaces/{bundle}/{request}")

    async def store_averages(self) -> None:
        """Store the average loads for later leaders, if this broker leads."""
        inactive = self.load.forget_inactive()
        if not self._leads:
            return
        for name in self.load.largest(self._config):
            if not is_of_one_broker(namespace_of(name)):
                fields = self.load.data(name).fields()
                await self._store.put(paths.bundle_data(name), to_short_json(fields))
        for name in inactive:
            await self._delete(paths.bundle_data(name))
        for broker_id, broker in self.load.brokers.items():
            fields = broker_averages(self.load.data(each) for each in broker.bundles())
            await self._store.put(paths.broker_averages(broker_id), to_short_json(fields))
        for broker_id in await self._store.children(paths.BROKER_AVERAGES):
            if broker_id not in self.load.brokers:
                await self._delete(paths.broker_averages(broker_id))

    async def _delete(self, path: str) -> None:
        with contextlib.suppress(NotFound):
            await self._store.delete(path)


def _now_ms() -> int:
    return int(time.time() * 1000)
