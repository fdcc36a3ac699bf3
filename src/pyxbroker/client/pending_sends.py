"""The entries that a producer has sent and that are not answered, without a socket or a clock.

A broker answers in the order of the SENDs. Answers for entries that are no longer pending are those
of an earlier connection, whose entries were sent again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from pyxbroker.client.entries import MessageId
from pyxbroker.client.errors import ClientError


@dataclass
class Pending:
    """An entry that is not answered yet."""

    sequence_id: int
    highest_sequence_id: int
    section: bytes
    futures: list[asyncio.Future[MessageId]]
    """One for each message of the entry."""
    sent_at: float
    is_batch: bool = False
    more: dict[str, int] = field(default_factory=dict)
    """Further fields of the SEND, such as `num_messages`."""

    def resolve(self, ledger: int, entry: int, partition: int) -> None:
        for index, future in enumerate(self.futures):
            if not future.done():
                batch, size = (index, len(self.futures)) if self.is_batch else (-1, 0)
                future.set_result(MessageId(ledger, entry, batch, partition, size))

    def fail(self, error: ClientError) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks it as retrieved: not every caller waits


class OutOfOrder(Exception):
    """The broker acknowledged an entry before one that was sent earlier."""


class PendingSends:
    """A window of entries in the order in which they were sent."""

    def __init__(self, entries_max: int, bytes_max: int, partition: int = -1) -> None:
        self._entries: deque[Pending] = deque()
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._partition = partition
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Pending]:
        return iter(self._entries)

    @property
    def is_full(self) -> bool:
        return len(self._entries) >= self._entries_max or self.bytes >= self._bytes_max

    @property
    def oldest_sent_at(self) -> float | None:
        return self._entries[0].sent_at if self._entries else None

    def add(self, pending: Pending) -> None:
        self._entries.append(pending)
        self.bytes += len(pending.section)

    def acknowledge(self, sequence_id: int, ledger: int, entry: int) -> bool:
        """Resolve the first entry, if the receipt is for it. Raises OutOfOrder.

        Return False for the receipt of an entry that is no longer pending.
        """
        if not self._entries or sequence_id < self._entries[0].sequence_id:
            return False
        if sequence_id > self._entries[0].sequence_id:
            raise OutOfOrder(
                f"the receipt of {sequence_id} came before that of {self._entries[0].sequence_id}"
            )
        self._pop().resolve(ledger, entry, self._partition)
        return True

    def reject(self, sequence_id: int, error: ClientError) -> bool:
        """Fail the entry that the broker refused permanently; False: it is not pending."""
        for pending in self._entries:
            if pending.sequence_id == sequence_id:
                self._entries.remove(pending)
                self.bytes -= len(pending.section)
                pending.fail(error)
                return True
        return False

    def expire(self, sent_before: float, error: ClientError) -> int:
        """Fail the entries that were sent before a time; return how many there were."""
        expired = 0
        while self._entries and self._entries[0].sent_at <= sent_before:
            self._pop().fail(error)
            expired += 1
        return expired

    def fail_all(self, error: ClientError) -> None:
        while self._entries:
            self._pop().fail(error)

    def _pop(self) -> Pending:
        pending = self._entries.popleft()
        self.bytes -= len(pending.section)
        return pending
