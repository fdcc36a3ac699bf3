"""A metadata store in memory that answers late and in order, as one does that is far or busy."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import MetadataStore, resolve

AT_ONCE, SOON, SOON_S, LATE_S = 0.5, 0.97, 0.03, 0.3


class LateStore(MemoryStore):
    """What is asked is done at once; the answer, or the news of it, comes after up to LATE_S."""

    def __init__(self, name: str, chance: random.Random) -> None:
        super().__init__(name)
        self._chance = chance
        self._answers: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def _later(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._loop is None:
            return
        self._answers.append((call, arguments))
        at = self._chance.random()
        if at < AT_ONCE:
            self._loop.call_soon(self._answer)
        else:
            most = SOON_S if at < SOON else LATE_S
            self._loop.call_later(self._chance.random() * most, self._answer)

    def _answer(self) -> None:
        # The oldest one, whoever's time it is: there are as many times as answers.
        call, arguments = self._answers.popleft()
        call(*arguments)


class HeldAnswers:
    """What some method of a store is asked is done at once; the answers come with let_go()."""

    def __init__(self, store: MetadataStore, method: str) -> None:
        self.asked = asyncio.Event()
        self._held = True
        self._answers: list[Callable[[], None]] = []
        self._issue = getattr(store, method)
        setattr(store, method, self._hold)

    def _hold(self, *arguments: Any, **more: Any) -> asyncio.Future[Any]:
        issued = self._issue(*arguments, **more)
        if not self._held:
            return issued  # type: ignore[no-any-return]
        told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def tell(done: asyncio.Future[Any]) -> None:
            self._answers.append(lambda: resolve(told, done.exception() or done.result()))
            self.asked.set()

        issued.add_done_callback(tell)
        return told

    def let_go(self) -> None:
        """Nothing is held any more."""
        self._held = False
        for answer in self._answers:
            answer()
