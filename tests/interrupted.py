"""A broker that is interrupted at the Nth write of its metadata, and what it leaves behind."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from enum import Enum
from pathlib import Path
from typing import Any

from one_broker import Broker
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore, Unavailable
from test_admin_topics import Rest

Answer = tuple[int, Any]
Look = Callable[[Rest], Awaitable[Any]]

NEVER = 1 << 30
REPEATS_MAX = 3
LEDGER_IDS = paths.LEDGER_ID_PREFIX
"""Ids are taken ahead, dozens at a time: one that is lost is not given to a ledger."""
TURNS = 50  # of the loop, in which somebody could still write


class How(Enum):
    """What happens at the Nth write."""

    REFUSED = "nothing is written, and whoever wrote is told so"
    UNANSWERED = "it is written, and whoever wrote is told that nobody knows"
    AWAY = "it is refused, and so is all that follows until the request is answered"
    KILLED = "it is refused, and so is all that follows; the process is killed"


class Interrupter:
    """Stands between a broker and its store."""

    def __init__(self, store: MetadataStore, how: How, at: int) -> None:
        self.count = 0  # of writes
        self.at = at
        self.is_away = False
        self.happened = asyncio.Event()
        self._how = how
        self._store = store
        for name in ("_issue_put", "_issue_sequential", "put_all", "delete"):
            setattr(store, name, self._writing(getattr(store, name)))
        for name in ("get", "children", "exists"):
            setattr(store, name, self._reading(getattr(store, name)))

    def _writing(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any) -> Any:
            if self.is_away:
                return _refused()
            if str(arguments[0]).startswith(LEDGER_IDS):
                return operation(*arguments)
            self.count += 1
            if self.count != self.at:
                return operation(*arguments)
            self.happened.set()
            self.is_away = self._how in (How.AWAY, How.KILLED)
            if self._how is How.UNANSWERED:
                operation(*arguments).add_done_callback(lambda done: done.exception())
            return _refused()

        return write

    def _reading(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def read(*arguments: Any, **more: Any) -> Any:
            return _refused() if self.is_away else operation(*arguments, **more)

        return read


def _refused() -> asyncio.Future[Any]:
    future = asyncio.get_running_loop().create_future()
    future.set_exception(Unavailable("the store is away"))
    return future


class Interrupted:
    """One operation, carried out and interrupted at each of its writes in turn.

    begin: what is there before. ask: the request, which is also how it is repeated. look: the
    state, as anybody can see it.
    """

    def __init__(
        self,
        directory: Path,
        begin: Callable[[Rest], Awaitable[None]],
        ask: Callable[[Rest], Awaitable[Answer]],
        look: Look,
        **settings: Any,
    ) -> None:
        self._directory = directory
        self._begin = begin
        self._ask = ask
        self._look = look
        self._settings = settings
        self._numbers = itertools.count(1)

    async def whole(self) -> tuple[Any, Any, int]:
        """The state before and after the operation, and how many writes it takes."""
        async with self._broker() as broker:
            rest = Rest(broker)
            await self._begin(rest)
            before = await self._look(rest)
            interrupter = Interrupter(broker.node.store, How.REFUSED, NEVER)
            status, answer = await self._ask(rest)
            assert status < 300, (status, answer)
            await _turns()
            count = interrupter.count
            return before, await self._look(rest), count

    async def at(self, how: How, number: int) -> tuple[list[Answer], Any]:
        """What was answered (nothing by a process that was killed), then what when the request was
        repeated, as far as that was needed; and the state then.
        """
        broker = self._broker()
        await broker.__aenter__()
        rest = Rest(broker)
        await self._begin(rest)
        interrupter = Interrupter(broker.node.store, how, number)
        if how is not How.KILLED:
            try:
                answers = [await self._ask(rest)]
                interrupter.at, interrupter.is_away = NEVER, False
                if answers[0][0] >= 300:
                    answers += await self._repeated(rest, how)
                return answers, await self._look(rest)
            finally:
                await broker.__aexit__(None, None, None)
        asking = asyncio.ensure_future(self._ask(rest))
        happening = asyncio.ensure_future(interrupter.happened.wait())
        await asyncio.wait({asking, happening}, return_when=asyncio.FIRST_COMPLETED)
        await _turns()
        follower = self._broker()
        follower.node = broker.node.kill(f"killed-{next(self._numbers)}")
        for task in (asking, happening):
            task.cancel()
        # Nothing that it still does is seen by anybody.
        interrupter.is_away = True
        async with follower:
            rest = Rest(follower)
            answers = await self._repeated(rest, how)
            found = await self._look(rest)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await broker.node.__aexit__(None, None, None)
        return answers, found

    async def _repeated(self, rest: Rest, how: How) -> list[Answer]:
        """What is answered to the request again. Who does not know what was written takes another
        version of it for another broker's, and begins anew with what is there; until then requests
        are refused.
        """
        answers = [await self._ask(rest)]
        while how is How.UNANSWERED and answers[-1][0] >= 500 and len(answers) < REPEATS_MAX:
            answers.append(await self._ask(rest))
        return answers

    def _broker(self) -> Broker:
        return Broker(self._directory / f"bookie-{next(self._numbers)}", **self._settings)


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)
