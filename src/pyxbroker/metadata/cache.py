"""What was read of metadata lately, as long as nobody has changed it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import AbstractAsyncContextManager

from pyxbroker.metadata.store import MetadataStore, Notification, parent_of
from pyxbroker.metadata.turns import Turns

CACHED_NODES_MAX = 10_000
CACHED_PREFIX = "/admin/"


class MetadataCache:
    """Values of nodes below CACHED_PREFIX that were read lately; a change of a node drops it
    (Pulsar's MetadataCache).
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._values: OrderedDict[str, bytes | None] = OrderedDict()
        self._children: dict[str, frozenset[str]] = {}
        self._changes = 0
        self._changing = Turns[str](store)
        self._unsubscribe = store.watch(self._on_change, prefix=CACHED_PREFIX)

    async def get(self, path: str) -> bytes | None:
        """The value of a node, None when there is none."""
        if path in self._values:
            self._values.move_to_end(path)
            return self._values[path]
        changes = self._changes
        found = await self._store.get(path)
        value = None if found is None else found.value
        if changes == self._changes:
            # Nothing changed while it was read, so what was read is what is there.
            self._values[path] = value
            if len(self._values) > CACHED_NODES_MAX:
                self._values.popitem(last=False)
        return value

    async def children(self, path: str) -> frozenset[str]:
        """The names of a node's children; for few nodes with children that change seldom."""
        if path in self._children:
            return self._children[path]
        changes = self._changes
        # A node that does not exist has no children to watch; its creation notifies separately.
        _, found = await asyncio.gather(self._store.exists(path), self._store.children(path))
        names = frozenset(found)
        if changes == self._changes:
            self._children[path] = names
        return names

    def _on_change(self, notification: Notification) -> None:
        self.forget(notification.path)

    def forget(self, path: str) -> None:
        """A node has changed; writers call this directly and do not wait for the notification."""
        self._children.pop(path, None)
        self._children.pop(parent_of(path), None)
        self._values.pop(path, None)
        self._changes += 1

    def forget_value(self, path: str) -> None:
        """A node's value may have changed; its children stay cached until a notification comes."""
        self._values.pop(path, None)

    def turn(self, path: str) -> AbstractAsyncContextManager[None]:
        """Whoever reads a node and then writes what has become of it does so alone in this process;
        others of it would only have to read it again. Raises Unavailable.
        """
        return self._changing.turn(path)

    def close(self) -> None:
        self._unsubscribe()
