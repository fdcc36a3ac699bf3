"""Counts of what the schema registry did for each namespace, as /metrics shows them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyxbroker.base.errors import IncompatibleSchema

NAMESPACES_MAX = 10_000  # with counts; beyond the limit, the oldest counts are dropped


class NamespaceCounts:
    """The operations on the schemas of one namespace, by their names: get, put, del."""

    __slots__ = ("compatible", "done", "failed", "incompatible", "seconds")

    def __init__(self) -> None:
        self.done = dict.fromkeys(("get", "put", "del"), 0)
        self.failed = self.done.copy()
        self.seconds = dict.fromkeys(self.done, 0.0)  # durations of the successful operations
        self.compatible = self.incompatible = 0  # results of checks


class SchemaCounts:
    """The counts of all namespaces since the start."""

    def __init__(self) -> None:
        self.namespaces: dict[str, NamespaceCounts] = {}

    @contextmanager
    def counting(self, operation: str, schema_id: str) -> Iterator[None]:
        """Return a context that counts an operation and measures its duration."""
        counts = self._counts_of(schema_id)
        began_s = time.perf_counter()
        try:
            yield
        except BaseException:
            counts.failed[operation] += 1
            raise
        counts.done[operation] += 1
        counts.seconds[operation] += time.perf_counter() - began_s

    @contextmanager
    def checking(self, schema_id: str) -> Iterator[None]:
        """Return a context that counts the result of a compatibility check."""
        counts = self._counts_of(schema_id)
        try:
            yield
        except IncompatibleSchema:
            counts.incompatible += 1
            raise
        counts.compatible += 1

    def _counts_of(self, schema_id: str) -> NamespaceCounts:
        namespace = schema_id.rpartition("/")[0]
        counts = self.namespaces.get(namespace)
        if counts is None:
            if len(self.namespaces) >= NAMESPACES_MAX:
                del self.namespaces[next(iter(self.namespaces))]
            counts = self.namespaces[namespace] = NamespaceCounts()
        return counts
