"""How many topics a namespace has: for namespaces that have a limit, counted once and then kept.

Who makes topics counts, and takes the room for them: that is done in turns, the making is not. What
is not made after all is room again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from pyxbroker.base.errors import TopicsLimitReached
from pyxbroker.base.slices import Slices
from pyxbroker.base.topic_name import (
    PARTITIONED_TOPIC_SUFFIX,
    PERSISTENT,
    SYSTEM_NAMESPACE,
    TopicName,
)
from pyxbroker.broker.topics.names import topic_of_node
from pyxbroker.broker.topics.partition_nodes import index_of
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore, Notification, NotificationKind, parent_of
from pyxbroker.metadata.turns import Turns

NAMESPACES_MAX = 1_000  # whose numbers are kept
STEPS = {NotificationKind.CREATED: 1, NotificationKind.DELETED: -1}


class _Room:
    """What somebody makes: one topic, or the partitions of one."""

    __slots__ = ("left", "whole")

    def __init__(self, whole: int, left: int) -> None:
        self.whole = whole
        self.left = left  # that are not in the list of topics yet


class _Rooms:
    """What is being made in one namespace, each once at a time."""

    def __init__(self) -> None:
        self._rooms: dict[str, _Room] = {}  # by the node, with a slash where it is of partitions

    def __len__(self) -> int:
        return len(self._rooms)

    @property
    def left(self) -> int:
        return sum(each.left for each in self._rooms.values())

    def take(self, key: str, room: _Room) -> None:
        assert key not in self._rooms, "a topic is made once at a time"
        self._rooms[key] = room

    def give_back(self, key: str) -> bool:
        """Whether some of it was not in the list yet."""
        return self._rooms.pop(key).left > 0

    def keys_of(self, node: str) -> list[str]:
        """The rooms that a node has: somebody may open a partition while others make them all."""
        keys = [node] if node in self._rooms else []
        above, _, digits = node.rpartition(PARTITIONED_TOPIC_SUFFIX)
        room = self._rooms.get(f"{above}/")
        if room is not None and 0 <= index_of(digits) < room.whole:
            keys.append(f"{above}/")
        return keys

    def on_made(self, node: str) -> None:
        """A node has come to be."""
        for key in self.keys_of(node):
            room = self._rooms[key]
            room.left = max(room.left - 1, 0)

    def on_counted(self, there: Counter[str]) -> None:
        """The list was read: how many nodes of each room are in it."""
        for key, room in self._rooms.items():
            room.left = max(room.whole - there[key], 0)


NO_ROOMS = _Rooms()


class _Namespace:
    """One whose list is being read, or was."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.changes = 0  # of the list
        self.given_back = 0  # rooms, of which something may be in the list by now


class TopicCounts:
    """Persistent topics of namespaces, each partition by itself, without the broker's own.

    A list of 100,000 topics takes a while to read and count, so that is not done for each topic
    that is made. A store of this process tells of every topic that comes and goes; of one that
    others change as well the list is read again when it has changed. What has room there, and is
    made after it was read, counts as being made.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._counts: dict[str, int] = {}  # by the path of the list
        self._namespaces: dict[str, _Namespace] = {}  # by the same, and those that are counted now
        self._counting = Turns[str](store)
        self._rooms: dict[str, _Rooms] = {}  # by the path of the list, while somebody makes topics
        self._unsubscribe = store.watch(
            self._on_notification,
            prefix=paths.MANAGED_LEDGERS + "/",
            lists_down_to=paths.TOPIC_LIST_SLASHES,
        )

    @asynccontextmanager
    async def room(
        self, name: TopicName, limit: int, missing: Callable[[], Awaitable[int]], partitions: int
    ) -> AsyncIterator[None]:
        """Within it a topic, or so many partitions of it, may be made. Those that are `missing`
        count from now on; non-persistent ones only have to fit.

        Raises TopicsLimitReached, MetadataError.
        """
        if not await missing():
            yield
            return
        path = paths.managed_ledgers(name.namespace)
        key = name.encoded_local_name + ("/" if partitions else "")
        async with self._counting.turn(name.namespace):
            count = await missing()
            there = await self.get(name.namespace) if count else 0
            rooms = self._rooms.get(path, NO_ROOMS)
            # Who opens a partition that others are making has its place there.
            is_new = count and not rooms.keys_of(key)
            if is_new and there + rooms.left + count > limit:
                raise TopicsLimitReached("Exceed maximum number of topics in namespace.")
            if name.is_persistent:
                self._rooms.setdefault(path, _Rooms()).take(key, _Room(partitions or 1, count))
        try:
            yield
        finally:
            if name.is_persistent:
                self._give_back(path, key)

    def _give_back(self, path: str, key: str) -> None:
        rooms = self._rooms[path]
        if rooms.give_back(key) and self._store.is_shared and path in self._namespaces:
            # They may be there, and nobody has told so yet.
            self._namespaces[path].given_back += 1
            self._on_list_changed(path)
        if not rooms:
            del self._rooms[path]

    async def get(self, namespace: str) -> int:
        """How many there are now. Raises MetadataError."""
        path = paths.managed_ledgers(namespace)
        if path in self._counts:
            return self._counts[path]
        while True:
            known = self._namespaces.setdefault(path, _Namespace(namespace))
            changes, given_back = known.changes, known.given_back
            nodes = await self._store.children(path)
            count = await self._count(path, namespace, nodes)
            if self._namespaces.get(path) is known and changes == known.changes:
                break
            if self._store.is_shared and given_back == known.given_back:
                # It may change again and again while many topics are made.
                self._forget(path)
                return count
        if not nodes and self._store.is_shared:
            # Nobody tells of what comes to be in a list that is not there.
            self._forget(path)
            return 0
        if len(self._counts) >= NAMESPACES_MAX:
            self._forget(next(iter(self._counts)))
        self._counts[path] = count
        return count

    async def _count(self, path: str, namespace: str, nodes: list[str]) -> int:
        rooms = self._rooms.get(path, NO_ROOMS)
        made: Counter[str] = Counter()
        slices = Slices()
        count = 0
        for node in nodes:
            count += self._counts_as_topic(namespace, node)
            if rooms:
                made.update(rooms.keys_of(node))
            await slices.pause()
        rooms.on_counted(made)
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
                self._on_list_changed(path)
            return
        above = parent_of(path)
        namespace = self._namespaces.get(above)
        if namespace is None or kind not in STEPS:
            return
        namespace.changes += 1
        node = path[len(above) + 1 :]
        if above in self._counts and self._counts_as_topic(namespace.name, node):
            self._counts[above] += STEPS[kind]
            if kind is NotificationKind.CREATED and above in self._rooms:
                self._rooms[above].on_made(node)

    def _on_list_changed(self, path: str) -> None:
        """It is read again when it is asked for."""
        self._namespaces[path].changes += 1
        if path in self._counts:
            self._forget(path)

    def close(self) -> None:
        self._unsubscribe()
