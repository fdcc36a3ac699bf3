"""A producer of one topic: the policy behind the SENDs of one client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.broker import replies
from pyxbroker.connection import Connection, ProducerState
from pyxbroker.entry import EntryRun
from pyxbroker.mledger.managed_ledger import ManagedLedgerError, ManagedLedgerTerminated

if TYPE_CHECKING:
    from pyxbroker.broker.topic import Topic


class Producer(ProducerState):
    """One producer; also the owner of its runs until they are answered."""

    def __init__(
        self,
        connection: Connection,
        producer_id: int,
        topic: Topic,
        name: str,
        epoch: int,
        user_provided_name: bool,
        metadata: dict[str, str],
    ) -> None:
        super().__init__(connection, producer_id)
        self.topic = topic
        self.name = name
        self.epoch = epoch
        self.user_provided_name = user_provided_name
        self.metadata = metadata
        self._on_idle: list[object] = []

    def publish(self, run: EntryRun) -> None:
        """Called once per turn with all SENDs that it brought, in order."""
        try:
            self.topic.managed_ledger.append(run)
        except ManagedLedgerError as error:
            self.on_run_failed(run, error)

    def on_run_added(self, run: EntryRun) -> None:
        """The run is durable."""
        self.send_receipts(run)
        if self._on_idle and self.pending_sends == 0:
            self._tell_idle()

    def on_run_failed(self, run: EntryRun, error: ManagedLedgerError) -> None:
        """The run will never be durable: each SEND of it is answered with the reason."""
        self.settle(run)
        code = (
            replies.TOPIC_TERMINATED
            if isinstance(error, ManagedLedgerTerminated)
            else replies.PERSISTENCE_ERROR
        )
        for sequence_id, _ in run.sequence_ids():
            self.connection.send_frame(
                replies.send_error(self.producer_id, sequence_id, code, str(error))
            )
        if self._on_idle and self.pending_sends == 0:
            self._tell_idle()

    def when_idle(self, call: object) -> None:
        """Calls call() when every SEND so far is answered."""
        if self.pending_sends == 0:
            call()  # type: ignore[operator]
        else:
            self._on_idle.append(call)

    def _tell_idle(self) -> None:
        calls, self._on_idle = self._on_idle, []
        for call in calls:
            call()  # type: ignore[operator]
