"""Transactions of a topic, as the topic sees them, and the topic, as they see it.

broker/transactions/topic_buffer.py implements them. Brokers without transactions do not import it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyxbroker.base.topic_name import TopicName
    from pyxbroker.broker.dispatch.entry_source import EntrySource
    from pyxbroker.broker.topics.confirmed import ConfirmListener
    from pyxbroker.broker.topics.entry_metadata import EntryMetadata
    from pyxbroker.broker.topics.publish_steps import PublishStep
    from pyxbroker.broker.transactions.ids import TxnId
    from pyxbroker.entry import EntryRun, Position
    from pyxbroker.mledger.managed_ledger import ManagedLedger
    from pyxbroker.turn import Turn

PublishGate = Callable[[Callable[["EntryRun"], None], "EntryRun"], None]
"""A function that calls the first argument with the second one, or does so later."""


class TransactionalTopic(Protocol):
    """A topic that may have transactions (persistent.py)."""

    name: TopicName
    turn: Turn
    loop: asyncio.AbstractEventLoop
    managed_ledger: ManagedLedger
    entry_metadata: EntryMetadata | None
    publish: Callable[[EntryRun], None]
    wall_clock: Callable[[], float]

    def set_publish_gate(self, gate: PublishGate | None) -> None: ...
    def add_publish_step(self, step: PublishStep) -> None: ...
    def add_confirm_listener(self, listener: ConfirmListener) -> None: ...
    def set_source(self, source: EntrySource) -> None: ...
    def wake_dispatchers(self) -> None: ...
    async def append_message(self, entry: bytes, owner: Any = None) -> Position: ...


class TransactionBuffer(Protocol):
    """The transactions of one topic (Pulsar's TransactionBuffer)."""

    committed: int
    """Committed transactions since the topic was opened."""
    aborted: int
    snapshot_ms: int
    """Time of the last snapshot in ms since 1970; 0: none since the topic was opened."""
    recover_start_ms: int
    """Time at which the recovery began; 0: nothing was recovered."""
    recover_end_ms: int
    unreadable: str | None
    """The reason if the recovery waits because entries are lost, else None."""

    @property
    def state_name(self) -> str:
        """The state in TransactionBufferStats."""

    @property
    def is_recovering(self) -> bool:
        """True while the log is read after a snapshot. Consumers receive nothing meanwhile."""

    @property
    def ongoing(self) -> int:
        """The number of open transactions."""

    @property
    def oldest(self) -> tuple[TxnId, Position] | None:
        """The oldest open transaction with its first message, None without one."""

    def start_of(self, txn: TxnId) -> Position | None:
        """Return the position of the first message of an open transaction, or None."""

    @property
    def aborted_count(self) -> int:
        """The number of aborted transactions whose messages may still be stored."""

    @property
    def low_water_marks(self) -> Mapping[int, int]:
        """For each coordinator, the id up to which all its transactions have ended."""

    def segments_stats(self, with_segments: bool) -> Mapping[str, Any] | None:
        """Return the segmentsStats of TransactionBufferStats; None: the snapshot has no
        segments.
        """

    @property
    def max_read(self) -> Position:
        """The position of the last entry that consumers may receive."""

    def is_aborted(self, transaction: tuple[int, int]) -> bool:
        """Return True for an aborted transaction, whose messages consumers never receive."""

    async def recovered(self) -> None:
        """Wait until the buffer is recovered. Raises ServiceNotReady if it cannot be read now, and
        UnknownError if entries are lost.
        """

    def publish(self, run: EntryRun) -> None:
        """Publish a run with SENDs of transactions. Raises ManagedLedgerError."""

    async def end(self, txn: TxnId, commit: bool, low_water_mark: int) -> None:
        """Commit or abort a transaction; its end is durable on return.

        All transactions of the coordinator up to low_water_mark have ended. Raises PulsarError.
        """

    def stop(self) -> None:
        """Refuse SENDs that are held back, and store no further snapshots."""

    async def close(self) -> None:
        """Stop, and wait until no work is under way."""

    async def delete(self) -> None:
        """Delete the snapshot of a topic that is being deleted. A failure is only logged."""


class TransactionBuffers(Protocol):
    """Creates the transaction buffers of topics."""

    async def open(self, topic: TransactionalTopic) -> TransactionBuffer | None:
        """Begin to recover the buffer of a topic that had transactions. Return None for others.

        Raises PulsarError, LedgerError, MetadataError if the snapshot cannot be read now.
        """

    def create(self, topic: TransactionalTopic) -> TransactionBuffer:
        """Return the buffer of a topic that has no transactions yet."""
