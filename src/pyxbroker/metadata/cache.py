"""A cache of metadata that was read recently, invalidated by change notifications."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from pyxbroker.metadata.store import MetadataStore, Notification, NotificationKind, parent_of
from pyxbroker.metadata.turns import Turns

CACHED_NODES_MAX = 10_000
PARSED_BYTES_MAX = 32 << 20  # of values whose parsed form is cached
CACHED_PREFIX = "/admin/"
ABOVE_ALL = CACHED_PREFIX.rstrip("/")
NO_NAMES: frozenset[str] = frozenset()


class MetadataCache:
    """Recently read values of nodes below CACHED_PREFIX. A change of a node drops its value
    (Pulsar's MetadataCache).
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._values: OrderedDict[str, bytes] = OrderedDict()
        # The parsed form and the size of some of those values.
        self._parsed: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._parsed_bytes = 0
        self._written: tuple[bytes, Any] = (b"", None)  # last value written, parsed form
        self._children: dict[str, frozenset[str]] = {}
        self._changes = 0
        self._changing = Turns[str](store)
        self._unsubscribe = store.watch(self._on_change, prefix=CACHED_PREFIX)

    async def get(self, path: str) -> bytes | None:
        """Return the value of a node, or None if it does not exist.

        Absence is not cached, since clients may ask for any number of invented names.
        """
        if path in self._values:
            self._values.move_to_end(path)
            return self._values[path]
        changes = self._changes
        found = await self._store.get(path)
        if found is None:
            return None
        value = found.value
        if changes == self._changes:
            # No notification arrived during the read, so the value is current.
            self._values[path] = value
            if len(self._values) > CACHED_NODES_MAX:
                self._forget_parsed(self._values.popitem(last=False)[0])
        return value

    def parsed(self, path: str, value: bytes, parse: Callable[[bytes], Any]) -> Any:
        """Return the parsed form of a value that get() returned, cached as long as the value.

        Callers must not change it, and all callers must parse the values of a path alike. Raises
        what parse() raises.
        """
        if self._values.get(path) is not value:
            return self._parse_value(value, parse)
        if path in self._parsed:
            self._parsed.move_to_end(path)
            return self._parsed[path][0]
        parsed = self._parse_value(value, parse)
        self._parsed[path] = parsed, len(value)
        self._parsed_bytes += len(value)
        # One by one: releasing megabytes of objects in one call blocks the loop for tens of ms.
        while self._parsed_bytes > PARSED_BYTES_MAX and len(self._parsed) > 1:
            self._forget_parsed(next(iter(self._parsed)))
        return parsed

    def _forget_parsed(self, path: str) -> None:
        _, size = self._parsed.pop(path, (None, 0))
        self._parsed_bytes -= size

    def _parse_value(self, value: bytes, parse: Callable[[bytes], Any]) -> Any:
        written, parsed = self._written
        return parsed if value and value == written else parse(value)

    def note_written(self, value: bytes, parsed: Any) -> None:
        """Register a value that is being written, with its parsed form, which must not change.

        The next reader of exactly this value need not parse it.
        """
        self._written = value, parsed

    async def children(self, path: str) -> frozenset[str]:
        """Return the names of a node's children; for nodes whose children change rarely."""
        if path in self._children:
            return self._children[path]
        above = parent_of(path)
        is_highest = above == ABOVE_ALL
        if not is_highest and path[len(above) + 1 :] not in await self.children(above):
            return NO_NAMES
        changes = self._changes
        if is_highest:
            # These nodes are few, so a watch for their creation is affordable.
            await self._store.exists(path, watch=True)
        names = frozenset(await self._store.children(path))
        # An empty list may be that of a deleted node, and no notification reports its recreation.
        if changes == self._changes and (names or is_highest):
            self._children[path] = names
        return names

    def _on_change(self, notification: Notification) -> None:
        kind, path = notification
        self._changes += 1
        if kind is not NotificationKind.CHILDREN_CHANGED:
            self.forget_value(path)
        if kind is not NotificationKind.MODIFIED:
            self._children.pop(path, None)
            self._children.pop(parent_of(path), None)

    def forget(self, path: str) -> None:
        """Drop a changed node, and the lists of all nodes above it, which may have been created.

        Writers call this directly instead of waiting for the notification.
        """
        self._changes += 1
        self.forget_value(path)
        while path != "/":
            self._children.pop(path, None)
            path = parent_of(path)

    def forget_value(self, path: str) -> None:
        """Drop a node's value; its children stay cached until a notification arrives."""
        self._values.pop(path, None)
        self._forget_parsed(path)

    def turn(self, path: str) -> AbstractAsyncContextManager[None]:
        """Serialize read-modify-write of a node within this process. Raises Unavailable.

        Concurrent attempts would only fail with BadVersion and be repeated.
        """
        return self._changing.turn(path)

    def close(self) -> None:
        self._unsubscribe()
