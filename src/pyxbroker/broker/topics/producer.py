"""A producer of one topic: the policy behind the SENDs of one client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyxbroker.base.rates import Rates
from pyxbroker.broker.commands import replies
from pyxbroker.connection import Connection, ProducerState
from pyxbroker.entry import EntryRun
from pyxbroker.mledger.errors import ManagedLedgerError, ManagedLedgerTerminated

if TYPE_CHECKING:
    from pyxbroker.broker.topics.topic import Topic


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
        self.rates: Rates | None = None  # once somebody asked for them
        self._waiting_idle: list[asyncio.Future[None]] = []

    def publish(self, run: EntryRun) -> None:
        """Called once per turn with all SENDs that it brought, in order."""
        try:
            self.topic.managed_ledger.append(run)
        except ManagedLedgerError as error:
            self.on_run_failed(run, error)

    def on_run_added(self, run: EntryRun) -> None:
        """The run is durable, or was handed out where nothing is."""
        if self.closed:
            # Its client was told to forget it, and may have another one under its id by now.
            self.settle(run)
        else:
            self.send_receipts(run, self.topic.name.is_persistent)
        if self._waiting_idle and self.pending_sends == 0:
            self._tell_idle()

    def on_run_failed(self, run: EntryRun, error: ManagedLedgerError) -> None:
        """The run will never be durable: each SEND of it is answered with the reason."""
        self.settle(run)
        if not self.closed:
            self._refuse(run, error)
        if self._waiting_idle and self.pending_sends == 0:
            self._tell_idle()

    def _refuse(self, run: EntryRun, error: ManagedLedgerError) -> None:
        code = (
            replies.TOPIC_TERMINATED
            if isinstance(error, ManagedLedgerTerminated)
            else replies.PERSISTENCE_ERROR
        )
        for sequence_id, _ in run.sequence_ids():
            self.connection.send_frame(
                replies.send_error(self.producer_id, sequence_id, code, str(error))
            )

    async def idle(self) -> None:
        """Waits until every SEND so far is answered."""
        if self.pending_sends:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_idle.append(waiter)
            await waiter

    def _tell_idle(self) -> None:
        waiters, self._waiting_idle = self._waiting_idle, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
