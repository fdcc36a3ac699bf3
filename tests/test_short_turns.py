"""Long work for one who asks leaves turns to everybody else."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any
from unittest.mock import Mock

import pytest

from pyxbroker.ackset import AckSet
from pyxbroker.base.bundles import Bundle, boundaries_of, bundle_of, bundles_data
from pyxbroker.base.compact_json import to_json
from pyxbroker.base.sliced_json import to_json_in_slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.statistics.partitioned_statistics import MergedStatistics
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.upkeep import Upkeep, open_topics
from pyxbroker.metadata import paths
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.mledger import positions
from pyxbroker.mledger.closed import ClosedLedger, read_all_closed
from pyxbroker.mledger.positions import LedgerRecord, encode_cursor, encode_ledger_list
from pyxbroker.policies.namespaces import NamespacePolicies
from pyxbroker.policies.table import Policies, of_broker
from pyxbroker.settings.config import Config
from test_slices import least_of, longest_turn

TURN_S = 0.02  # a slice is a tenth of that; what is guarded took several times as long

Json = dict[str, Any]


def turn_of(work: Callable[[], Coroutine[Any, Any, Any]]) -> float:
    """The longest turn of some work, in seconds of CPU."""

    async def main() -> float:
        async def run() -> None:
            await work()

        return await longest_turn([asyncio.ensure_future(run())])

    return least_of(2, main)


# --- topics -----------------------------------------------------------------------------------


def test_topics_are_looked_at_in_short_turns() -> None:
    def check_age() -> None:
        end = time.thread_time() + 0.0005
        while time.thread_time() < end:
            pass

    # The class is asked for: what is not stored has no ledgers.
    topics: list[Any] = [Mock(PersistentTopic, fenced=False, check_age=check_age)] * 200
    assert turn_of(lambda: Upkeep(lambda: iter(topics)).check_ages()) < TURN_S


def test_many_walks_over_topics_share_a_turn() -> None:
    topics: list[Any] = [Mock(PersistentTopic, fenced=False)] * 300

    async def walk() -> None:
        async for _ in open_topics(iter(topics)):
            pass

    async def main() -> float:
        every = [asyncio.ensure_future(walk()) for _ in range(1_500)]
        await asyncio.sleep(0)  # the first steps are made where the tasks come from
        return await longest_turn(every)

    gc.collect()
    gc.disable()
    try:
        assert min(asyncio.run(main()) for _ in range(2)) < TURN_S
    finally:
        gc.enable()


# --- statistics -------------------------------------------------------------------------------


def partition(number: int, publishers: int, subscriptions: int, consumers: int) -> Json:
    return {
        "msgRateIn": 1.0,
        "msgThroughputIn": 1.0,
        "publishers": [
            {"producerName": f"p{number}-{n}", "supportsPartialProducer": True, "msgRateIn": 1.0}
            for n in range(publishers)
        ],
        "subscriptions": {
            f"s{number}-{n}": {
                "msgBacklog": 1,
                "consumers": [
                    {"consumerName": f"c{each}", "msgRateOut": 1.0} for each in range(consumers)
                ],
            }
            for n in range(subscriptions)
        },
    }


@pytest.mark.parametrize(
    "parts",
    [
        [partition(n, 10, 10, 0) for n in range(500)],
        [partition(0, 0, 1, 20_000), *(partition(0, 0, 1, 1) for _ in range(50))],
    ],
    ids=["many of their own", "most in the first one"],
)
def test_partitions_are_added_up_in_short_turns(parts: list[Json]) -> None:
    async def add_all() -> None:
        together = MergedStatistics()
        for each in parts:
            await together.add(each)
        await together.end()

    assert turn_of(add_all) < TURN_S


SUBSCRIPTION: Json = {"consumers": [], "type": "Shared", **{f"field{n}": n for n in range(50)}}


@pytest.mark.parametrize(
    "answer",
    [
        {"subscriptions": {f"s{n}": SUBSCRIPTION for n in range(10_000)}},
        {"subscriptions": {"s": {"consumers": [SUBSCRIPTION] * 10_000}}},
    ],
    ids=["subscriptions", "consumers"],
)
def test_statistics_are_encoded_in_short_turns(answer: Json) -> None:
    assert turn_of(lambda: to_json_in_slices(answer)) < TURN_S


def test_long_texts_are_encoded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def noted(value: object) -> bytes:
        text = to_json(value)
        sizes.append(len(text))
        return text

    monkeypatch.setattr("pyxbroker.base.sliced_json.to_json", noted)
    consumer = {"metadata": {"a": "x" * 200_000}, "address": "y", "b": "z" * 70_000}
    answer = {"consumers": [consumer] * 20, "names": ["w" * 20_000] * 99}
    assert asyncio.run(to_json_in_slices(answer)) == to_json(answer)
    assert max(sizes) < 210_000


def anything(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(8) if depth else 0
    count = chance.choice([0, 1, 3, 300 if depth == 1 else 20])
    if kind >= 6:
        return {f"\u00e4\n{n}": anything(chance, depth - 1) for n in range(count)}
    if kind >= 4:
        return [anything(chance, depth - 1) for _ in range(count)]
    return chance.choice([None, True, 0, -1.5, "", 'a"\u20ac\n', {}, [], [[]], {"a": {}}])


def test_json_in_slices_is_the_same_text() -> None:
    chance = random.Random(1)
    values = [anything(chance, 3) for _ in range(200)]
    assert max(len(to_json(each)) for each in values) > 10_000
    for each in values:
        assert asyncio.run(to_json_in_slices(each)) == to_json(each)


# --- bundles ----------------------------------------------------------------------------------


def test_a_bundle_is_found_without_looking_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    boundaries = boundaries_of(bundles_data(4_096))
    bundles = [Bundle(*each) for each in itertools.pairwise(boundaries)]
    names = [TopicName.get(f"persistent://a/b/t{n}") for n in range(50)]
    expected = [next(each for each in bundles if name in each) for name in names]
    hashed: list[TopicName] = []
    hash_of = bundle_of.__globals__["hash_of"]

    def noting(name: TopicName) -> int:
        hashed.append(name)
        return int(hash_of(name))

    monkeypatch.setitem(bundle_of.__globals__, "hash_of", noting)
    assert [bundle_of(name, boundaries) for name in names] == expected
    assert len(hashed) == len(names)
    assert bundle_of(names[0], []) is None
    for at, bundle in ((0, bundles[0]), (boundaries[7], bundles[7]), (2**32 - 1, bundles[-1])):
        monkeypatch.setitem(bundle_of.__globals__, "hash_of", lambda _, at=at: at)
        assert bundle_of(names[0], boundaries) == bundle


# --- topics that are closed -------------------------------------------------------------------


def test_the_ledgers_of_a_topic_are_looked_at_once_for_all_its_cursors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "public/default/persistent/t"
    seen: list[int] = []
    decode_cursor = positions.decode_cursor

    def noting(value: bytes, ends: Any) -> Any:
        seen.append(id(ends))
        return decode_cursor(value, ends)

    async def main() -> None:
        store = MemoryStore()
        await store.open()
        ledgers = [LedgerRecord(n, 5, 5, 1, b"") for n in range(10)]
        for each in (name, f"{name}-2"):
            await store.put(paths.managed_ledger(each), encode_ledger_list(ledgers, {}, None))
            for n in range(600):
                node = paths.cursor(each, f"s{n}")
                await store.put(node, encode_cursor(AckSet(n % 10, 1), -1, {}, {}))
        monkeypatch.setattr(positions, "decode_cursor", noting)
        for found in await read_all_closed(store, [name, f"{name}-2"]):
            assert isinstance(found, ClosedLedger)
            assert len(found.cursors) == 600
            assert found.cursors["s7"].mark_delete == (7, 1)
        assert len(seen) == 1_200 and sum(a != b for a, b in itertools.pairwise(seen)) == 1
        await store.close()

    asyncio.run(main())


# --- settings ---------------------------------------------------------------------------------


def consumers_max(number: int) -> Policies:
    """What a broker says that has this setting."""
    return of_broker(Config(maxConsumersPerTopic=number))


@contextlib.asynccontextmanager
async def policies_of(names: Iterable[str]) -> AsyncIterator[NamespacePolicies]:
    """The policies of namespaces that are there and in use, of a broker that says nothing."""
    store = MemoryStore()
    await store.open()
    run = lambda tell, *what: tell(*what)  # noqa: E731
    policies = NamespacePolicies(consumers_max(0), store, MetadataCache(store), run, "standalone")
    for number, name in enumerate(names):
        await store.put(paths.namespace_policies(name), b'{"message_ttl_in_seconds": 5}')
        await policies.of_namespace(name)
        if number % 20 == 0:
            await asyncio.sleep(0)
    yield policies
    policies.close()
    await store.close()


async def all_have(policies: NamespacePolicies, number: int) -> None:
    """What is being told reaches every namespace."""
    assert policies._refresh_task is not None
    await policies._refresh_task
    for each in policies._namespaces.values():
        assert each.policies is not None and each.policies.consumers_max == number


def test_a_setting_reaches_all_namespaces_in_short_turns() -> None:
    async def work() -> None:
        async with policies_of(f"a/n{n}" for n in range(2_000)) as policies:
            policies.set_broker(consumers_max(7))
            # Who asks has them at once.
            assert (await policies.of_namespace("a/n1999")).consumers_max == 7
            await all_have(policies, 7)

    assert turn_of(work) < TURN_S


def test_the_newest_of_two_settings_reaches_all_namespaces() -> None:
    async def main() -> None:
        async with policies_of(f"a/n{n}" for n in range(200)) as policies:
            for n in (5, 6, 7):
                policies.set_broker(consumers_max(n))
                await asyncio.sleep(0)
            await all_have(policies, 7)

    asyncio.run(main())


def test_a_setting_that_changes_when_the_one_before_is_told_reaches_all_and_a_fault_costs_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with policies_of(("a/x", "a/y", "a/z")) as policies:
            refresh = policies._refresh

            def one_fails(namespace: Any) -> None:
                if namespace.name == "a/y":
                    raise ValueError("a/y")
                refresh(namespace)

            monkeypatch.setattr(policies, "_refresh", one_fails)
            policies.set_broker(consumers_max(5))
            # It comes in the turn in which the task has told all.
            asyncio.get_running_loop().call_soon(policies.set_broker, consumers_max(6))
            for _ in range(10):
                await asyncio.sleep(0)
            assert policies._refresh_task is None
            found = {name: each.policies for name, each in policies._namespaces.items()}
            numbers = {name: each and each.consumers_max for name, each in found.items()}
            assert numbers == {"a/x": 6, "a/y": 0, "a/z": 6}

    asyncio.run(main())
