"""What was read of metadata lately, as long as nobody has changed it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from pyxbroker.metadata.store import MetadataStore, Notification, NotificationKind, parent_of
from pyxbroker.metadata.turns import Turns

CACHED_NODES_MAX = 10_000
PARSED_BYTES_MAX = 32 << 20  # of values of which it is known what they say
CACHED_PREFIX = "/admin/"
ABOVE_ALL = CACHED_PREFIX.rstrip("/")
NO_NAMES: frozenset[str] = frozenset()


class MetadataCache:
    """Values of nodes below CACHED_PREFIX that were read lately; a change of a node drops it
    (Pulsar's MetadataCache).
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._values: OrderedDict[str, bytes] = OrderedDict()
        # Of some of those values, what they say, and how long they are.
        self._parsed: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._parsed_bytes = 0
        self._written: tuple[bytes, Any] = (b"", None)  # the last that was told, and what it says
        self._children: dict[str, frozenset[str]] = {}
        self._changes = 0
        self._changing = Turns[str](store)
        self._unsubscribe = store.watch(self._on_change, prefix=CACHED_PREFIX)

    async def get(self, path: str) -> bytes | None:
        """The value of a node, None when there is none, which is not kept: clients may ask for
        names that they make up.
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
            # Nothing changed while it was read, so what was read is what is there.
            self._values[path] = value
            if len(self._values) > CACHED_NODES_MAX:
                self._forget_parsed(self._values.popitem(last=False)[0])
        return value

    def parsed(self, path: str, value: bytes, parse: Callable[[bytes], Any]) -> Any:
        """What a value that get() has given says, kept as long as the value is: nobody may change
        it. All who parse the values of one path do it alike. Raises what parse() does.
        """
        if self._values.get(path) is not value:
            return self._said(value, parse)
        if path in self._parsed:
            self._parsed.move_to_end(path)
            return self._parsed[path][0]
        said = self._said(value, parse)
        self._parsed[path] = said, len(value)
        self._parsed_bytes += len(value)
        # One by one: to free megabytes of objects at once takes the loop tens of milliseconds.
        while self._parsed_bytes > PARSED_BYTES_MAX and len(self._parsed) > 1:
            self._forget_parsed(next(iter(self._parsed)))
        return said

    def _forget_parsed(self, path: str) -> None:
        _, size = self._parsed.pop(path, (None, 0))
        self._parsed_bytes -= size

    def _said(self, value: bytes, parse: Callable[[bytes], Any]) -> Any:
        written, said = self._written
        return said if value and value == written else parse(value)

    def note_written(self, value: bytes, said: Any) -> None:
        """What somebody writes, and what parsed() is to make of it: nobody may change that any
        more. Who reads just this value next need not parse it.
        """
        self._written = value, said

    async def children(self, path: str) -> frozenset[str]:
        """The names of a node's children; for nodes with children that change seldom."""
        if path in self._children:
            return self._children[path]
        above = parent_of(path)
        is_highest = above == ABOVE_ALL
        if not is_highest and path[len(above) + 1 :] not in await self.children(above):
            return NO_NAMES
        changes = self._changes
        if is_highest:
            # There are few of these: of one that is not there its creation is told.
            await self._store.exists(path, watch=True)
        names = frozenset(await self._store.children(path))
        # A list that has just gone looks like an empty one, and nobody would tell of its return.
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
        """A node has changed, and nodes above it may have come to be; writers call this directly
        and do not wait for the notification.
        """
        self._changes += 1
        self.forget_value(path)
        while path != "/":
            self._children.pop(path, None)
            path = parent_of(path)

    def forget_value(self, path: str) -> None:
        """A node's value may have changed; its children stay cached until a notification comes."""
        self._values.pop(path, None)
        self._forget_parsed(path)

    def turn(self, path: str) -> AbstractAsyncContextManager[None]:
        """Whoever reads a node and then writes what has become of it does so alone in this process;
        others of it would only have to read it again. Raises Unavailable.
        """
        return self._changing.turn(path)

    def close(self) -> None:
        self._unsubscribe()
