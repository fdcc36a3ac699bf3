"""A disk that has bad days: what a bookie answers to those who read entries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from one_broker import Broker
from pyxbroker.bookie.embedded import EmbeddedBookie, ReadCallback
from pyxbroker.ledger.bookie import NO_ENTRY

EIO = -5


class Disk:
    """Stands before a bookie and answers its reads; what it has in memory is read from disk too."""

    def __init__(self, bookie: EmbeddedBookie) -> None:
        self.error = 0  # the answer to every read
        self.lost: set[tuple[int, int]] = set()
        self.lost_code = NO_ENTRY
        self.reads: list[float] = []  # when they came
        self.counts: list[int] = []  # and how many entries each asked for
        self._failures_left = 0
        self._read = bookie.read
        bookie.read = self.read  # type: ignore[method-assign]
        bookie.read_cached = lambda *_: None  # type: ignore[method-assign]

    def read(
        self,
        ledger_id: int,
        first: int,
        last: int,
        count_max: int,
        bytes_max: int,
        callback: ReadCallback,
        fencing_key: bytes | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.reads.append(loop.time())
        self.counts.append(count_max)
        code = self.error
        if self._failures_left:
            self._failures_left -= 1
            if not self._failures_left:
                self.error = 0
        if not code and (ledger_id, first) in self.lost:
            code = self.lost_code
        if code:
            loop.call_soon(callback, code)
            return
        behind = (n for n in range(first, min(last, first + count_max) + 1))
        last = next((n - 1 for n in behind if (ledger_id, n) in self.lost), last)
        self._read(ledger_id, first, last, count_max, bytes_max, callback, fencing_key)

    def fail_times(self, count: int, error: int = EIO) -> None:
        """The next reads fail."""
        self._failures_left = count
        self.error = error

    def fail_for(self, seconds: float, error: int = EIO) -> None:
        """Every read fails from now on for some time."""
        self.error = error
        asyncio.get_running_loop().call_later(seconds, setattr, self, "error", 0)


def run_on(
    tmp_path: Path,
    data: list[bytes],
    scenario: Callable[[Broker, Disk, list[tuple[int, int]]], Awaitable[None]],
    **settings: Any,
) -> None:
    """Runs a scenario with messages that the subscription "s" has not had yet."""

    async def main() -> None:
        async with Broker(tmp_path / "bookie", **settings) as broker:
            topic = await broker.topic()
            await topic.subscription_for("s", topic.managed_ledger.first_position(), {}, True)
            positions = await broker.publish(*data)
            await scenario(broker, Disk(broker.node.bookie), positions)

    asyncio.run(main())
