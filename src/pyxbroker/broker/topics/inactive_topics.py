"""Deletion of topics that no client has used for longer than a policy allows."""

from __future__ import annotations

from pyxbroker.base.errors import PulsarError
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import in_slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics.deletion import TopicDeletion
from pyxbroker.broker.topics.loading import TopicLoader
from pyxbroker.broker.topics.partitioned_topics import PartitionedTopics
from pyxbroker.broker.topics.policy_access import PolicyAccess
from pyxbroker.broker.topics.registry import TopicRegistry
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.metadata.store import MetadataError
from pyxbroker.settings.config import Config

log = get_logger("pyxbroker.topics")

DELETING_POLICIES = {"inactive_topics", "retention"}


class InactiveTopics:
    """Check of open topics by the policy inactive_topics."""

    def __init__(
        self,
        config: Config,
        registry: TopicRegistry,
        loader: TopicLoader,
        deletion: TopicDeletion,
        policies: PolicyAccess,
        partitioned: PartitionedTopics,
    ) -> None:
        self._config = config
        self._registry = registry
        self._loader = loader
        self._deletion = deletion
        self._policies = policies
        self._partitioned = partitioned

    async def delete_all(self) -> None:
        """Delete all inactive topics. The broker calls this at intervals."""
        async for topic in in_slices(self._registry):
            try:
                await self.delete_if_inactive(topic)
            except (PulsarError, MetadataError) as error:
                log.warning("an inactive topic was not deleted", topic=topic.name, error=error)
            except Exception as error:
                log.failure("an inactive topic was not deleted", error, topic=topic.name)

    async def delete_if_inactive(self, topic: Topic) -> None:
        """Delete a topic if it is inactive. Raises as TopicDeletion.delete does."""
        policies = await self._policies.of_existing(topic.name)
        if policies.refused & DELETING_POLICIES:
            # These policies cannot be read, as the log says. No topic is deleted by a guess.
            return
        if policies.inactive_topics.delete and not topic.fenced and topic.is_inactive(policies):
            await self._deletion.delete(topic)
            log.info("an inactive topic was deleted", topic=topic.name)
            self._loader.note_deleted_as_inactive(topic.name)
            await self._forget_partitions(topic.name)

    async def _forget_partitions(self, name: TopicName) -> None:
        """Delete the record of a partitioned topic whose last partition was deleted."""
        config = self._config
        if not name.is_partitioned or (
            not config.brokerDeleteInactivePartitionedTopicMetadataEnabled
        ):
            return
        whole = TopicName.get(name.partitioned_topic_name)
        try:
            await self._partitioned.forget_unused(whole)
        except (PulsarError, MetadataError) as error:
            log.warning(
                "the record of a partitioned topic was not deleted", topic=whole, error=error
            )
