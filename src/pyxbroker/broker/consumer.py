"""A consumer of one subscription: what its client asked for, and the way of its acks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyxbroker.broker import replies
from pyxbroker.connection import Connection
from pyxbroker.dispatch import ConsumerState
from pyxbroker.entry import AckRun

if TYPE_CHECKING:
    from pyxbroker.broker.subscription import Subscription

PERMITS_MAX = 2**31 - 1


class Consumer(ConsumerState):
    """One consumer of a subscription."""

    def __init__(
        self,
        connection: Connection,
        consumer_id: int,
        subscription: Subscription,
        name: str,
        priority_level: int,
        metadata: dict[str, str],
    ) -> None:
        super().__init__(connection, consumer_id, subscription.topic.partition)
        self.subscription = subscription
        self.name = name
        self.priority_level = priority_level
        self.metadata = metadata

    def on_flow(self, permits: int) -> None:
        """FLOW: the client has room for that many messages more."""
        if permits <= 0 or self.closed:
            return
        self.permits = min(self.permits + permits, PERMITS_MAX)
        self.subscription.dispatcher.wake()

    def on_ack(self, run: AckRun, cumulative: bool, request_id: int | None, has_txn: bool) -> None:
        """ACK: positions this consumer is done with; with a request id the client wants an
        answer.
        """
        if self.closed:
            return
        refusal = self.subscription.acknowledge(self, run, cumulative, has_txn)
        if request_id is None:
            return
        if refusal is not None:
            self._answer_ack(request_id, replies.NOT_ALLOWED, refusal)
            return
        durable = self.subscription.cursor.persist()
        durable.add_done_callback(lambda future: self._on_ack_durable(future, request_id))

    def _on_ack_durable(self, future: asyncio.Future[None], request_id: int) -> None:
        error = future.exception()
        if error is None:
            self._answer_ack(request_id, None, "")
        else:
            self._answer_ack(request_id, replies.PERSISTENCE_ERROR, str(error))

    def _answer_ack(self, request_id: int, code: int | None, message: str) -> None:
        self.connection.send_frame(
            replies.ack_response(self.consumer_id, request_id, code, message)
        )
