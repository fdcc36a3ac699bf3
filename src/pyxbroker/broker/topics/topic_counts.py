"""The number of topics of each namespace with a limit, counted once and then updated.

A request that creates topics counts them and reserves its share of the limit. Counting and
reserving are serialized, the creation is not. A reservation ends with the request; topics that were
not created do not count any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from pyxbroker.base.errors import TopicsLimitReached
from pyxbroker.base.slices import in_slices
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

NAMESPACES_MAX = 1_000  # whose counts stay in memory
STEPS = {NotificationKind.CREATED: 1, NotificationKind.DELETED: -1}


class _Reservation:
    """A reservation for one topic, or for the partitions of one."""

    __slots__ = ("remaining", "whole")

    def __init__(self, whole: int, remaining: int) -> None:
        self.whole = whole
        self.remaining = remaining  # topics that are not in the list of topics yet


class _Reservations:
    """The reservations in one namespace, at most one for each topic name."""

    def __init__(self) -> None:
        self._reservations: dict[
            str, _Reservation
        ] = {}  # by node; a slash is appended for partitions

    def __len__(self) -> int:
        return len(self._reservations)

    @property
    def remaining(self) -> int:
        return sum(each.remaining for each in self._reservations.values())

    def take(self, key: str, reservation: _Reservation) -> None:
        assert key not in self._reservations, "a topic is created by one task at a time"
        self._reservations[key] = reservation

    def release(self, key: str) -> bool:
        """End a reservation. Return True if some of its topics are not in the list yet."""
        return self._reservations.pop(key).remaining > 0

    def keys_of(self, node: str) -> list[str]:
        """Return the keys of the reservations that include a node.

        A partition may be opened while another request creates all partitions.
        """
        keys = [node] if node in self._reservations else []
        above, _, digits = node.rpartition(PARTITIONED_TOPIC_SUFFIX)
        reservation = self._reservations.get(f"{above}/")
        if reservation is not None and 0 <= index_of(digits) < reservation.whole:
            keys.append(f"{above}/")
        return keys

    def on_created(self, node: str) -> None:
        """Take note that a node was created."""
        for key in self.keys_of(node):
            reservation = self._reservations[key]
            reservation.remaining = max(reservation.remaining - 1, 0)

    def on_counted(self, there: Counter[str]) -> None:
        """Take note of the number of nodes of each reservation in a list that was read."""
        for key, reservation in self._reservations.items():
            reservation.remaining = max(reservation.whole - there[key], 0)


NO_RESERVATIONS = _Reservations()


class _Namespace:
    """A namespace whose list of topics was read, or is being read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.changes = 0  # of the list
        self.released = 0  # reservations that ended while their topics may have been created


class TopicCounts:
    """The number of persistent topics per namespace; partitions count, system topics do not.

    Reading and counting a list of 100,000 topics takes long, so it is not done for each new topic.
    The metadata store of this process reports every topic that is created or deleted. If other
    brokers share the store, a changed list is read again. A topic that is created after the list
    was read counts by its reservation.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._counts: dict[str, int] = {}  # by the path of the list
        self._namespaces: dict[str, _Namespace] = {}  # by path; includes those being counted
        self._counting = Turns[str](store)
        self._reservations: dict[str, _Reservations] = {}  # by path, while topics are being created
        self._unsubscribe = store.watch(
            self._on_notification,
            prefix=paths.MANAGED_LEDGERS + "/",
            lists_down_to=paths.TOPIC_LIST_SLASHES,
        )

    @asynccontextmanager
    async def reservation(
        self, name: TopicName, limit: int, missing: Callable[[], Awaitable[int]], partitions: int
    ) -> AsyncIterator[None]:
        """Return a context in which a topic, or that many partitions of it, may be created.

        missing: returns the number of topics to create, which count from now on. Non-persistent
        topics only have to be within the limit. Raises TopicsLimitReached, MetadataError.
        """
        if not await missing():
            yield
            return
        path = paths.managed_ledgers(name.namespace)
        key = name.encoded_local_name + ("/" if partitions else "")
        async with self._counting.turn(name.namespace):
            count = await missing()
            there = await self.get(name.namespace) if count else 0
            reservations = self._reservations.get(path, NO_RESERVATIONS)
            # A partition that another request is creating is included in its reservation.
            is_new = count and not reservations.keys_of(key)
            if is_new and there + reservations.remaining + count > limit:
                raise TopicsLimitReached("Exceed maximum number of topics in namespace.")
            if name.is_persistent:
                self._reservations.setdefault(path, _Reservations()).take(
                    key, _Reservation(partitions or 1, count)
                )
        try:
            yield
        finally:
            if name.is_persistent:
                self._release(path, key)

    def _release(self, path: str, key: str) -> None:
        reservations = self._reservations[path]
        if reservations.release(key) and self._store.is_shared and path in self._namespaces:
            # They may have been created, without a notification so far.
            self._namespaces[path].released += 1
            self._on_list_changed(path)
        if not reservations:
            del self._reservations[path]

    async def get(self, namespace: str) -> int:
        """Return the number of topics of a namespace. Raises MetadataError."""
        path = paths.managed_ledgers(namespace)
        if path in self._counts:
            return self._counts[path]
        while True:
            known = self._namespaces.setdefault(path, _Namespace(namespace))
            changes, released = known.changes, known.released
            nodes = await self._store.children(path)
            count = await self._count(path, namespace, nodes)
            if self._namespaces.get(path) is known and changes == known.changes:
                break
            if self._store.is_shared and released == known.released:
                # The list may change again and again while many topics are created.
                self._forget(path)
                return count
        if not nodes and self._store.is_shared:
            # The store does not report changes of a list that does not exist.
            self._forget(path)
            return 0
        if len(self._counts) >= NAMESPACES_MAX:
            self._forget(next(iter(self._counts)))
        self._counts[path] = count
        return count

    async def _count(self, path: str, namespace: str, nodes: list[str]) -> int:
        reservations = self._reservations.get(path, NO_RESERVATIONS)
        found: Counter[str] = Counter()
        count = 0
        async for node in in_slices(nodes):
            count += self._counts_as_topic(namespace, node)
            if reservations:
                found.update(reservations.keys_of(node))
        reservations.on_counted(found)
        return count

    @staticmethod
    def _counts_as_topic(namespace: str, node: str) -> bool:
        if "__" not in node and namespace != SYSTEM_NAMESPACE:
            # Only names of system topics have "__". Parsing a name takes a hundred times as long.
            return True
        topic = topic_of_node(PERSISTENT, namespace, node)
        return topic is not None and not topic.is_system

    def forget(self, namespace: str) -> None:
        """Forget a namespace that is being deleted; no topics are created in it meanwhile."""
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
            if kind is NotificationKind.CREATED and above in self._reservations:
                self._reservations[above].on_created(node)

    def _on_list_changed(self, path: str) -> None:
        """Drop the count of a list; the next request reads it again."""
        self._namespaces[path].changes += 1
        if path in self._counts:
            self._forget(path)

    def close(self) -> None:
        self._unsubscribe()
