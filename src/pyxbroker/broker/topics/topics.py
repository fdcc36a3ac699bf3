"""The topics of a broker: their registry, opening, deletion and periodic work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from pyxbroker.broker.broker_limits import broker_limits
from pyxbroker.broker.dispatch.unacked import BrokerUnacked
from pyxbroker.broker.topics.deletion import TopicDeletion
from pyxbroker.broker.topics.inactive_topics import InactiveTopics
from pyxbroker.broker.topics.loading import TopicLoader
from pyxbroker.broker.topics.partition_records import PartitionRecords
from pyxbroker.broker.topics.partitioned_topics import PartitionedTopics
from pyxbroker.broker.topics.policy_access import PolicyAccess
from pyxbroker.broker.topics.registry import TopicRegistry
from pyxbroker.broker.topics.sweep import Sweep
from pyxbroker.broker.topics.topic_policies import TopicPolicies
from pyxbroker.broker.topics.upkeep import Upkeep
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.metadata.store import MetadataStore
from pyxbroker.policies.namespaces import NamespacePolicies
from pyxbroker.policies.table import of_broker
from pyxbroker.settings.config import Config
from pyxbroker.turn import Turn

if TYPE_CHECKING:
    from pyxbroker.broker.topics.bookie_affinity import BookieAffinity
    from pyxbroker.broker.transactions.snapshots import Snapshots
    from pyxbroker.mledger.entry_cache import EntryCache
    from pyxbroker.schemas.registry import SchemaRegistry
    from pyxbroker.schemas.schema_counts import NamespaceCounts


class Topics:
    """The parts that serve topics, each created with those parts that it calls."""

    snapshots: Snapshots | None = None
    """The snapshots of transaction buffers; None: transactions are switched off."""

    def __init__(
        self,
        config: Config,
        store: MetadataStore,
        cache: MetadataCache,
        ledgers: LedgerClient,
        turn: Turn,
        entry_cache: EntryCache | None = None,
    ) -> None:
        self._config = config
        self._store = store
        self._ledgers = ledgers
        self._turn = turn
        self._cache = cache
        broker = of_broker(config)
        self._policies = NamespacePolicies(broker, store, cache, turn.run, config.clusterName)
        unacked_max = broker.unacked_in_broker_max
        unacked = BrokerUnacked(unacked_max, turn.dispatching) if unacked_max else None
        self.broker_limits = broker_limits(config, turn)
        self.registry = registry = TopicRegistry(store, self._policies)
        self.policies = policies = PolicyAccess(store, cache, self._policies)
        self.partitions = partitions = PartitionRecords(store, cache, registry)
        self.upkeep = Upkeep(registry.__iter__)
        self.loader = loader = TopicLoader(
            *(config, store, ledgers, turn, registry, policies, partitions),
            broker_limits=self.broker_limits,
            unacked=unacked,
            on_ttl_changed=self.upkeep.expire_soon,
            affinity=_affinity_of(config, cache, ledgers),
            entry_cache=entry_cache,
        )
        if config.transactionCoordinatorEnabled:
            from pyxbroker.broker.transactions.pending_ack_handle import PendingAckStores
            from pyxbroker.broker.transactions.snapshots import Snapshots
            from pyxbroker.broker.transactions.topic_buffer import TransactionBuffers

            loader.pending_ack_stores = PendingAckStores(config, entry_cache, loader.check_owned)
            is_segmented = config.transactionBufferSegmentedSnapshotEnabled
            segment_bytes = config.transactionBufferSnapshotSegmentSize if is_segmented else None
            self.snapshots = Snapshots(
                config.clusterName, loader, lambda: self.schemas, segment_bytes
            )
            loader.transaction_buffers = TransactionBuffers(config, self.snapshots)
        if config.topicLevelPoliciesEnabled and config.systemTopicEnabled:
            records = TopicPolicies(config.clusterName, loader, partitions, self._policies)
            policies.set_records(records)
            registry.on_opened.append(records.on_opened)
            registry.on_closed.append(records.on_closed)
        self.deletion = deletion = TopicDeletion(
            store, registry, loader, policies, partitions, lambda: self.schemas
        )
        self.partitioned = PartitionedTopics(
            config, store, partitions, registry, loader, deletion, policies
        )
        self.inactive = InactiveTopics(
            config, registry, loader, deletion, policies, self.partitioned
        )
        self.check_space: Callable[[], None] = lambda: None
        """A function that raises the error for clients while the disk is full."""
        self.sweep = Sweep(
            store, registry, loader, deletion, self.inactive, policies, ledgers.started_ms
        )

    @cached_property
    def schemas(self) -> SchemaRegistry:
        """The schemas of all topics. Partitions share one, and so do topics of both domains."""
        # Imported with the first schema: most brokers have none.
        from pyxbroker.schemas.registry import SchemaRegistry

        return SchemaRegistry(self._store, self._ledgers, self.check_space)

    @property
    def schema_counts(self) -> Mapping[str, NamespaceCounts]:
        """Counters of operations on schemas, by namespace."""
        return self.schemas.counts.namespaces if "schemas" in self.__dict__ else {}

    def on_settings(self) -> None:
        """Apply changed settings to all topics."""
        self._policies.set_broker(of_broker(self._config))
        self.loader.on_settings()
        if self.broker_limits.set_rates(self._config, self._turn):
            self.upkeep.on_broker_rates()

    def forget_namespace(self, name: str) -> None:
        """Forget a namespace that is being deleted and has no topics left."""
        self.loader.counts.forget(name)
        self.sweep.forget(name)
        self.policies.forget_namespace(name)
        if self.snapshots is not None:
            self.snapshots.forget_namespace(name)

    async def close(self) -> None:
        """Close every topic, and end all periodic work on topics."""
        self.loader.stop()
        self.upkeep.close()
        self.sweep.close()
        await self.loader.wait_all_opened()
        await self.deletion.close_all()
        await self.policies.close()
        self.loader.counts.close()
        self._cache.close()


def _affinity_of(
    config: Config, cache: MetadataCache, ledgers: LedgerClient
) -> BookieAffinity | None:
    """Return the affinities of topics; None if all ledgers are on the same bookies."""
    if not ledgers.placement.has_groups:
        return None
    from pyxbroker.broker.topics.bookie_affinity import BookieAffinity

    return BookieAffinity(cache, config)
