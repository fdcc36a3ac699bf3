"""The groups of bookies that the ledgers of a topic belong to: the bookie affinity group of its
namespace, in the namespace's record of this cluster (Pulsar's LocalPolicies).

A changed group applies to topics that are opened afterwards, as in Pulsar.
"""

from __future__ import annotations

from pyxbroker.base.topic_name import TopicName
from pyxbroker.ledger.placement import ANY_GROUP, Affinity
from pyxbroker.metadata import paths
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.policies.records import decode, fields_of
from pyxbroker.settings.config import Config

FIELD = "bookieAffinityGroup"


class BookieAffinity:
    """The affinities of topics, read through the cache of metadata."""

    def __init__(self, cache: MetadataCache, config: Config) -> None:
        self._cache = cache
        self._is_strict = config.strictBookieAffinityEnabled

    async def of(self, name: TopicName) -> Affinity | None:
        """Return the affinity of a topic's ledgers, or None.

        Raises MetadataError, and MetadataStoreError for a record that cannot be read.
        """
        path = paths.local_policies(name.namespace)
        value = await self._cache.get(path)
        group = None
        if value is not None:
            fields = fields_of(path, value, lambda value: self._cache.parsed(path, value, decode))
            group = fields.get(FIELD)
        if isinstance(group, dict):
            return Affinity(
                str(group.get("bookkeeperAffinityGroupPrimary") or ""),
                str(group.get("bookkeeperAffinityGroupSecondary") or ""),
            )
        if not self._is_strict:
            return None
        return ANY_GROUP if name.is_system else Affinity()
