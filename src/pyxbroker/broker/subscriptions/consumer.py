"""A consumer of one subscription: what its client asked for, and the way of its acks."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from pyxbroker.base.errors import ConsumerNotFound, TooManyRequests
from pyxbroker.base.rates import Rates
from pyxbroker.broker.client_memory import CONSUMER_BYTES, HASH_RANGE_BYTES, texts_bytes
from pyxbroker.broker.commands import replies
from pyxbroker.broker.dispatch.key_shared import KeySharedPolicy
from pyxbroker.connection import Connection
from pyxbroker.delivery import ConsumerState
from pyxbroker.entry import AckRun

if TYPE_CHECKING:
    from pyxbroker.broker.subscriptions.subscription import Subscription

RATE_WINDOW_S = 60.0  # that of Pulsar
PERMITS_MAX = 2**31 - 1
AUTO_SPLIT = KeySharedPolicy()
TOO_MANY_PARTS = (
    "{} batches that are acknowledged in part are not remembered, since too many are already"
    " (maxBatchAckStateSizeInMB); acknowledge whole batches."
)


class ConsumerRates(NamedTuple):
    """What a consumer got and did, per second."""

    msg_out: float = 0.0
    bytes_out: float = 0.0
    redelivered: float = 0.0
    acked: float = 0.0
    chunks: float = 0.0  # of messages in chunks


class Consumer(ConsumerState):
    """One consumer of a subscription."""

    auto_consume = False  # whether it takes whatever schema the topic has; few do
    subscription_cost = 0  # a part of its own, where it pays for its subscription
    reads_compacted = False  # whether it wants of what was compacted only what was left
    # When its client did something, in s since 1970; 0: never.
    first_flow_s = 0.0
    last_flow_s = 0.0
    last_acked_s = 0.0

    def __init__(
        self,
        connection: Connection,
        consumer_id: int,
        subscription: Subscription,
        name: str,
        priority_level: int,
        metadata: dict[str, str],
        key_shared: KeySharedPolicy = AUTO_SPLIT,
    ) -> None:
        super().__init__(connection, consumer_id, subscription.topic.partition)
        self.subscription = subscription
        self.name = name
        self.priority_level = priority_level
        self.metadata = metadata
        self.key_shared = key_shared
        self.tracks_pending = False  # a Shared or Key_Shared subscription sets it
        self.cost = (  # client_memory.py
            CONSUMER_BYTES
            + len(name)
            + texts_bytes(metadata)
            + HASH_RANGE_BYTES * len(key_shared.ranges)
        )
        self.end_sent = False  # REACHED_END_OF_TOPIC was sent
        self.connected_since = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
        now = subscription.topic.loop.time()
        self._rates = Rates(now, 0, 0, 0, 0, 0, window_s=RATE_WINDOW_S)

    def __str__(self) -> str:
        """As Pulsar names a consumer in its errors."""
        return (
            f"Consumer{{subscription={self.subscription.name}, consumerId={self.consumer_id},"
            f" consumerName={self.name}, address=/{self.connection.peer}}}"
        )

    def charge(self, subscription_cost: int) -> None:
        """Its connection pays for it from now on, and for the subscription if it is the first one
        there. Raises NotAllowed or TooManyRequests; nothing is charged then.
        """
        cost = self.cost + subscription_cost
        self.connection.session.memory.charge(cost)
        self.cost, self.subscription_cost = cost, subscription_cost

    def take_over(self, subscription_cost: int) -> None:
        """Who has paid for the subscription is gone: this one does."""
        self.cost += subscription_cost
        self.subscription_cost = subscription_cost
        self.connection.session.memory.take_over(subscription_cost)

    def release(self) -> None:
        """It is gone: its connection does not pay for it any more."""
        cost, self.cost, self.subscription_cost = self.cost, 0, 0
        self.connection.session.memory.release(cost)

    def leave(self) -> None:
        """Its connection is closed; a second call changes nothing."""
        self.subscription.remove_consumer(self)

    def rates(self) -> ConsumerRates:
        """What it got and did, per second, lately."""
        now = self.subscription.topic.loop.time()
        counters = (self.msg_out, self.bytes_out, self.redelivered, self.acked, self.chunks_out)
        return ConsumerRates(*self._rates.per_second(now, *counters))

    def on_flow(self, permits: int) -> None:
        """FLOW: the client has room for that many messages more."""
        if self.closed:
            return
        self.permits = min(self.permits + permits, PERMITS_MAX)
        subscription = self.subscription
        self.last_flow_s = subscription.last_flow_s = time.time()
        if not self.first_flow_s:
            self.first_flow_s = self.last_flow_s
        # One write may bring a FLOW for each of thousands of subscriptions with a backlog.
        subscription.topic.turn.dispatching.run(subscription.dispatcher.wake)
        if subscription.topic.is_terminated:
            subscription.tell_end(self)

    def on_ack(self, run: AckRun, cumulative: bool, request_id: int | None, has_txn: bool) -> None:
        """ACK: positions this consumer is done with; with a request id the client wants an
        answer.
        """
        if self.closed:
            if request_id is not None:
                self._answer_ack(request_id, ConsumerNotFound.code, "The consumer is closed.")
            return
        subscription = self.subscription
        self.last_acked_s = subscription.last_acked_s = time.time()
        acks = subscription.acks
        forgotten = acks.refused
        refusal = subscription.acknowledge(self, run, cumulative, has_txn)
        if subscription.topic.is_terminated:
            subscription.tell_end(self)
        if request_id is None:
            return
        if refusal is not None:
            self._answer_ack(request_id, replies.NOT_ALLOWED, refusal)
            return
        if forgotten := acks.refused - forgotten:
            self._answer_ack(request_id, TooManyRequests.code, TOO_MANY_PARTS.format(forgotten))
            return
        durable = self.subscription.persist()
        self.connection.ack_begun()
        durable.add_done_callback(lambda future: self._on_ack_durable(future, request_id))

    def on_redeliver(self, positions: list[tuple[int, int]], epoch: int | None) -> bool:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES: what the client wants again, or (no positions)
        everything; of many positions some. Returns whether the rest of them is of interest.
        """
        return not self.closed and self.subscription.redeliver(self, positions, epoch)

    def _on_ack_durable(self, future: asyncio.Future[None], request_id: int) -> None:
        self.connection.ack_ended()
        error = future.exception()
        if error is None:
            self._answer_ack(request_id, None, "")
        else:
            self._answer_ack(request_id, replies.PERSISTENCE_ERROR, str(error))

    def _answer_ack(self, request_id: int, code: int | None, message: str) -> None:
        self.connection.send_frame(
            replies.ack_response(self.consumer_id, request_id, code, message)
        )
