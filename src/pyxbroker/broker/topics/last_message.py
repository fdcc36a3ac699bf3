"""Which message of a log is the last one: markers may be behind it, and what is lost.

Each entry is looked into once, however many ask: what was found holds until more is stored, and
then only that is looked at. All who ask while one looks share the look that begins afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyxbroker.base.errors import PersistenceError
from pyxbroker.base.pacing import paced
from pyxbroker.base.slices import Slices
from pyxbroker.entry import Position

if TYPE_CHECKING:
    from pyxbroker.broker.subscriptions.peeking import Peeking
    from pyxbroker.mledger.managed_ledger import ManagedLedger

Found = tuple[Position, int]
"""A message, and its index in its batch, which is -1 outside of one."""

NO_MESSAGE: Found = (Position(-1, -1), -1)


class LastMessage:
    """Looks for that of one topic."""

    def __init__(
        self, topic: str, managed_ledger: ManagedLedger, peeking: Callable[[], Peeking]
    ) -> None:
        self._topic = topic
        self._managed_ledger = managed_ledger
        self._peeking = peeking
        self._seen = Position(-1, -1)  # of the entries up to here, what was found is the last
        self._found = NO_MESSAGE
        self._looking: asyncio.Future[Found] | None = None  # that has begun last
        self._next: asyncio.Future[Found] | None = None  # that begins when it is over

    async def find(self) -> Found:
        """It, or NO_MESSAGE. Raises LedgerError, and PersistenceError where too much is lost."""
        if self._seen == self._managed_ledger.last_confirmed:
            return self._known()
        if self._next is None:
            self._next = asyncio.ensure_future(paced(self._look_after(self._looking)))
        looking = self._next
        await asyncio.wait([looking])  # who does not wait any more leaves it to the others
        try:
            return looking.result()
        finally:
            del looking  # whose error has this frame in its traceback

    async def _look_after(self, last: asyncio.Future[Found] | None) -> Found:
        if last is not None:
            await asyncio.wait([last])
        self._looking, self._next = self._next, None
        try:
            return await self._look()
        finally:
            self._looking = None

    async def _look(self) -> Found:
        managed_ledger = self._managed_ledger
        end = managed_ledger.last_confirmed
        peeking, slices = self._peeking(), Slices()
        found: Found | None = None
        index = managed_ledger.entries
        while index > 0 and found is None:
            position = managed_ledger.position_of(index - 1)
            if position <= self._seen:
                break
            peeked = await peeking.at(position)
            if not peeking.was_lost:
                if peeked is None or not (peeked.is_batch or peeked.marker_type >= 0):
                    found = position, -1
                elif peeked.marker_type < 0:
                    found = position, peeked.num_messages - 1
            elif peeking.has_lost_too_many:
                peeking.report()
                raise PersistenceError(
                    f"The last {len(peeking.lost)} entries of {self._topic} cannot be read; the"
                    " broker's log says why."
                )
            await slices.pause()
            # Nobody gets a marker or what is lost, so no reader shall wait for it. Ledgers may have
            # been trimmed meanwhile, so it is counted anew.
            index = managed_ledger.ordinal(position) - 1
        if found is None:
            found = self._known()
        if not peeking.lost:
            # What is lost may be found again.
            self._seen, self._found = end, found
        return found

    def _known(self) -> Found:
        """What was found, unless it is not kept any more: then nothing before it is."""
        position = self._found[0]
        kept = self._managed_ledger.ordinal(position)
        if not kept or self._managed_ledger.position_of(kept - 1) != position:
            self._found = NO_MESSAGE
        return self._found
