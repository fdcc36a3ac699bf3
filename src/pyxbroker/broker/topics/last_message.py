"""The last message of a log, which is before any trailing markers and lost entries.

Messages of open and aborted transactions are not messages that a consumer can wait for.

Each entry is scanned once: the result stays valid until further entries are stored, and then only
these are scanned. Callers that come during a scan share the scan that begins after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pyxbroker.base.errors import PersistenceError
from pyxbroker.base.pacing import paced
from pyxbroker.base.slices import Slices
from pyxbroker.entry import Position

if TYPE_CHECKING:
    from pyxbroker.base.topic_name import TopicName
    from pyxbroker.broker.subscriptions.peeking import Peeking
    from pyxbroker.mledger.managed_ledger import ManagedLedger

Found = tuple[Position, int]
"""The position of a message and its index in its batch, -1 outside of a batch."""

NO_MESSAGE: Found = (Position(-1, -1), -1)


class ReadableTopic(Protocol):
    """The topic of a search (persistent.py)."""

    name: TopicName

    @property
    def last_readable(self) -> Position: ...
    def is_aborted(self, transaction: tuple[int, int] | None) -> bool: ...


class LastMessage:
    """The search for the last message of one topic."""

    def __init__(
        self, topic: ReadableTopic, managed_ledger: ManagedLedger, peeking: Callable[[], Peeking]
    ) -> None:
        self._topic = topic
        self._managed_ledger = managed_ledger
        self._peeking = peeking
        self._seen = Position(-1, -1)  # the last entry that was scanned
        self._found = NO_MESSAGE  # the last message up to _seen
        self._running: asyncio.Future[Found] | None = None  # the running scan
        self._next_scan: asyncio.Future[Found] | None = None  # the scan that begins after it

    async def find(self) -> Found:
        """Return the last message, or NO_MESSAGE.

        Raises LedgerError, and PersistenceError if too many entries are lost.
        """
        if self._seen == self._topic.last_readable:
            return self._cached_message()
        if self._next_scan is None:
            self._next_scan = asyncio.ensure_future(paced(self._scan_after(self._running)))
        scan = self._next_scan
        await asyncio.wait([scan])  # a caller that is cancelled does not cancel the scan
        try:
            return scan.result()
        finally:
            del scan  # leave no cycle of the error and this frame

    async def _scan_after(self, last: asyncio.Future[Found] | None) -> Found:
        if last is not None:
            await asyncio.wait([last])
        self._running, self._next_scan = self._next_scan, None
        try:
            return await self._scan()
        finally:
            self._running = None

    async def _scan(self) -> Found:
        managed_ledger = self._managed_ledger
        end = self._topic.last_readable
        peeking, slices = self._peeking(), Slices()
        found: Found | None = None
        index = managed_ledger.ordinal(end)
        while index > 0 and found is None:
            position = managed_ledger.position_of(index - 1)
            if position <= self._seen:
                break
            peeked = await peeking.at(position)
            if not peeking.was_lost:
                if peeked is None:
                    found = position, -1
                elif peeked.marker_type < 0 and not self._topic.is_aborted(peeked.transaction):
                    found = position, peeked.num_messages - 1 if peeked.is_batch else -1
            elif peeking.has_lost_too_many:
                peeking.report()
                raise PersistenceError(
                    f"The last {len(peeking.lost)} entries of {self._topic.name} cannot be read."
                    " See the broker's log for the reason."
                )
            await slices.pause()
            # Consumers receive neither markers nor lost entries, so no reader must wait for one.
            # Ledgers may have been trimmed meanwhile, so the index is computed again.
            index = managed_ledger.ordinal(position) - 1
        if found is None:
            found = self._cached_message()
        if not peeking.lost:
            # Lost entries may become readable, so a scan without them is not remembered.
            self._seen, self._found = end, found
        return found

    def _cached_message(self) -> Found:
        """Return the last message that was found, or NO_MESSAGE if it was trimmed since."""
        position = self._found[0]
        kept = self._managed_ledger.ordinal(position)
        if not kept or self._managed_ledger.position_of(kept - 1) != position:
            self._found = NO_MESSAGE
        return self._found
