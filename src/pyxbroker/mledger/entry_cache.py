"""A cache of entries in the broker's memory, for bookies in other processes.

The embedded bookie has the latest entries in its write cache, so a broker with one needs no other
cache. A broker without one caches the entries that it has recently added and read. Subscriptions
that keep up then read an entry from its bookie at most once. All topics of the broker share one
limit (managedLedgerCacheSizeMB). When it is reached, the oldest entries are evicted down to a part
of it (managedLedgerCacheEvictionWatermark). Entries older than `age_max_s` are evicted as well
(managedLedgerCacheEvictionTimeThresholdMillis).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pyxbroker.entry import EntryBatch, EntryRun
from pyxbroker.ledger.errors import LedgerError

PARTS_MAX = 256
"""Batches that are joined for one read."""


class _Stored(NamedTuple):
    """A batch in the cache of a managed ledger."""

    cache: LedgerCache
    key: tuple[int, int]
    batch: EntryBatch
    bytes: int
    added_s: float  # time of the event loop


class EntryCache:
    """The memory that the cached entries of all managed ledgers share."""

    def __init__(self, bytes_max: int, age_max_s: float = 1.0, watermark: float = 1.0) -> None:
        self.bytes_max = bytes_max
        self.age_max_s = age_max_s
        self.watermark = watermark
        self.bytes = self.entries = 0
        # Since the start: entries, and rounds of evictions for lack of memory.
        self.inserted = self.evicted = self.evictions = 0
        # Since the start: entries and bytes that reads found here, or had to read from bookies.
        self.hits = self.hit_bytes = self.misses = self.missed_bytes = 0
        self._stored: deque[_Stored] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def set_limits(self, bytes_max: int, age_max_s: float, watermark: float) -> None:
        """Change the limits, from the next batch on."""
        self.bytes_max, self.age_max_s, self.watermark = bytes_max, age_max_s, watermark

    def stats(self) -> dict[str, int]:
        """Return the numbers of stats/definitions.py, ENTRY_CACHE."""
        return {
            "used_bytes": self.bytes,
            "entries": self.entries,
            "inserted": self.inserted,
            "evicted": self.evicted,
            "evictions": self.evictions,
            "cache_hits": self.hits,
            "hit_bytes": self.hit_bytes,
            "disk_reads": self.misses,
            "disk_read_bytes": self.missed_bytes,
        }

    def ledger_cache(self) -> LedgerCache:
        """Return an empty cache for one managed ledger."""
        return LedgerCache(self)

    def add(self, cache: LedgerCache, key: tuple[int, int], batch: EntryBatch) -> None:
        """Count a batch that a cache has taken, and evict the oldest ones beyond the limit."""
        loop = asyncio.get_running_loop()
        size = batch.byte_count
        self._stored.append(_Stored(cache, key, batch, size, loop.time()))
        self.bytes += size
        self.entries += batch.count
        self.inserted += batch.count
        if self.bytes > self.bytes_max:
            self.evictions += 1
            bytes_left = self.bytes_max * self.watermark
            # The new batch stays, even if it is larger than that.
            while self.bytes > bytes_left and len(self._stored) > 1:
                self._evict_oldest()
        if self._timer is None and self._stored:
            self._timer = loop.call_later(self.age_max_s, self._evict_old)

    def _evict_old(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        oldest_s = loop.time() - self.age_max_s
        while self._stored and self._stored[0].added_s <= oldest_s:
            self._evict_oldest()
        if self._stored:
            delay_s = self._stored[0].added_s - oldest_s
            self._timer = loop.call_later(delay_s, self._evict_old)

    def _evict_oldest(self) -> None:
        oldest = self._stored.popleft()
        self.bytes -= oldest.bytes
        self.entries -= oldest.batch.count
        self.evicted += oldest.batch.count
        oldest.cache.evict(oldest.key, oldest.batch)

    def close(self) -> None:
        """Evict everything."""
        while self._stored:
            self._evict_oldest()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class LedgerCache:
    """The cached entries of one managed ledger: batches by the position of their first entry."""

    def __init__(self, shared: EntryCache) -> None:
        self._shared = shared
        self._batches: dict[tuple[int, int], EntryBatch] = {}
        self._keys: list[tuple[int, int]] = []  # of _batches, ascending
        self.reading: dict[tuple[int, int], list[Callable[[LedgerError | None], None]]] = {}
        """Positions being read from a bookie, with the other callers that wait for each."""

    def add_run(self, run: EntryRun) -> None:
        """Add the entries of a confirmed run, whose data stays in memory."""
        self.add(EntryBatch.of_run(run, has_ids=True))

    def add_read(self, batch: EntryBatch) -> None:
        """Add a batch that a bookie has returned."""
        self._shared.misses += batch.count
        self._shared.missed_bytes += batch.byte_count
        self.add(batch)

    def add(self, batch: EntryBatch) -> None:
        """Add a batch, unless one with the same first entry is cached."""
        key = (batch.ledger_id, batch.entry_id(0))
        if key in self._batches or batch.byte_count > self._shared.bytes_max:
            return
        self._batches[key] = batch
        if self._keys and key < self._keys[-1]:
            insort(self._keys, key)
        else:
            self._keys.append(key)
        self._shared.add(self, key, batch)

    def evict(self, key: tuple[int, int], batch: EntryBatch) -> None:
        """Drop a batch, if it is still cached."""
        if self._batches.get(key) is batch:
            del self._batches[key]
            at = bisect_right(self._keys, key) - 1
            del self._keys[at]

    def read(
        self, ledger_id: int, first: int, last: int, count_max: int, bytes_max: int
    ) -> EntryBatch | None:
        """Return consecutive entries from `first` to at most `last`; None if `first` is missing.

        At least one entry is returned even if it is larger than bytes_max.
        """
        parts: list[tuple[EntryBatch, int, int]] = []
        entry_id = first
        left = bytes_max
        count_left = min(count_max, last - first + 1)
        at = bisect_right(self._keys, (ledger_id, first)) - 1
        while 0 <= at < len(self._keys) and count_left > 0 and len(parts) < PARTS_MAX:
            key = self._keys[at]
            batch = self._batches[key]
            skipped = entry_id - key[1]
            if key[0] != ledger_id or skipped < 0:
                break  # of another ledger, or after a gap
            at += 1
            if skipped >= len(batch):
                if parts:
                    continue  # a shorter batch that the parts before it cover
                break
            if parts and batch.has_packaging != parts[0][0].has_packaging:
                break
            count = 0
            while count < min(len(batch) - skipped, count_left):
                size = batch.size(skipped + count)
                if size > left and (parts or count):
                    break
                left -= size
                count += 1
            if not count:
                break
            parts.append((batch, skipped, count))
            entry_id += count
            count_left -= count
            if left <= 0 or skipped + count < len(batch):
                break
        if not parts:
            return None
        self._shared.hits += entry_id - first
        self._shared.hit_bytes += bytes_max - left
        return EntryBatch.join(parts)
