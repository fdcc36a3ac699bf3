"""Records that are kept for the whole cluster: changed by many at once, and by other brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from pyxbroker.base.errors import ConcurrentModification
from pyxbroker.broker.stored_records import StoredRecords
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.policies.records import ROUNDS_MAX, Fields

PATH = "/bookies"


def adding(number: int) -> Callable[[Fields], Fields]:
    return lambda before: before | {f"b{number}": number}


async def opened() -> MemoryStore:
    store = MemoryStore()
    await store.open()
    return store


def test_all_changes_of_many_at_once_are_kept() -> None:
    async def main() -> None:
        store = await opened()
        records = StoredRecords(store)
        await asyncio.gather(*(records.change(PATH, adding(number)) for number in range(100)))
        assert await records.read(PATH) == {f"b{number}": number for number in range(100)}
        await store.close()

    asyncio.run(main())


def test_who_is_never_first_among_other_brokers_is_told() -> None:
    async def main() -> None:
        store = await opened()
        records = StoredRecords(store)
        tries = 0

        def change(before: Fields) -> Fields:
            nonlocal tries
            tries += 1
            store.put(PATH, json.dumps({"try": tries}).encode())  # somebody else's
            return before | {"own": 1}

        with pytest.raises(ConcurrentModification):
            await records.change(PATH, change)
        assert tries == ROUNDS_MAX
        assert await records.read(PATH) == {"try": ROUNDS_MAX}
        await store.close()

    asyncio.run(main())
