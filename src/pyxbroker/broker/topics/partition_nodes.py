"""The nodes of partitions in metadata, created in batches: a topic may have 100,000 partitions.

As in Pulsar, a new partition is the node of a managed ledger that has no ledgers yet; its first
ledger is created when the partition is opened. Other tasks run between two batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

from pyxbroker.base.slices import Slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics.registry import TopicRegistry
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MUST_NOT_EXIST, BadVersion, MetadataStore, Put

NODES_PER_BATCH_MAX = 128
BYTES_PER_BATCH_MAX = 256 << 10  # of paths; ZooKeeper takes 1 MiB in one request
BATCHES_IN_PARALLEL = 2
WORKERS = 16  # workers of for_each
SINGLE_LOOKUPS_MAX = 128  # partitions that are looked up singly; else the namespace's list is read
INDEX_DIGITS_MAX = 10

T = TypeVar("T")


def nodes_of(name: TopicName, first: int, count: int) -> Iterator[Put]:
    """Yield the writes that create the partitions from first to count."""
    prefix = paths.managed_ledger(name.partition(0).managed_ledger_name)[:-1]
    return (Put(f"{prefix}{index}", b"", MUST_NOT_EXIST) for index in range(first, count))


def one_batch(name: TopicName, count: int) -> list[Put] | None:
    """Return the writes that create all partitions, None if they are too many for one batch."""
    batch = next(_batches(nodes_of(name, 0, count)))
    return batch if len(batch) == count else None


async def create_nodes(store: MetadataStore, name: TopicName, first: int, count: int) -> None:
    """Create the partitions from first to count; existing ones stay as they are."""

    async def make(batch: list[Put]) -> None:
        try:
            await store.put_all(batch)
        except BadVersion:
            await asyncio.gather(*(_create_missing(store, put) for put in batch))

    await for_each(_batches(nodes_of(name, first, count)), make, BATCHES_IN_PARALLEL)


async def _create_missing(store: MetadataStore, put: Put) -> None:
    try:
        await store.put(*put)
    except BadVersion:
        return  # The partition exists already.


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


async def existing_partitions(
    store: MetadataStore, registry: TopicRegistry, name: TopicName, count: int
) -> list[int]:
    """Return the indexes below count of partitions that exist, in metadata or open, in order.

    The time depends on the number of topics that exist, however large count is.
    """
    slices = Slices()
    if count <= SINGLE_LOOKUPS_MAX:
        indexes = []
        for index in range(count):
            if await registry.exists(name.partition(index)):
                indexes.append(index)
            await slices.pause()
        return indexes
    found: set[int] = set()
    if name.is_persistent:
        prefix = name.partition(0).encoded_local_name[:-1]
        nodes = await store.children(paths.managed_ledgers(name.namespace, name.domain))
        for node in nodes:
            if node.startswith(prefix):
                index = index_of(node[len(prefix) :])
                if 0 <= index < count:
                    found.add(index)
            await slices.pause()
    whole = str(name)
    for topic in registry:
        each = topic.name
        if (
            0 <= each.partition_index < count
            and not topic.fenced
            and each.partitioned_topic_name == whole
        ):
            found.add(each.partition_index)
        await slices.pause()
    return sorted(found)


def index_of(digits: str) -> int:
    """Return the index of a partition from the end of its name, -1 for any other text."""
    if not (digits.isascii() and digits.isdigit()) or len(digits) > INDEX_DIGITS_MAX:
        return -1
    index = int(digits)
    return index if str(index) == digits else -1


async def for_each(
    items: Iterable[T], work: Callable[[T], Awaitable[None]], parallel: int = WORKERS
) -> None:
    """Call work for each item, several in parallel; after the first error begin no more calls.

    Running calls are completed before this returns, so that a retry does not overlap with them.
    """
    iterator = iter(items)
    slices = Slices()
    errors: list[Exception] = []

    async def do() -> None:
        for item in iterator:
            # Calls often never wait, and all workers start in one loop iteration.
            await slices.pause()
            if errors:
                return
            try:
                await work(item)
            except Exception as error:
                errors.append(error)
            if errors:
                return

    workers = [asyncio.ensure_future(do()) for _ in range(parallel)]
    try:
        await asyncio.gather(*workers)
        if errors:
            raise errors[0]
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
