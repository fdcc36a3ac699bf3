"""Records that are changed: by compare-and-set, and with everything in them that is not ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pyxbroker.base.compact_json import to_json
from pyxbroker.base.errors import ConcurrentModification, MetadataStoreError, NamespaceNotFound
from pyxbroker.metadata import paths
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.policies.records import change_namespace, read_cached

PATH = paths.namespace_policies("a/b")


def run(scenario: Callable[[MemoryStore, MetadataCache], Awaitable[None]]) -> None:
    async def main() -> None:
        store = MemoryStore()
        await store.open()
        cache = MetadataCache(store)
        await scenario(store, cache)
        cache.close()
        await store.close()

    asyncio.run(main())


def test_what_is_not_ours_is_kept() -> None:
    async def scenario(store: MemoryStore, cache: MetadataCache) -> None:
        await store.put(PATH, b'{"of_tomorrow":{"x":[1,null]},"deleted":false,"ratio":1.5}')
        assert await cache.get(PATH)

        def change(fields: dict[str, Any]) -> None:
            fields["max_topics_per_namespace"] = 3

        written = await change_namespace(store, cache, "a/b", change)
        value = await cache.get(PATH)
        assert value is not None and json.loads(value) == written
        assert value == (
            b'{"of_tomorrow":{"x":[1,null]},"deleted":false,"ratio":1.5,'
            b'"max_topics_per_namespace":3}'
        )

    run(scenario)


def test_no_change_of_many_at_once_is_lost() -> None:
    async def scenario(store: MemoryStore, cache: MetadataCache) -> None:
        await store.put(PATH, b"{}")

        def adding(number: int) -> Callable[[dict[str, Any]], None]:
            return lambda fields: fields.update({f"f{number}": number})

        changes = [change_namespace(store, cache, "a/b", adding(n)) for n in range(20)]
        await asyncio.gather(*changes)
        found = await store.get(PATH)
        assert found is not None and json.loads(found.value) == {f"f{n}": n for n in range(20)}

    run(scenario)


def test_changes_of_one_process_take_turns() -> None:
    async def scenario(store: MemoryStore, cache: MetadataCache) -> None:
        await store.put(PATH, b"{}")
        tried = []

        def adding(number: int) -> Callable[[dict[str, Any]], None]:
            def change(fields: dict[str, Any]) -> None:
                tried.append(number)
                fields[f"f{number}"] = number

            return change

        await asyncio.gather(
            *(change_namespace(store, cache, "a/b", adding(n)) for n in range(300))
        )
        assert tried == list(range(300))
        found = await store.get(PATH)
        assert found is not None and len(json.loads(found.value)) == 300

    run(scenario)


def test_who_is_never_first_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: MemoryStore, cache: MetadataCache) -> None:
        await store.put(PATH, b"{}")
        rounds = 0

        def change(fields: dict[str, Any]) -> None:
            nonlocal rounds
            rounds += 1
            store.put(PATH, b'{"by":"somebody else"}')

        with pytest.raises(ConcurrentModification, match="Concurrent modification"):
            await change_namespace(store, cache, "a/b", change)
        found = await store.get(PATH)
        assert found is not None and found.value == b'{"by":"somebody else"}'
        assert rounds == 100

    run(scenario)


def test_a_change_that_raises_writes_nothing() -> None:
    async def scenario(store: MemoryStore, cache: MetadataCache) -> None:
        def refuse(fields: dict[str, Any]) -> None:
            raise ValueError("no")

        with pytest.raises(NamespaceNotFound):
            await change_namespace(store, cache, "a/b", refuse)
        assert not await store.exists(PATH)
        await store.put(PATH, b"{}")
        with pytest.raises(ValueError, match="no"):
            await change_namespace(store, cache, "a/b", refuse)
        found = await store.get(PATH)
        assert found is not None and found.version == 0
        await store.put(PATH, b"[1]")
        with pytest.raises(MetadataStoreError, match="cannot be read"):
            await change_namespace(store, cache, "a/b", refuse)

    run(scenario)


def test_a_record_is_parsed_once_until_it_changes() -> None:
    async def scenario(store: MemoryStore, cache: MetadataCache) -> None:
        assert await read_cached(cache, PATH) is None
        await store.put(PATH, b'{"a":1}')
        first = await read_cached(cache, PATH)
        assert first == {"a": 1}
        assert await read_cached(cache, PATH) is first
        await change_namespace(store, cache, "a/b", lambda fields: fields.update(a=2))
        # Whoever still has the former one is not to see it change.
        assert first == {"a": 1}
        assert await read_cached(cache, PATH) == {"a": 2}
        await store.put(PATH, b"[]")
        for _ in range(2):
            with pytest.raises(MetadataStoreError):
                await read_cached(cache, PATH)
        await store.put(PATH, b"")
        assert await read_cached(cache, PATH) == {}

    run(scenario)


def test_what_was_written_is_not_parsed_unless_somebody_else_came_after() -> None:
    async def scenario(store: MemoryStore, cache: MetadataCache) -> None:
        await store.put(PATH, b"{}")
        written = await change_namespace(store, cache, "a/b", lambda fields: fields.update(a=[1]))
        assert await read_cached(cache, PATH) is written
        written = await change_namespace(store, cache, "a/b", lambda fields: fields.update(a=[2]))
        await store.put(PATH, b'{"a":[3]}')
        assert await read_cached(cache, PATH) == {"a": [3]}
        assert written == {"a": [2]}

    run(scenario)


def test_what_a_fast_encoder_refuses_is_kept() -> None:
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    fields = {"a": 1 << 70, "b": deep}
    assert json.loads(to_json(fields)) == fields
    assert to_json({"a": [1.5, True, None, "\u00e4\n"]}) == b'{"a":[1.5,true,null,"\xc3\xa4\\n"]}'
    with pytest.raises(TypeError):
        to_json({"a": object()})


def test_parsed_records_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyxbroker.metadata.cache.PARSED_BYTES_MAX", 16)

    async def scenario(store: MemoryStore, cache: MetadataCache) -> None:
        both = [paths.namespace_policies(name) for name in ("a/b", "a/c")]
        for path in both:
            await store.put(path, b'{"abc":12}')
        first = await read_cached(cache, both[0])
        await read_cached(cache, both[1])
        again = await read_cached(cache, both[0])
        assert again == first and again is not first

    run(scenario)


def test_of_too_many_records_the_one_that_was_not_asked_for_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyxbroker.metadata.cache.CACHED_NODES_MAX", 2)

    async def scenario(store: MemoryStore, cache: MetadataCache) -> None:
        first, second, third = (paths.namespace_policies(f"a/{name}") for name in "bcd")
        values = {}
        for path in (first, second):
            await store.put(path, b'{"abc":12}')
            values[path] = await cache.get(path)
        said = await read_cached(cache, second)
        assert await cache.get(first) is values[first]
        await store.put(third, b"{}")
        assert await cache.get(third) == b"{}"
        assert await cache.get(first) is values[first]
        # What it said is forgotten with it.
        assert set(cache._values) == {first, third} and cache._parsed_bytes == 0
        again = await read_cached(cache, second)
        assert again == said and again is not said

    run(scenario)


def test_one_record_more_costs_the_oldest_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyxbroker.metadata.cache.PARSED_BYTES_MAX", 30)

    async def scenario(store: MemoryStore, cache: MetadataCache) -> None:
        nodes = [paths.namespace_policies(f"a/{name}") for name in "bcde"]
        for path in nodes:
            await store.put(path, b'{"abc":12}')
        found = [await read_cached(cache, path) for path in nodes[:3]]
        assert await read_cached(cache, nodes[0]) is found[0]
        await read_cached(cache, nodes[3])
        # The second one was not asked for for the longest time.
        assert await read_cached(cache, nodes[0]) is found[0]
        assert await read_cached(cache, nodes[2]) is found[2]
        assert await read_cached(cache, nodes[1]) is not found[1]
        # What is forgotten takes no room any more.
        for _ in range(9):
            await store.put(nodes[0], b'{"abc":13}')
            await read_cached(cache, nodes[0])
        assert cache._parsed_bytes == sum(size for _, size in cache._parsed.values()) <= 30

    run(scenario)
