"""The broker's cache of entries, against a plain list."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from one_bookie import until
from pyxbroker.entry import EntryBatch, EntryRun
from pyxbroker.mledger.entry_cache import EntryCache, LedgerCache


def batch_of(ledger_id: int, entry_id: int, data: bytes) -> EntryBatch:
    run = EntryRun.of(data)
    run.copy_data()
    run.ledger_id, run.first_entry_id = ledger_id, entry_id
    return EntryBatch.of_run(run, has_ids=True)


def found(
    cache: LedgerCache,
    ledger_id: int,
    first: int,
    last: int = 1000,
    count: int = 1000,
    size: int = 1 << 20,
) -> list[tuple[int, bytes]] | None:
    batch = cache.read(ledger_id, first, last, count, size)
    if batch is None:
        return None
    assert batch.ledger_id == ledger_id
    return [(batch.entry_id(i), batch.data(i)) for i in range(len(batch))]


def run(scenario: Callable[[EntryCache, LedgerCache], Awaitable[None]], size: int = 1000) -> None:
    async def main() -> None:
        shared = EntryCache(size, age_max_s=0.05)
        try:
            await scenario(shared, shared.ledger_cache())
        finally:
            shared.close()
        assert shared.bytes == 0

    asyncio.run(main())


def test_consecutive_entries_are_one_batch_whatever_brought_them() -> None:
    async def scenario(shared: EntryCache, cache: LedgerCache) -> None:
        for entry_id in (3, 0, 1, 2, 7):
            cache.add(batch_of(5, entry_id, b"%d" % entry_id))
        cache.add(batch_of(6, 4, b"other"))
        assert found(cache, 5, 0) == [(n, b"%d" % n) for n in range(4)]
        assert found(cache, 5, 2) == [(2, b"2"), (3, b"3")]
        assert found(cache, 5, 1, last=2) == [(1, b"1"), (2, b"2")]
        assert found(cache, 5, 1, count=1) == [(1, b"1")]
        assert found(cache, 5, 1, size=2) == [(1, b"1"), (2, b"2")]
        assert found(cache, 5, 4) is None
        assert found(cache, 4, 0) is None
        assert found(cache, 7, 0) is None
        assert found(cache, 6, 4) == [(4, b"other")]

    run(scenario)


def test_one_entry_is_returned_however_large_it_is() -> None:
    async def scenario(shared: EntryCache, cache: LedgerCache) -> None:
        cache.add(batch_of(1, 0, b"x" * 100))
        cache.add(batch_of(1, 1, b"y"))
        assert found(cache, 1, 0, size=1) == [(0, b"x" * 100)]

    run(scenario)


def test_the_oldest_entries_of_all_ledgers_are_evicted_beyond_the_limit() -> None:
    async def scenario(shared: EntryCache, cache: LedgerCache) -> None:
        other = shared.ledger_cache()
        for entry_id in range(10):
            cache.add(batch_of(1, entry_id, b"x" * 50))
            other.add(batch_of(2, entry_id, b"x" * 50))
            assert shared.bytes <= 500
        assert found(cache, 1, 4) is None
        assert found(other, 2, 4) is None
        assert [entry_id for entry_id, _ in found(cache, 1, 5) or []] == list(range(5, 10))
        cache.add(batch_of(1, 10, b"x" * 501))
        assert found(cache, 1, 10) is None, "larger than the whole cache"
        assert found(cache, 1, 9) is not None

    run(scenario, 500)


def test_a_full_cache_is_evicted_to_its_watermark_and_counts_that() -> None:
    async def scenario(shared: EntryCache, cache: LedgerCache) -> None:
        shared.set_limits(500, age_max_s=60, watermark=0.6)
        for entry_id in range(10):
            cache.add(batch_of(1, entry_id, b"x" * 50))
        assert (shared.bytes, shared.evictions) == (500, 0)
        cache.add_read(batch_of(1, 10, b"x" * 50))
        assert [entry_id for entry_id, _ in found(cache, 1, 5) or []] == list(range(5, 11))
        assert found(cache, 1, 4) is None
        assert shared.stats() == {
            "used_bytes": 300,
            "entries": 6,
            "inserted": 11,
            "evicted": 5,
            "evictions": 1,
            "cache_hits": 6,
            "hit_bytes": 300,
            "disk_reads": 1,
            "disk_read_bytes": 50,
        }

    run(scenario)


def test_entries_are_evicted_by_age() -> None:
    async def scenario(shared: EntryCache, cache: LedgerCache) -> None:
        cache.add(batch_of(1, 0, b"x"))
        await until(lambda: shared.bytes == 0)
        assert found(cache, 1, 0) is None

    run(scenario)


def test_a_batch_that_was_read_stays_readable_after_its_eviction() -> None:
    async def scenario(shared: EntryCache, cache: LedgerCache) -> None:
        cache.add(batch_of(1, 0, b"first"))
        cache.add(batch_of(1, 1, b"second"))
        batch = cache.read(1, 0, 1, 2, 100)
        assert batch is not None
        shared.close()
        assert [batch.data(0), batch.data(1)] == [b"first", b"second"]

    run(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_it_returns_what_was_added_and_no_gap(seed: int) -> None:
    async def scenario(shared: EntryCache, cache: LedgerCache) -> None:
        chosen = random.Random(seed)
        for _ in range(300):
            ledger_id, entry_id = chosen.randint(1, 3), chosen.randint(0, 30)
            if chosen.random() < 0.5:
                data = b"%d:%d" % (ledger_id, entry_id)
                cache.add(batch_of(ledger_id, entry_id, data.ljust(chosen.randint(1, 30))))
                continue
            last = entry_id + chosen.randint(0, 20)
            entries = found(cache, ledger_id, entry_id, last, chosen.randint(1, 9), 100)
            for n, (each, data) in enumerate(entries or []):
                assert each == entry_id + n <= last
                assert data.strip() == b"%d:%d" % (ledger_id, each)

    run(scenario, 2000)


def test_batches_of_two_ledgers_are_not_joined() -> None:
    first, second = batch_of(1, 0, b"a"), batch_of(2, 0, b"b")
    with pytest.raises(ValueError, match="the same ledger"):
        EntryBatch.join([(first, 0, 1), (second, 0, 1)])
    with pytest.raises(IndexError):
        EntryBatch.join([(first, 0, 2)])
