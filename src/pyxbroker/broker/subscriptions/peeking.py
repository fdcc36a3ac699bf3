"""Reads single entries to answer questions about a topic, not for delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.base.log import get_logger
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.dispatch.read_trouble import LOST_IN_A_ROW_MAX
from pyxbroker.delivery import Peeked, peek_entry
from pyxbroker.entry import Position
from pyxbroker.ledger.errors import EntryDamaged, LedgerError, NoSuchEntry
from pyxbroker.ledger.retries import Retries

if TYPE_CHECKING:
    from pyxbroker.mledger.managed_ledger import ManagedLedger

log = get_logger("pyxbroker.topic")


class Peeking:
    """Reads the metadata of single entries of a log, for one question."""

    def __init__(self, managed_ledger: ManagedLedger, topic: TopicName, what: str) -> None:
        self.lost: set[Position] = set()
        self.was_lost = False  # the last requested entry was lost, or deleted meanwhile
        self._log = managed_ledger
        self._topic = topic
        self._what = what
        self._retries = Retries(f"looking for {what} of {topic}")
        self._error: LedgerError | None = None

    async def at(self, position: Position | None) -> Peeked | None:
        """Return the metadata of an entry, or None if it is lost or has none.

        Raises LedgerError if the entry cannot be read now.
        """
        self.was_lost = False
        if position is None:
            return None
        wanted = position
        try:
            batch = await self._retries.call(lambda: self._log.read_one(wanted))
        except (EntryDamaged, NoSuchEntry) as error:
            self.was_lost = True
            if position.ledger_id in self._log.ledgers:
                self.lost.add(position)
                self._error = error
            return None
        return peek_entry(batch, 0)

    @property
    def has_lost_too_many(self) -> bool:
        """True if more entries are lost than subscriptions pass over."""
        return len(self.lost) > LOST_IN_A_ROW_MAX

    def report(self) -> None:
        """Write one log line for the lost entries."""
        if self.lost:
            log.error(
                "entries cannot be read",
                topic=self._topic,
                sought=self._what,
                entries=len(self.lost),
                first=min(self.lost),
                last=max(self.lost),
                error=self._error,
            )
