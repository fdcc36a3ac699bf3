"""A metadata store in memory that answers late and in order, as one does that is far or busy."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from pyxbroker.metadata.memory import MemoryStore

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
