"""What a thread makes for the loop: once, for all who ask."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pyxbroker.base.off_loop import OffLoop


def test_all_who_ask_get_the_one_thing_that_a_thread_makes() -> None:
    made: list[int] = []

    def make() -> object:
        made.append(threading.get_ident())
        return object()

    async def ask() -> None:
        thing = OffLoop(make)
        first, second = await asyncio.gather(thing.get(), thing.get())
        assert first is second
        assert await thing.get() is first

    asyncio.run(ask())
    assert len(made) == 1
    assert made[0] != threading.get_ident()


def test_who_gives_up_does_not_take_it_from_the_others() -> None:
    may_go_on = threading.Event()

    async def ask() -> None:
        thing = OffLoop(lambda: may_go_on.wait(10))
        impatient, patient = (asyncio.ensure_future(thing.get()) for _ in range(2))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        assert await patient
        assert impatient.cancelled()

    asyncio.run(ask())


def test_what_fails_is_told_and_tried_again() -> None:
    results: list[Exception | str] = [OSError("no file"), "made"]

    def make() -> str:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    async def ask() -> str:
        thing = OffLoop(make)
        with pytest.raises(OSError, match="no file"):
            await thing.get()
        return await thing.get()

    assert asyncio.run(ask()) == "made"
