"""Partitions come by the hundred thousand: their nodes are made in batches, a few at a time.

A new partition is a node of a managed ledger that has no ledgers yet, as Pulsar's brokers make it;
its first ledger comes when it is opened. Between two batches everybody else has a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from pyxbroker.base.slices import Slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MUST_NOT_EXIST, BadVersion, MetadataStore, Put

if TYPE_CHECKING:
    from pyxbroker.broker.topics.topics import Topics

NODES_PER_BATCH_MAX = 128
BYTES_PER_BATCH_MAX = 256 << 10  # of paths; ZooKeeper takes 1 MiB in one request
BATCHES_AT_ONCE = 2
AT_ONCE = 16  # of what is done one by one
ASKED_FOR_MAX = 128  # partitions; of more the namespace's list is read
INDEX_DIGITS_MAX = 10

T = TypeVar("T")


def nodes_of(name: TopicName, first: int, count: int) -> Iterator[Put]:
    """What makes the partitions from first on, up to count."""
    prefix = paths.managed_ledger(name.partition(0).managed_ledger_name)[:-1]
    return (Put(f"{prefix}{index}", b"", MUST_NOT_EXIST) for index in range(first, count))


def one_batch(name: TopicName, count: int) -> list[Put] | None:
    """What makes all partitions in one write; None when they are too many for that."""
    batch = next(_batches(nodes_of(name, 0, count)))
    return batch if len(batch) == count else None


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


async def partitions_there(
    store: MetadataStore, topics: Topics, name: TopicName, count: int
) -> list[int]:
    """The partitions before count that are there, in order: in metadata, or open.

    The time goes with the topics that there are, however large count is.
    """
    slices = Slices()
    if count <= ASKED_FOR_MAX:
        there = []
        for index in range(count):
            if await topics.exists(name.partition(index)):
                there.append(index)
            await slices.pause()
        return there
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
    for topic in topics:
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
    """The number of a partition from the end of its name; -1 for what is none."""
    if not (digits.isascii() and digits.isdigit()) or len(digits) > INDEX_DIGITS_MAX:
        return -1
    index = int(digits)
    return index if str(index) == digits else -1


async def each_of(
    items: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int = AT_ONCE
) -> None:
    """Does the work for each item, several at once; after the first error no more is begun.

    What was begun is done to its end: who repeats it finds nothing under way, or half done.
    """
    iterator = iter(items)
    slices = Slices()
    errors: list[Exception] = []

    async def do() -> None:
        for item in iterator:
            # Much work does not wait for anything, and all workers begin in one turn.
            await slices.pause()
            if errors:
                return
            try:
                await work(item)
            except Exception as error:
                errors.append(error)
            if errors:
                return

    workers = [asyncio.ensure_future(do()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
        if errors:
            raise errors[0]
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
