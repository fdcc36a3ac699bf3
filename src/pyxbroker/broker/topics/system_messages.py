"""Messages without a producer: those of the broker itself, and those that clients send by REST."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pyxbroker.broker.topics.producer import refusal_of
from pyxbroker.entry import EntryRun
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.pending_entry import PendingEntry

if TYPE_CHECKING:
    from pyxbroker.broker.topics.entry_metadata import EntryMetadata
    from pyxbroker.broker.topics.topic import Topic


class IndexedTopic(Protocol):
    """A topic whose entries may have broker entry metadata (topic.py)."""

    entry_metadata: EntryMetadata | None


class PendingMessage(PendingEntry):
    """The owner of a message without a producer, in the log of a topic."""

    def __init__(self, topic: IndexedTopic) -> None:
        super().__init__()
        self._topic = topic

    def on_run_failed(self, run: EntryRun, error: ManagedLedgerError) -> None:
        if self._topic.entry_metadata is not None:
            self._topic.entry_metadata.take_back(run)
        super().on_run_failed(run, error)


class Publication:
    """A message that was published without a producer."""

    def __init__(self, topic: Topic, entry: bytes) -> None:
        """Publish an entry. Raises PulsarError.

        Policies apply to it; publish rates and deduplication, which concern producers, do not.
        """
        waiting = PendingMessage(topic)
        self._future = waiting.future
        try:
            topic.turn.run(topic.publish_internal, EntryRun.of(entry, waiting))
        except ManagedLedgerError as error:
            raise refusal_of(error) from error

    async def position(self) -> tuple[int, int]:
        """Wait until the message is durable, and return its ledger id and entry id.

        Raises PulsarError if it was not stored.
        """
        try:
            return await self._future
        except ManagedLedgerError as error:
            raise refusal_of(error) from error
