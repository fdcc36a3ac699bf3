"""The policies of topics and namespaces, read as soon as a request needs them."""

from __future__ import annotations

from contextlib import suppress

from pyxbroker.base.errors import NamespaceNotFound, NotAllowed, PulsarError
from pyxbroker.base.log import get_logger
from pyxbroker.base.topic_name import NamespaceName, TopicName
from pyxbroker.broker.topics.topic_policies import TopicPolicies
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.metadata.store import MetadataError, MetadataStore
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.policies.grants import forget_topic, has_grants
from pyxbroker.policies.namespaces import NamespacePolicies
from pyxbroker.policies.records import Change, Fields, change_namespace
from pyxbroker.policies.values import Policies

log = get_logger("pyxbroker.topics")


class PolicyAccess:
    """Policies of namespaces, and those that topics set for themselves (their records)."""

    def __init__(
        self, store: MetadataStore, cache: MetadataCache, policies: NamespacePolicies
    ) -> None:
        self._store = store
        self._cache = cache
        self._policies = policies
        self._records: TopicPolicies | None = None  # None: topics have no policies of their own

    def set_records(self, records: TopicPolicies) -> None:
        """Let topics have policies of their own."""
        self._records = records

    async def of_namespace(self, name: NamespaceName) -> tuple[Policies, int]:
        """Return the policies of topics without records, and the number of changes to records.

        Raises NamespaceNotFound for a namespace that does not exist or is being deleted,
        ServiceNotReady.
        """
        await self._policies.check_open(str(name))
        policies = await self._policies.of_namespace(str(name))
        if self._records is not None and not self._records.is_loaded(str(name)):
            await self._records.load(name)
        return policies, self._policies.changes(str(name))

    async def of_topic(self, name: TopicName) -> Policies:
        """Return the policies of a topic.

        Raises NamespaceNotFound for a namespace that does not exist or is being deleted.
        """
        if await self.lacks_records(name):
            await self.of_namespace(name.namespace_name)
        return await self._policies.get_open(name)

    async def of_existing(self, name: TopicName) -> Policies:
        """Return the policies of a topic, also while its namespace is being deleted."""
        if await self.lacks_records(name):
            await self.of_namespace(name.namespace_name)
        return await self._policies.get(name)

    async def of_opening(self, name: TopicName) -> Policies:
        """Return the policies of a topic by the records that were read before."""
        return await self._policies.get(name)

    async def lacks_records(self, name: TopicName) -> bool:
        """Return True if the records of the topic's namespace have yet to be read."""
        # System topics have no records, and one of them stores those of the other topics.
        return (
            self._records is not None
            and not (name.is_system or self._records.is_loaded(name.namespace))
            and not await self._policies.is_deleted(name.namespace)
        )

    async def namespace_fields(self, name: str) -> Fields:
        """Return the fields of a namespace's policies in metadata. Callers must not change them.

        Raises NamespaceNotFound, MetadataStoreError.
        """
        return await self._policies.record(name)

    async def change_namespace(self, name: str, change: Change) -> None:
        """Change a namespace's policies in metadata. Raises as change_namespace in records.py."""
        await change_namespace(self._store, self._cache, name, change)

    @property
    def has_records(self) -> bool:
        """Return True if topics may have policies of their own."""
        return self._records is not None

    @property
    def records(self) -> TopicPolicies:
        """The policies that topics set for themselves. Raises NotAllowed where they must not."""
        if self._records is None:
            raise NotAllowed(
                "Topic level policies is disabled, to enable the topic level policy and retry."
            )
        return self._records

    def may_have_records(self, name: TopicName) -> bool:
        """Return True if the broker has read policies of a topic, which may not exist."""
        return self._records is not None and self._policies.has_records(name)

    # --- deletion -----------------------------------------------------------------------------

    async def forget_grants(self, name: TopicName) -> None:
        """Delete the rights that were granted on a topic that is being deleted. Raises
        MetadataError.
        """
        with suppress(NamespaceNotFound):
            if has_grants(await self.namespace_fields(name.namespace), str(name)):
                await self.change_namespace(
                    name.namespace, lambda fields: forget_topic(fields, str(name))
                )

    async def forget_records(self, name: TopicName) -> None:
        """Delete the records of a topic, partitioned or not, that was deleted."""
        if self._records is None:
            return
        try:
            await self._records.forget(name)
        except (PulsarError, ManagedLedgerError, LedgerError, MetadataError) as error:
            # A topic that is created with this name deletes them first.
            log.warning("the policies of a topic were not deleted", topic=name, error=error)

    async def on_deleted(self, name: TopicName) -> None:
        """Drop the records of a deleted topic. A topic of change events stores those of others."""
        if self._records is not None and name.is_change_events:
            await self._records.on_deleted(name)
        else:
            await self.forget_records(name)

    def forget_namespace(self, name: str) -> None:
        """Forget the records of a namespace that is being deleted and has no topics left."""
        if self._records is not None:
            self._records.forget_namespace(name)

    async def close(self) -> None:
        if self._records is not None:
            await self._records.close()
        self._policies.close()
