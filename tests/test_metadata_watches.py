"""What ZooKeeper watches for us: what is there, and of the rest as little as somebody has to know.

Two processes share the metadata: what the one makes, the other one hears of.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent

from metadata_backends import Backend, coroutine_test
from one_bookie import until
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.commands.topic_list import WatchedNamespace
from pyxbroker.broker.dynamic_settings import DynamicSettings
from pyxbroker.broker.stored_records import StoredRecords
from pyxbroker.broker.topics.topic_counts import TopicCounts
from pyxbroker.metadata import paths
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.metadata.embedded import EmbeddedStore
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import (
    MetadataStore,
    Notification,
    NotificationKind,
    followed_children,
)
from pyxbroker.metadata.zookeeper import ZooKeeperStore
from pyxbroker.metadata.zookeeper_client import WatchedPaths
from pyxbroker.policies.namespaces import NamespacePolicies
from pyxbroker.policies.table import of_broker
from pyxbroker.policies.values import Policies
from pyxbroker.settings.config import Config
from zookeeper_server import ZooKeeperServer

MADE_UP = [f"tenant{n}/x" for n in range(200)]


@pytest.fixture
def shared(zookeeper: ZooKeeperServer, tmp_path: Path) -> Backend:
    return Backend("zookeeper", tmp_path, zookeeper)


def watches(store: MetadataStore) -> int:
    """Those that ZooKeeper has for it, by what kazoo knows of them; the store knows of the same."""
    assert isinstance(store, ZooKeeperStore) and store._client is not None
    client = store._client
    # kazoo's thread notes a watch after it has passed on the answer.
    deadline = time.monotonic() + 10
    while (count := len(client._data_watchers) + len(client._child_watchers)) != len(
        store._watched
    ):
        assert time.monotonic() < deadline, (count, len(store._watched))
        time.sleep(0.001)
    return count


async def heard_by(store: MetadataStore) -> set[Notification]:
    """What watchers of everything hear from now on."""
    heard: set[Notification] = set()
    store.watch(heard.add)
    return heard


@coroutine_test
async def test_what_is_not_there_is_not_watched(shared: Backend) -> None:
    async with shared.store() as store:
        await heard_by(store)
        cache = MetadataCache(store)
        before = watches(store)
        for name in MADE_UP:
            path = paths.namespace_policies(name)
            assert await cache.get(path) is None
            assert await store.get(path) is None
            assert not await store.exists(path)
            assert await store.children(path) == []
            assert not await cache.children(paths.partitioned_topics(name))
            assert await followed_children(store, paths.managed_ledgers(name)) == []
        # The two highest lists, which are to tell when they come to be.
        assert watches(store) - before <= 2
        assert len(cache._values) == 0 and len(cache._children) <= 1
        cache.close()


@coroutine_test
async def test_what_is_there_is_watched_until_it_goes(shared: Backend) -> None:
    async with shared.store() as store, shared.store() as other:
        heard = await heard_by(store)
        before = watches(store)
        for name in MADE_UP:
            await other.put(paths.namespace_policies(name), b"{}")
            await store.get(paths.namespace_policies(name))
            await store.children(paths.namespace_policies(name))
        assert watches(store) - before == 2 * len(MADE_UP)
        for name in MADE_UP:
            await other.delete(paths.namespace_policies(name))
        await until(lambda: len(heard) == len(MADE_UP))
        assert {each.kind for each in heard} == {NotificationKind.DELETED}
        assert watches(store) == before == 0


@coroutine_test
async def test_a_list_that_is_not_there_yet_is_told_of_when_it_comes(shared: Backend) -> None:
    """At whichever depth it begins."""
    path = paths.managed_ledgers("t/n")
    async with shared.store() as store, shared.store() as other:
        heard: list[str] = []
        store.watch(lambda news: heard.append(news.path), prefix=path, lists_down_to=4, above=True)
        made = ""
        for part in [*path[1:].split("/"), "topic"]:
            assert await followed_children(store, path) == []
            heard.clear()
            made += f"/{part}"
            await other.put(made, b"")
            await until(lambda: bool(heard))
        assert await followed_children(store, path) == ["topic"]
        heard.clear()
        await other.put(f"{path}/second", b"")
        await until(lambda: path in heard)


@coroutine_test
async def test_where_every_change_is_told_a_list_that_comes_to_be_wakes_who_waits_for_it_alone(
    tmp_path: Path,
) -> None:
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    namespace = WatchedNamespace(store, "t/n", None)
    for other in ("t/m/persistent/topic", "u/n/persistent/topic", "t/n/elsewhere/topic"):
        await store.put(paths.managed_ledger(other), b"")
    assert not namespace._changed.is_set()
    await store.put(paths.managed_ledger("t/n/persistent/topic"), b"")
    assert namespace._changed.is_set()
    namespace.close()
    await store.close()


@coroutine_test
async def test_of_topics_their_lists_are_watched_and_not_each_by_itself(shared: Backend) -> None:
    async with shared.store() as store, shared.store() as other:
        counts, namespace = TopicCounts(store), WatchedNamespace(store, "t/n", None)
        for number in range(20):
            await other.put(paths.cursor(f"t/n/persistent/{number}", "s"), b"")
        await namespace.load()
        assert await counts.get("t/n") == len(namespace.topics) == 20
        for number in range(20):
            name = f"t/n/persistent/{number}"
            assert await store.children(paths.managed_ledger(name)) == ["s"]
            assert await store.get(paths.managed_ledger(name)) is not None
            assert await store.get(paths.cursor(name, "s")) is not None
        assert watches(store) == 1
        namespace.close()
        counts.close()


@coroutine_test
async def test_a_watched_namespace_hears_of_its_first_topic(shared: Backend) -> None:
    async with shared.store() as store, shared.store() as other:
        namespace = WatchedNamespace(store, "t/n", None)
        await namespace.load()
        assert namespace.topics == {}
        for count, name in enumerate(("a", "b"), 1):
            await other.put(paths.managed_ledger(f"t/n/persistent/{name}"), b"")
            await until(lambda count=count: len(namespace.topics) == count)  # type: ignore[misc]
        namespace.close()


@coroutine_test
async def test_a_cached_list_has_what_another_process_makes(shared: Backend) -> None:
    async with shared.store() as store, shared.store() as other:
        cache = MetadataCache(store)
        path = paths.partitioned_topics("t/n")

        async def has(*names: str) -> None:
            for _ in range(1000):
                if await cache.children(path) == frozenset(names):
                    return
                await asyncio.sleep(0.01)
            pytest.fail(f"not {names}")

        await has()
        for _ in range(2):
            await other.put(f"{path}/a", b"")
            await has("a")
            await other.put(f"{path}/b", b"")
            await has("a", "b")
            await other.delete(f"{path}/b")
            await has("a")
            await other.delete(f"{path}/a")
            await has()
            await other.delete(path)
            await has()
            await other.delete("/admin/partitioned-topics/t/n")
            await has()
        reads = 0
        children = store.children

        def counted(path: str) -> Any:
            nonlocal reads
            reads += 1
            return children(path)

        async def reads_of_all() -> int:
            before = reads
            for name in MADE_UP:
                await cache.children(path)
                await cache.children(paths.partitioned_topics(name))
            return reads - before

        await other.put(f"{path}/a", b"")
        await has("a")
        store.children = counted  # type: ignore[method-assign]
        # What made the list has several notifications, and each that is late drops it once more.
        for _ in range(1000):
            if await reads_of_all() == 0:
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("lists are read again and again")
        # Whoever writes knows of it at once, also of what is above.
        await store.put(paths.partitioned_topic("new/n", "x"), b"")
        cache.forget(paths.partitioned_topic("new/n", "x"))
        assert await cache.children(paths.partitioned_topics("new/n")) == {"x"}
        cache.close()


@coroutine_test
async def test_topics_that_another_process_makes_count_from_the_first(shared: Backend) -> None:
    async with shared.store() as store, shared.store() as other:
        counts = TopicCounts(store)
        for number in range(3):
            before = await counts.get("t/n")
            assert before == number
            await other.put(paths.managed_ledger(f"t/n/persistent/{number}"), b"")
            for _ in range(500):
                if await counts.get("t/n") == number + 1:
                    break
                await asyncio.sleep(0.01)
        assert await counts.get("t/n") == 3
        counts.close()


@coroutine_test
async def test_the_first_setting_that_another_process_makes_is_in_force(shared: Backend) -> None:
    async with shared.store() as store, shared.store() as other:
        config, changed = Config(), asyncio.Event()
        settings = DynamicSettings(config, store, StoredRecords(store), changed.set)
        others = DynamicSettings(Config(), other, StoredRecords(other), lambda: None)
        await settings.open()
        for value in (7, 8):
            await others.set("dispatchThrottlingRatePerTopicInMsg", str(value))
            while config.dispatchThrottlingRatePerTopicInMsg != value:
                changed.clear()
                await changed.wait()
        await settings.close()


class Follower:
    """Who is told of policies."""

    def __init__(self, name: str) -> None:
        self.name = TopicName.get(name)
        self.policies: Policies = of_broker(Config())

    def on_policies(self, policies: Policies) -> None:
        self.policies = policies


@coroutine_test
async def test_open_topics_hear_of_a_namespace_that_is_made_again(shared: Backend) -> None:
    path = paths.namespace_policies("t/n")
    async with shared.store() as store, shared.store() as other:
        await other.put(path, b'{"max_producers_per_topic":1}')
        policies = NamespacePolicies(
            of_broker(Config()), store, MetadataCache(store), lambda call, *args: call(*args), "c"
        )
        follower = Follower("persistent://t/n/a")
        policies.follow("t/n", follower)
        await until(lambda: follower.policies.producers_max == 1)
        await other.delete(path)
        await until(lambda: policies._namespaces["t/n"].task is None)
        await asyncio.sleep(0.2)
        await other.put(path, b'{"max_producers_per_topic":2}')
        await until(lambda: follower.policies.producers_max == 2)
        await other.put(path, b'{"max_producers_per_topic":3}')
        await until(lambda: follower.policies.producers_max == 3)
        policies.close()


@coroutine_test
async def test_open_topics_hear_of_a_namespace_that_is_made_again_while_it_is_looked_for() -> None:
    path = paths.namespace_policies("t/n")

    class Overtaken(MemoryStore):
        """It comes to be when the answer that it is not there is on its way."""

        def exists(self, path: str, *, watch: bool = False) -> asyncio.Future[bool]:
            answer = super().exists(path, watch=watch)
            self.put(path, b'{"max_producers_per_topic":2}')
            return answer

    store = Overtaken()
    await store.open()
    policies = NamespacePolicies(
        of_broker(Config()), store, MetadataCache(store), lambda call, *args: call(*args), "c"
    )
    follower = Follower("persistent://t/n/a")
    policies.follow("t/n", follower)
    await until(lambda: follower.policies.producers_max == 2)
    assert await store.exists(path)
    policies.close()
    await store.close()


@coroutine_test
async def test_all_is_told_also_when_requests_went_on_before_the_news_of_the_connection(
    shared: Backend,
) -> None:
    async with shared.store() as store:
        heard = await heard_by(store)
        await store.get("/")
        assert isinstance(store, ZooKeeperStore) and store._client is not None
        assert store._client.is_gate_open
        store._on_connected()
        await until(lambda: heard == {Notification(NotificationKind.MODIFIED, "/")})


def test_after_a_reconnection_others_have_their_turn_while_all_is_told() -> None:
    count = 50_000
    heard: list[Notification] = []
    watched = WatchedPaths(lambda *_: None, heard.append)

    async def main() -> int:
        for number in range(count):
            watched.note_node(f"/n/{number}")
            watched.note_children(f"/n/{number}")
        loop = asyncio.get_running_loop()
        began = loop.time()
        watched.notify_all()
        assert loop.time() - began < 0.01, "that takes no longer however many there are"
        watched.note_node("/later")
        watched.notify_all()
        turns = 0
        while len(heard) < 2 * count + 1:
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(asyncio.wait_for(main(), 30)) > 10
    assert heard[-1] == Notification(NotificationKind.MODIFIED, "/later")
    assert len(set(heard)) == 2 * count + 1
    assert len(watched) == 0


def test_nothing_is_told_of_a_store_that_is_closed() -> None:
    heard: list[Notification] = []
    watched = WatchedPaths(lambda *_: None, heard.append)

    async def main() -> None:
        watched.note_node("/n")
        watched.notify_all()
        watched.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert heard == []


def test_an_event_is_told_whatever_is_known_of_its_answer() -> None:
    """kazoo's thread may bring the event of a watch before the answer that set it."""
    heard: list[Notification] = []
    watched = WatchedPaths(lambda call, *arguments: call(*arguments), heard.append)
    watched.on_event(WatchedEvent(EventType.CHANGED, KeeperState.CONNECTED, "/n"))
    watched.on_event(WatchedEvent(EventType.NONE, KeeperState.CONNECTED, None))
    assert heard == [Notification(NotificationKind.MODIFIED, "/n")]
