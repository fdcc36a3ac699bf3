"""Those who want the same have it one at a time, in their order; others do not wait for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pyxbroker.broker.resource_groups import ResourceGroups
from pyxbroker.metadata import paths
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import Unavailable
from pyxbroker.metadata.turns import Turns, WaitedTooLong
from pyxbroker.policies.records import change_namespace

TIMEOUT_S = 0.3


def test_one_at_a_time_for_each_key_in_their_order() -> None:
    async def main() -> list[str]:
        turns = Turns[str](MemoryStore())
        seen: list[str] = []

        async def work(key: str, name: str) -> None:
            async with turns.turn(key):
                seen.append(f"{name} begins")
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                seen.append(f"{name} ends")

        await asyncio.gather(work("a", "1"), work("a", "2"), work("b", "3"), work("a", "4"))
        assert len(turns) == 0
        return seen

    seen = asyncio.run(main())
    of_a = [each for each in seen if not each.startswith("3")]
    assert of_a == ["1 begins", "1 ends", "2 begins", "2 ends", "4 begins", "4 ends"]
    assert seen.index("3 begins") < seen.index("1 ends")


def test_who_fails_or_waits_no_more_leaves_nothing_behind() -> None:
    async def main() -> None:
        turns = Turns[int](MemoryStore())

        async def work() -> None:
            async with turns.turn(1):
                raise ValueError("no")

        async with turns.turn(1):
            waits = asyncio.ensure_future(work())
            goes = asyncio.ensure_future(work())
            await asyncio.sleep(0)
            goes.cancel()
        with pytest.raises(ValueError, match="no"):
            await waits
        with pytest.raises(asyncio.CancelledError):
            await goes
        assert len(turns) == 0
        async with turns.turn(1):
            assert len(turns) == 1

    asyncio.run(asyncio.wait_for(main(), 10))


class HangingStore(MemoryStore):
    """Answers nothing from some moment on, and says so of each operation when its time is up."""

    operation_timeout_s = TIMEOUT_S
    hangs = False

    def _apply(
        self, check: Callable[[Any], None], operation: Callable[..., Any], *args: Any
    ) -> Any:
        if not self.hangs:
            return super()._apply(check, operation, *args)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        error = Unavailable("it did not answer")
        asyncio.get_running_loop().call_later(TIMEOUT_S, answer.set_exception, error)
        return answer


def while_it_hangs(
    prepare: Callable[[HangingStore, MetadataCache], Awaitable[Callable[[int], Awaitable[Any]]]],
) -> tuple[list[Any], float]:
    """What becomes of twenty changes at once, and how long they took."""

    async def main() -> tuple[list[Any], float]:
        store = HangingStore()
        await store.open()
        cache = MetadataCache(store)
        change = await prepare(store, cache)
        store.hangs = True
        began = time.monotonic()
        found = await asyncio.gather(*map(change, range(20)), return_exceptions=True)
        took = time.monotonic() - began
        store.hangs = False
        await change(1)
        assert len(cache._changing) == 0
        return found, took

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_all_changes_of_a_record_fail_in_the_time_of_one_while_the_store_hangs() -> None:
    async def prepare(store: HangingStore, cache: MetadataCache) -> Any:
        await store.put(paths.namespace_policies("a/b"), b"{}")
        return lambda n: change_namespace(store, cache, "a/b", lambda fields: fields.update(n=n))

    found, took = while_it_hangs(prepare)
    assert all(isinstance(each, Unavailable) for each in found)
    assert took < 2 * TIMEOUT_S


def test_changes_that_wait_for_more_than_a_record_fail_in_that_time_as_well() -> None:
    async def prepare(store: HangingStore, cache: MetadataCache) -> Any:
        groups = ResourceGroups(store, cache, Any, Any)  # type: ignore[arg-type]
        return lambda n: groups.put("g", {"n": n}, {})

    found, took = while_it_hangs(prepare)
    assert all(isinstance(each, Unavailable) for each in found)
    assert took < 2 * TIMEOUT_S


def test_who_comes_later_does_not_wait_longer_than_an_operation_may() -> None:
    """Also behind somebody who does something else for a long time."""

    async def main() -> None:
        store = HangingStore()
        turns = Turns[int](store)
        async with turns.turn(1):
            began = time.monotonic()
            with pytest.raises(WaitedTooLong, match=r"0\.3 s"):
                async with turns.turn(1):
                    pytest.fail("another one has the turn")
            assert time.monotonic() - began >= 0.9 * TIMEOUT_S
        async with turns.turn(1):
            pass
        assert len(turns) == 0

    asyncio.run(asyncio.wait_for(main(), 10))


def test_who_waits_too_long_within_another_turn_is_refused_alone() -> None:
    """Those behind it may want something else, and the store is well."""

    async def main() -> None:
        store = HangingStore()
        outer, inner = Turns[None](store), Turns[str](store)

        async def work(key: str) -> str:
            async with outer.turn(None), inner.turn(key):
                return key

        async with inner.turn("a"):
            first = asyncio.ensure_future(work("a"))
            await asyncio.sleep(TIMEOUT_S / 2)
            behind = [asyncio.ensure_future(work("b")) for _ in range(20)]
            with pytest.raises(WaitedTooLong):
                await first
            assert await asyncio.gather(*behind) == ["b"] * 20
        assert len(outer) == len(inner) == 0

    asyncio.run(asyncio.wait_for(main(), 10))


def test_who_comes_after_the_store_was_away_tries_anew() -> None:
    async def main() -> None:
        turns = Turns[int](MemoryStore())

        async def work(error: Exception | None) -> None:
            async with turns.turn(1):
                await asyncio.sleep(0)
                if error is not None:
                    raise error

        errors = (Unavailable("away"), ValueError("no"))
        for error in errors:
            tasks = [asyncio.ensure_future(work(each)) for each in (error, None, None)]
            found = await asyncio.gather(*tasks, return_exceptions=True)
            behind = Unavailable if error is errors[0] else type(None)
            assert [type(each) for each in found] == [type(error), behind, behind]
            await work(None)
        assert len(turns) == 0

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_turn_of_who_has_gone_in_that_moment_is_passed_on() -> None:
    async def main() -> None:
        turns = Turns[int](MemoryStore())

        async def work() -> bool:
            async with turns.turn(1):
                return True

        async with turns.turn(1):
            goes, stays = (asyncio.ensure_future(work()) for _ in range(2))
            await asyncio.sleep(0)
        goes.cancel()  # its turn has come, and it does not know yet
        assert await stays
        assert goes.cancelled() and len(turns) == 0

    asyncio.run(asyncio.wait_for(main(), 10))
