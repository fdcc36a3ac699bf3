"""The watchers of a metadata store, indexed by path.

Clients can create thousands of watchers, and one request can change thousands of nodes. The
watchers of a change are therefore looked up by its path and the paths above it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyxbroker.base.named_tuple import NamedTuple

if TYPE_CHECKING:
    from pyxbroker.metadata.store import NotificationCallback, Unsubscribe

Table = dict[str, dict[int, "Watcher"]]

NO_WATCHERS: dict[int, Watcher] = {}


class Watcher(NamedTuple):
    """A subscription to changes. MetadataStore.watch describes the fields."""

    number: int  # ascending; watchers are called in this order
    prefix: str
    callback: NotificationCallback
    lists_down_to: int | None
    above: bool

    @property
    def root(self) -> str:
        """The path at the top of what is watched; empty for the whole tree."""
        return self.prefix.rstrip("/")

    def paths_above(self) -> Iterator[str]:
        """Yield the paths that `above` adds; never the root."""
        end = self.prefix.rfind("/")
        while end > 0:
            yield self.prefix[:end]
            end = self.prefix.rfind("/", 0, end)


class Watchers:
    """The watchers of one store. A change while watchers are called applies to later calls."""

    def __init__(self) -> None:
        self._below: Table = {}  # by root
        self._above: Table = {}  # by each path above the root, for watchers with `above`
        self._count = 0
        self._last_number = 0

    def __len__(self) -> int:
        return self._count

    def add(
        self, callback: NotificationCallback, prefix: str, lists_down_to: int | None, above: bool
    ) -> Unsubscribe:
        self._last_number += 1
        watcher = Watcher(self._last_number, prefix, callback, lists_down_to, above)
        for table, path in self._places(watcher):
            table.setdefault(path, {})[watcher.number] = watcher
        self._count += 1
        return self._remover(watcher)

    def _remover(self, watcher: Watcher) -> Callable[[], None]:
        def remove() -> None:
            if watcher.number not in self._below.get(watcher.root, ()):
                return  # It was removed already.
            for table, path in self._places(watcher):
                del table[path][watcher.number]
                if not table[path]:
                    del table[path]
            self._count -= 1

        return remove

    def _places(self, watcher: Watcher) -> Iterator[tuple[Table, str]]:
        yield self._below, watcher.root
        if watcher.above:
            for path in watcher.paths_above():
                yield self._above, path

    def of(self, path: str) -> list[Watcher]:
        """Return the watchers of a node, in the order in which they were added."""
        return sorted(self._on_path(path))  # by their unique number

    def _on_path(self, path: str) -> Iterator[Watcher]:
        yield from self._above.get(path, NO_WATCHERS).values()
        end = path.find("/")
        while end != -1:
            # All of these paths are above the node, with or without a slash at the end.
            yield from self._below.get(path[:end], NO_WATCHERS).values()
            end = path.find("/", end + 1)
        for each in self._below.get(path, NO_WATCHERS).values():
            if each.prefix == path:
                yield each

    def is_watched(self, path: str) -> bool:
        """Return True if any watcher needs changes of a node."""
        return any(each.lists_down_to is None for each in self._on_path(path))

    def is_list_watched(self, path: str) -> bool:
        """Return True if any watcher needs changes of a node's list of children."""
        depth = path.count("/")
        return any(
            each.lists_down_to is None or depth <= each.lists_down_to
            for each in self._on_path(path)
        )
