"""The part of a broker that makes it one of the brokers of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pyxbroker import __version__
from pyxbroker.base import bundles
from pyxbroker.base.bundles import Bundle, bundle_of
from pyxbroker.base.errors import PulsarError, ServiceNotReady
from pyxbroker.base.log import get_logger
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.broker import Broker
from pyxbroker.broker.listeners import Addresses
from pyxbroker.broker.lookup import Redirect
from pyxbroker.broker.peers import Ask, PeerRefused
from pyxbroker.cluster.addresses import OF_BROKER, addresses_of, owner_value
from pyxbroker.cluster.brokers import RegisteredBrokers
from pyxbroker.cluster.duties import Duties
from pyxbroker.cluster.election import Election, Leader
from pyxbroker.cluster.handover import Handovers
from pyxbroker.cluster.load_manager import LoadManager, OwnerFailed
from pyxbroker.cluster.load_report import starting_report
from pyxbroker.cluster.lookup import ClusterOwnership
from pyxbroker.cluster.ownership import HERE, BundleName, BundleOwnership
from pyxbroker.cluster.peer_watch import PeerWatch
from pyxbroker.cluster.peers import ClusterPeers
from pyxbroker.cluster.registry import AnotherBroker, BrokerRegistration, check_load_manager
from pyxbroker.cluster.rules import RulesReader
from pyxbroker.cluster.shedding import heartbeat_namespace
from pyxbroker.cluster.topics_elsewhere import ClusterTopics
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataError, MetadataStore
from pyxbroker.stats.load import Load

log = get_logger("pyxbroker.cluster")

PULSAR_VERSION = "4.2.4"
"""The version that this broker registers: other brokers compare versions."""
RESIGN_TIMEOUT_S = 1.0


class ClusterMember:
    """The registration of a broker, its bundles, and its part in the election of the leader."""

    def __init__(self, broker: Broker, metadata: MetadataStore) -> None:
        self.broker = broker
        self._metadata = metadata
        report = starting_report(broker.listeners, PULSAR_VERSION, int(time.time() * 1000))
        report = report._replace(pyxbroker_version=__version__)
        self.registration = BrokerRegistration(
            metadata, broker.broker_id, report.fields(), broker.fail
        )
        self.registered = RegisteredBrokers(metadata)
        self.owned = BundleOwnership(metadata, owner_value(broker.listeners), self._close_bundle)
        url = broker.addresses.web_url or broker.addresses.web_url_tls
        self.election = Election(metadata, Leader(broker.broker_id, url))
        boundaries = broker.namespaces.boundaries
        self.duties = Duties(metadata, boundaries, self.owned, self.election)
        self._taking_back: asyncio.Task[None] | None = None
        self.requests = ClusterPeers(broker.config, broker.addresses)
        self.watch = PeerWatch(
            *(metadata, broker.broker_id, self.registered, self.election, self.requests),
            broker.config.brokerFailureTimeoutMs / 1000,
        )
        self.load_manager = LoadManager(
            *(broker, self.registered, self.owned, self.election, self.registration, report),
            Load(nic_gbit=broker.config.loadBalancerOverrideBrokerNicSpeedGbps).usage,
            self._put,
            self.watch.unreached,
        )
        self._handovers: Handovers | None = None

    async def check(self, on_wait: Callable[[str], None]) -> None:
        """Check that this broker can join the cluster. Raises StartRefused and MetadataError."""
        check_load_manager(self.broker.config.loadManagerClassName)
        await self.registration.check_alone(on_wait)

    async def join(self) -> None:
        """Take part in the cluster: from now on this broker gets bundles. Raises AnotherBroker and
        MetadataError.
        """
        broker, metadata = self.broker, self._metadata
        # A migration of the metadata to another store waits for all participants. This broker does
        # not take part in one, so its node makes the migration fail instead of passing it by.
        await metadata.put(paths.MIGRATION_PARTICIPANT_PREFIX, b"", ephemeral=True, sequential=True)
        await self.registered.start()
        self.owned.start()
        self.election.start()
        await self.load_manager.start()
        broker.ownership = ClusterOwnership(
            broker.broker_id,
            broker.namespaces.boundaries,
            self.owned,
            self.election,
            self.registered,
            self.load_manager.choose,
            self.load_manager.plan,
            RulesReader(broker).isolation_reason,
        )
        self._handovers = Handovers(
            *(broker.ownership, broker.namespaces.boundaries, self.owned, self.requests),
            broker.listeners,
        )
        broker.topics.loader.check_served = broker.check_served
        broker.topics.sweep.bundles = self.duties.bundles
        if broker.topics.policies.has_records:
            broker.topics.policies.records.publish_elsewhere = self.requests.publish
        if broker.topics.snapshots is not None:
            broker.topics.snapshots.publish_elsewhere = self.requests.publish
        broker.topics.deletion.elsewhere = ClusterTopics(broker.ownership, self.requests)
        broker.peers = self.requests
        broker.cluster = self
        await self.registration.acquire()
        # As in Pulsar, the namespace with the name of this broker is never another broker's.
        heartbeat = BundleName(heartbeat_namespace(broker.broker_id), str(bundles.WHOLE))
        if await self.owned.acquire(heartbeat) != HERE:
            raise AnotherBroker(
                f"Another broker owns {heartbeat}, which is named after this broker. Choose another"
                " advertisedAddress or web port for one of them."
            )
        self._taking_back = asyncio.ensure_future(self.owned.take_back())
        if broker.config.brokerFailureTimeoutMs > 0:
            self.watch.start()

    # --- as ClusterView (broker/peers.py) describes ---------------------------------------------

    def brokers(self) -> dict[str, Addresses]:
        found = self.registered.reports.items()
        return {name: addresses_of(report.fields, OF_BROKER) for name, report in found}

    def leader(self) -> Leader | None:
        return self.election.leader

    def owned_bundles(self) -> list[tuple[str, str]]:
        return [(each.namespace, each.range) for each in self.owned.owned()]

    def peers(self) -> dict[str, Any]:
        return self.watch.sights()

    def removed_peers(self) -> int:
        return self.watch.removed

    # --- the end --------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Give up all bundles, one after the other; other brokers take them."""
        self.watch.close()
        await self.registration.release()
        await self.owned.release_all()
        if self._handovers is not None:
            await self._handovers.finish()

    async def close(self) -> None:
        """End what is bound to the session."""
        self.watch.close()
        self.requests.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.election.close(), RESIGN_TIMEOUT_S)
        if self._taking_back is not None:
            self._taking_back.cancel()
        await self.owned.close()
        await self.registered.close()
        self.load_manager.close()
        await self.registration.release()

    async def _close_bundle(self, bundle: BundleName) -> Callable[[], None]:
        parsed = bundles.parse(bundle.range)
        stays = await self._stays(bundle.namespace, parsed)
        topics = await self.broker.namespaces.close_bundle(bundle.namespace, parsed, stays)
        assert self._handovers is not None  # the broker gets bundles when it has joined
        return partial(self._handovers.begin, bundle, topics)

    async def _stays(self, namespace: str, bundle: Bundle) -> Callable[[TopicName], bool]:
        """Return a function that returns True for a topic that stays at this broker although it is
        in a bundle that is given up: the bundle was split, and this broker owns the topic's part.
        """
        try:
            boundaries = await self.broker.namespaces.boundaries(namespace)
        except (PulsarError, MetadataError):
            return lambda topic: False

        def stays(topic: TopicName) -> bool:
            now = bundle_of(topic, boundaries)
            return now != bundle and self.owned.is_owned(BundleName(namespace, str(now)))

        return stays

    async def _put(self, to: Addresses, path: str) -> None:
        """Send a PUT request to a broker. Raises OwnerFailed."""
        try:
            await self.requests.ask(Redirect(to, False), Ask("PUT", path))
        except (PeerRefused, ServiceNotReady) as error:
            raise OwnerFailed(str(error)) from error
