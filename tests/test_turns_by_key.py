"""Those who want the same have it one at a time, in their order; others do not wait for them."""

from __future__ import annotations

import asyncio

import pytest

from pyxbroker.base.turns_by_key import TurnsByKey


def test_one_at_a_time_for_each_key_in_their_order() -> None:
    async def main() -> list[str]:
        turns = TurnsByKey[str]()
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
        turns = TurnsByKey[int]()

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
