"""Partitions come by the hundred thousand: their nodes are made in batches, a few at a time.

A new partition is a node of a managed ledger that has no ledgers yet, as Pulsar's brokers make it;
its first ledger comes when it is opened. Between two batches everybody else has a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

from pyxbroker.base.topic_name import TopicName
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MUST_NOT_EXIST, BadVersion, MetadataStore, Put

NODES_PER_BATCH_MAX = 128
BYTES_PER_BATCH_MAX = 256 << 10  # of paths; ZooKeeper takes 1 MiB in one request
BATCHES_AT_ONCE = 2
AT_ONCE = 16  # of what is done one by one

T = TypeVar("T")


def nodes_of(name: TopicName, first: int, count: int) -> Iterator[Put]:
    """What makes the partitions from first on, up to count."""
    prefix = paths.managed_ledger(name.partition(0).managed_ledger_name)[:-1]
    return (Put(f"{prefix}{index}", b"", MUST_NOT_EXIST) for index in range(first, count))


async def make_nodes(store: MetadataStore, name: TopicName, first: int, count: int) -> None:
    """Makes the partitions from first on, up to count; those that are there stay as they are."""

    async def make(batch: list[Put]) -> None:
        try:
            await store.put_all(batch)
        except BadVersion:
            await asyncio.gather(*(_make_missing(store, put) for put in batch))

    await each_of(_batches(nodes_of(name, first, count)), make, BATCHES_AT_ONCE)


async def _make_missing(store: MetadataStore, put: Put) -> None:
    try:
        await store.put(*put)
    except BadVersion:
        return  # It is there: that was wanted.


def _batches(puts: Iterable[Put]) -> Iterator[list[Put]]:
    batch: list[Put] = []
    size = 0
    for put in puts:
        batch.append(put)
        size += len(put.path)
        if len(batch) == NODES_PER_BATCH_MAX or size >= BYTES_PER_BATCH_MAX:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def each_of(
    items: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int = AT_ONCE
) -> None:
    """Does the work for each item, several at once; the first error ends all of it."""
    iterator = iter(items)

    async def do() -> None:
        for item in iterator:
            await work(item)

    workers = [asyncio.ensure_future(do()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
