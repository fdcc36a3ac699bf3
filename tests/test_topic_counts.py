"""Limits of topics: they hold exactly, and nobody waits for others who make many."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from one_broker import TOPIC, Broker, run
from pyxbroker.base.errors import TopicsLimitReached
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics.partition_nodes import NODES_PER_BATCH_MAX
from pyxbroker.broker.topics.topic_counts import TopicCounts
from pyxbroker.metadata import paths
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import Put, Unavailable

NAME = TopicName.get(TOPIC)
MANY = 5 * NODES_PER_BATCH_MAX + 1


@pytest.fixture(params=[True, False], ids=["shared", "of this process"], autouse=True)
def is_shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """What is told of topics goes by that."""
    monkeypatch.setattr(MemoryStore, "is_shared", request.param)
    return bool(request.param)


async def made(broker: Broker) -> int:
    return len(await broker.node.store.children(paths.managed_ledgers("public/default")))


def another(number: int) -> TopicName:
    return TopicName.get(f"{TOPIC}-{number}")


class Held:
    """A store of a broker that makes so many batches of partitions, and then waits."""

    def __init__(self, broker: Broker, batches: int, patch: pytest.MonkeyPatch) -> None:
        self.goes_on = asyncio.Event()
        self.waits = asyncio.Event()
        self.error: Exception | None = None
        self._left = batches
        self._put_all = broker.node.store.put_all
        patch.setattr(broker.node.store, "put_all", self.put_all)

    async def put_all(self, puts: Sequence[Put]) -> Any:
        if len(puts) > 10 and self._left == 0:
            self.waits.set()
            await self.goes_on.wait()
            if self.error is not None:
                raise self.error
        elif len(puts) > 10:
            self._left -= 1
        return await self._put_all(puts)


def test_of_a_hundred_at_once_as_many_are_made_as_there_may_be(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        found = await asyncio.gather(
            *(broker.topics.loader.ensure(another(number)) for number in range(100)),
            return_exceptions=True,
        )
        refused = [each for each in found if isinstance(each, TopicsLimitReached)]
        assert (await made(broker), len(refused)) == (40, 60)

    run(tmp_path, scenario, maxTopicsPerNamespace=40)


def test_of_partitioned_topics_at_once_as_many_are_made_as_there_may_be(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        create = broker.topics.partitioned.create
        found = await asyncio.gather(
            *(create(another(number), 3) for number in range(30)), return_exceptions=True
        )
        # Which of them is first is the store's to say.
        assert Counter(map(type, found)) == {type(None): 13, TopicsLimitReached: 17}
        assert await made(broker) == 39
        await broker.topics.loader.ensure(another(99))
        with pytest.raises(TopicsLimitReached):
            await broker.topics.loader.ensure(another(100))

    run(tmp_path, scenario, maxTopicsPerNamespace=40)


@pytest.mark.parametrize("ends", ["fails", "is cancelled"])
def test_what_is_not_made_after_all_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    async def scenario(broker: Broker) -> None:
        held = Held(broker, 0, monkeypatch)
        creation = asyncio.ensure_future(broker.topics.partitioned.create(NAME, MANY))
        await held.waits.wait()
        with pytest.raises(TopicsLimitReached):
            await broker.topics.loader.ensure(another(0))
        if ends == "fails":
            held.error = Unavailable("away")
            held.goes_on.set()
        else:
            creation.cancel()
        await asyncio.wait([creation])
        assert creation.cancelled() or isinstance(creation.exception(), Unavailable)
        await asyncio.gather(*(broker.topics.loader.ensure(another(number)) for number in range(5)))
        assert broker.topics.loader.counts._reservations == {}

    run(tmp_path, scenario, maxTopicsPerNamespace=MANY)


def test_a_large_creation_does_not_delay_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it take more room than it needs: what is made of it already does not count twice."""

    async def scenario(broker: Broker) -> None:
        held = Held(broker, 2, monkeypatch)
        creation = asyncio.ensure_future(broker.topics.partitioned.create(NAME, MANY))
        await held.waits.wait()
        await asyncio.wait_for(broker.topics.loader.ensure(another(0)), 5)
        with pytest.raises(TopicsLimitReached):
            await asyncio.wait_for(broker.topics.loader.ensure(another(1)), 5)
        # A partition has its place already.
        await asyncio.wait_for(broker.topic(str(NAME.partition(MANY - 1))), 5)
        held.goes_on.set()
        await creation
        with pytest.raises(TopicsLimitReached):
            await broker.topics.loader.ensure(another(1))
        assert await made(broker) == MANY + 1
        await broker.topics.deletion.delete(await broker.topic(str(another(0))))
        await broker.topics.loader.ensure(another(1))

    run(tmp_path, scenario, maxTopicsPerNamespace=MANY + 1)


def test_a_topic_and_partitions_whose_nodes_look_alike_have_their_own_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        held = Held(broker, 0, monkeypatch)
        creation = asyncio.ensure_future(broker.topics.partitioned.create(NAME, MANY))
        await held.waits.wait()
        # Neither of them is one of the partitions that are being made.
        for suffix in ("-partition-", f"-partition-0{MANY}"):
            await broker.topics.loader.ensure(TopicName.get(TOPIC + suffix))
        with pytest.raises(TopicsLimitReached):
            await broker.topics.loader.ensure(another(1))
        held.goes_on.set()
        await creation
        assert await made(broker) == MANY + 2

    run(tmp_path, scenario, maxTopicsPerNamespace=MANY + 2)


def test_a_list_that_changes_again_and_again_is_counted_all_the_same(
    is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store of this process is asked again: what it tells is added to what is kept."""
    asked = 0

    async def main() -> None:
        store = MemoryStore()
        await store.open()
        await store.put(paths.managed_ledger("a/x/persistent/t"), b"")
        children = store.children

        def and_one_more(path: str) -> asyncio.Future[list[str]]:
            nonlocal asked
            found = children(path)
            if asked < 50:
                store.put(paths.managed_ledger(f"a/x/persistent/more{asked}"), b"")
            asked += 1
            return found

        monkeypatch.setattr(store, "children", and_one_more)
        counts = TopicCounts(store)
        count = await counts.get("a/x")
        assert (count, asked) == ((1, 1) if is_shared else (51, 51))
        assert bool(counts._namespaces) is not is_shared, "what has changed is not kept"
        counts.close()
        await store.close()

    asyncio.run(main())
