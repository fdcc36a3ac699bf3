"""How many topics a namespace has: for namespaces that have a limit, counted once and then kept."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from pyxbroker.base.slices import Slices
from pyxbroker.base.topic_name import PERSISTENT, SYSTEM_NAMESPACE
from pyxbroker.broker.topics.names import topic_of_node
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore, Notification, NotificationKind, parent_of
from pyxbroker.metadata.turns import Turns

NAMESPACES_MAX = 1_000  # whose numbers are kept
STEPS = {NotificationKind.CREATED: 1, NotificationKind.DELETED: -1}


class TopicCounts:
    """Persistent topics of namespaces, each partition by itself, without the broker's own.

    A list of 100,000 topics takes a while to read and count, so that is not done for each topic
    that is made. A store of this process tells of every topic that comes and goes; of one that
    others change as well the list is read again when it has changed.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._counts: dict[str, int] = {}  # by the path of the list
        self._namespaces: dict[str, str] = {}  # of those paths
        self._changes = 0
        self._making = Turns[str](store)
        self._unsubscribe = store.watch(
            self._on_notification,
            prefix=paths.MANAGED_LEDGERS + "/",
            lists_down_to=paths.TOPIC_LIST_SLASHES,
        )

    def turn(self, namespace: str) -> AbstractAsyncContextManager[None]:
        """Whoever counts and then makes topics does so alone. Raises Unavailable."""
        return self._making.turn(namespace)

    async def get(self, namespace: str) -> int:
        """How many there are now. Raises MetadataError."""
        path = paths.managed_ledgers(namespace)
        if path in self._counts:
            return self._counts[path]
        while True:
            changes = self._changes
            self._namespaces[path] = namespace
            nodes = await self._store.children(path)
            if not nodes and self._store.is_shared:
                # Nobody tells of what comes to be in a list that is not there.
                self._forget(path)
                return 0
            slices = Slices()
            count = 0
            for node in nodes:
                count += self._counts_as_topic(namespace, node)
                await slices.pause()
            if changes == self._changes:
                break
        if len(self._counts) >= NAMESPACES_MAX:
            self._forget(next(iter(self._counts)))
        self._counts[path] = count
        return count

    @staticmethod
    def _counts_as_topic(namespace: str, node: str) -> bool:
        if "__" not in node and namespace != SYSTEM_NAMESPACE:
            # The names of the broker's own have that; to read one takes a hundred times as long.
            return True
        topic = topic_of_node(PERSISTENT, namespace, node)
        return topic is not None and not topic.is_system

    def forget(self, namespace: str) -> None:
        """A namespace goes, and nobody makes topics in it."""
        self._forget(paths.managed_ledgers(namespace))

    def _forget(self, path: str) -> None:
        self._counts.pop(path, None)
        self._namespaces.pop(path, None)

    def _on_notification(self, notification: Notification) -> None:
        kind, path = notification
        if self._store.is_shared:
            if kind is NotificationKind.CHILDREN_CHANGED and path in self._namespaces:
                self._changes += 1
                self._counts.pop(path, None)
            return
        above = parent_of(path)
        namespace = self._namespaces.get(above)
        if namespace is None or kind not in STEPS:
            return
        self._changes += 1
        if above in self._counts and self._counts_as_topic(namespace, path[len(above) + 1 :]):
            self._counts[above] += STEPS[kind]

    def close(self) -> None:
        self._unsubscribe()
