"""The topics that are open in this broker, and the topics that exist at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pyxbroker.base.slices import in_slices
from pyxbroker.base.system_cursors import DEDUPLICATION_CURSOR
from pyxbroker.base.topic_name import TopicName
from pyxbroker.base.url_encoding import decode
from pyxbroker.broker.topics.shards import Shards
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore
from pyxbroker.policies.namespaces import NamespacePolicies


class TopicRegistry:
    """Open topics by name. Iteration yields all of them, fenced ones included."""

    def __init__(self, store: MetadataStore, policies: NamespacePolicies) -> None:
        self._store = store
        self._policies = policies
        self._topics: Shards[TopicName, Topic] = Shards()
        self.persistent_count = 0  # open topics that have a managed ledger
        self.on_opened: list[Callable[[Topic], None]] = []
        """Watchers that are called with each topic that was opened."""
        self.on_closed: list[Callable[[Topic], None]] = []
        """Watchers that are called with each topic that was closed or deleted."""

    def __iter__(self) -> Iterator[Topic]:
        return self._topics.values()

    def __len__(self) -> int:
        return len(self._topics)

    def add(self, topic: Topic) -> None:
        """Add a topic that was opened, and let it follow its policies."""
        self._topics[topic.name] = topic
        self.persistent_count += topic.name.is_persistent
        self._policies.follow(topic.name.namespace, topic)
        for on_opened in self.on_opened:
            on_opened(topic)

    def remove(self, topic: Topic) -> None:
        """Remove a closed or deleted topic, unless another topic has taken its name."""
        self._policies.unfollow(topic.name.namespace, topic)
        if self._topics.get(topic.name) is topic:
            self._topics.pop(topic.name)
            self.persistent_count -= topic.name.is_persistent
            for on_closed in self.on_closed:
                on_closed(topic)

    def find(self, name: TopicName) -> Topic | None:
        """Return the topic of a name, even while it is being closed or deleted."""
        return self._topics.get(name)

    def loaded(self, name: TopicName) -> Topic | None:
        """Return the topic of a name if it is open and serves clients."""
        topic = self._topics.get(name)
        return None if topic is None or topic.fenced else topic

    def in_namespace(self, namespace: str) -> list[TopicName]:
        """Return the names of the open topics of a namespace, fenced ones included."""
        return self._policies.followers(namespace)

    async def open_names(self, namespace: str, domain: str) -> list[TopicName]:
        """Return the names of the topics of a namespace and domain that serve clients."""
        found = []
        async for name in in_slices(self.in_namespace(namespace)):
            if name.domain == domain and self.loaded(name) is not None:
                found.append(name)
        return found

    async def exists(self, name: TopicName) -> bool:
        """Return True if a topic that is not partitioned exists, open or not."""
        if self.loaded(name) is not None:
            return True
        if not name.is_persistent:
            return False
        return await self._store.exists(paths.managed_ledger(name.managed_ledger_name))

    async def subscription_names(self, name: TopicName) -> list[str]:
        """Return the names of the durable subscriptions of a persistent topic, open or not."""
        topic = self.loaded(name)
        if topic is not None:
            return list(topic.subscriptions)
        [found] = await self.subscriptions_of_closed([name])
        return found

    async def subscriptions_of_closed(self, topics: Sequence[TopicName]) -> list[list[str]]:
        """Return the names of the durable subscriptions of each of several persistent topics.

        The names come from metadata in one request. For open topics the result is the same.
        """
        nodes = [paths.managed_ledger(topic.managed_ledger_name) for topic in topics]
        found: list[list[str]] = []
        async for cursors in in_slices(await self._store.children_all(nodes)):
            if isinstance(cursors, BaseException):
                raise cursors
            names: list[str] = []
            found.append(names)
            async for cursor in in_slices(cursors):
                # Decoding a long name takes a quarter of a millisecond.
                name = decode(cursor)
                if name != DEDUPLICATION_CURSOR:
                    names.append(name)
        return found
