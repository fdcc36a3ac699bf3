"""A consumer of one subscription: its options, acknowledgements and statistics."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pyxbroker.base.errors import ConsumerNotFound, PulsarError, TooManyRequests
from pyxbroker.base.rates import Rates
from pyxbroker.broker.client_memory import CONSUMER_BYTES, HASH_RANGE_BYTES, texts_bytes
from pyxbroker.broker.commands import replies
from pyxbroker.broker.dispatch.interfaces import DispatchedSubscription
from pyxbroker.broker.dispatch.selectors import KeySharedPolicy
from pyxbroker.connection import Connection
from pyxbroker.delivery import ConsumerState
from pyxbroker.entry import AckRun

if TYPE_CHECKING:
    from pyxbroker.broker.dispatch.interfaces import DispatchLoop

RATE_WINDOW_S = 60.0  # as in Pulsar
PERMITS_MAX = 2**31 - 1
AUTO_SPLIT = KeySharedPolicy()
TOO_MANY_PARTS = (
    "{} partly acknowledged batches are not remembered, because there are too many"
    " (maxBatchAckStateSizeInMB); acknowledge whole batches."
)


class ConsumerSubscription(DispatchedSubscription, Protocol):
    """The subscription of a consumer (subscription.py)."""

    last_flow_s: float
    last_acked_s: float

    @property
    def dispatcher(self) -> DispatchLoop: ...
    def acknowledge(self, consumer: Consumer, run: AckRun, cumulative: bool) -> str | None: ...
    def acknowledge_in_transaction(
        self, consumer: Consumer, txn: tuple[int, int], run: AckRun, cumulative: bool
    ) -> asyncio.Future[None]: ...
    def redeliver(
        self, consumer: Consumer, positions: list[tuple[int, int]], epoch: int | None
    ) -> bool: ...
    def persist(self) -> asyncio.Future[None]: ...
    def notify_end(self, consumer: Consumer | None = None) -> None: ...
    def remove_consumer(self, consumer: Consumer) -> None: ...


class ConsumerRates(NamedTuple):
    """Rates of a consumer, per second."""

    msg_out: float = 0.0
    bytes_out: float = 0.0
    redelivered: float = 0.0
    acked: float = 0.0
    chunks: float = 0.0  # of chunked messages


class Consumer(ConsumerState):
    """One consumer of a subscription."""

    auto_consume = False  # accepts any schema of the topic; rare
    subscription_cost = 0  # the part of cost charged for the subscription
    reads_compacted = False  # reads the compacted view
    # The outcomes of the first parts of a long transactional ACK, whose last part is answered.
    _ack_parts: tuple[asyncio.Future[None], ...] = ()
    # Times of the client's last commands, in s since 1970; 0: never.
    first_flow_s = 0.0
    last_flow_s = 0.0
    last_acked_s = 0.0

    def __init__(
        self,
        connection: Connection,
        consumer_id: int,
        subscription: ConsumerSubscription,
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
        self.tracks_pending = False  # set by Shared and Key_Shared subscriptions
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
        """Return the name of the consumer as in Pulsar's errors."""
        return (
            f"Consumer{{subscription={self.subscription.name}, consumerId={self.consumer_id},"
            f" consumerName={self.name}, address=/{self.connection.peer}}}"
        )

    def charge(self, subscription_cost: int) -> None:
        """Charge its connection for the consumer, and for the subscription if this is its first
        consumer. Raises NotAllowed or TooManyRequests; nothing is charged then.
        """
        cost = self.cost + subscription_cost
        self.connection.session.memory.charge(cost)
        self.cost, self.subscription_cost = cost, subscription_cost

    def take_over(self, subscription_cost: int) -> None:
        """Charge its connection for the subscription, after the consumer charged before has
        left.
        """
        self.cost += subscription_cost
        self.subscription_cost = subscription_cost
        self.connection.session.memory.take_over(subscription_cost)

    def release(self) -> None:
        """End the charge, because the consumer is gone."""
        cost, self.cost, self.subscription_cost = self.cost, 0, 0
        self.connection.session.memory.release(cost)

    def leave(self) -> None:
        """Leave the subscription, because the connection is closed. Repeated calls have no
        effect.
        """
        self.subscription.remove_consumer(self)

    def rates(self) -> ConsumerRates:
        """Return the recent rates."""
        now = self.subscription.topic.loop.time()
        counters = (self.msg_out, self.bytes_out, self.redelivered, self.acked, self.chunks_out)
        return ConsumerRates(*self._rates.per_second(now, *counters))

    def on_flow(self, permits: int) -> None:
        """FLOW: add permits for more messages."""
        if self.closed:
            return
        self.permits = min(self.permits + permits, PERMITS_MAX)
        subscription = self.subscription
        self.last_flow_s = subscription.last_flow_s = time.time()
        if not self.first_flow_s:
            self.first_flow_s = self.last_flow_s
        # One read may bring a FLOW for each of thousands of subscriptions with a backlog.
        subscription.topic.turn.dispatching.run(subscription.dispatcher.wake)
        if subscription.topic.is_terminated:
            subscription.notify_end(self)

    def on_ack(
        self,
        run: AckRun,
        cumulative: bool,
        request_id: int | None,
        txn: tuple[int, int] | None = None,
        is_last: bool = True,
    ) -> None:
        """ACK: acknowledge positions. With a request id the client expects an answer. txn: the id
        of the transaction in the command. A long ACK comes in several parts: the last one has
        is_last, and the request id.
        """
        if self.closed:
            if request_id is not None:
                self._answer_ack(request_id, ConsumerNotFound.code, "The consumer is closed.")
            return
        subscription = self.subscription
        self.last_acked_s = subscription.last_acked_s = time.time()
        if txn is not None:
            self._acknowledge_in_transaction(txn, run, cumulative, request_id, is_last)
            return
        acks = subscription.acks
        forgotten = acks.refused
        refusal = subscription.acknowledge(self, run, cumulative)
        if subscription.topic.is_terminated:
            subscription.notify_end(self)
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
        """REDELIVER_UNACKNOWLEDGED_MESSAGES: redeliver these positions, or everything (no
        positions). Many positions come in several calls. Return False if the remaining ones are not
        needed.
        """
        return not self.closed and self.subscription.redeliver(self, positions, epoch)

    def _on_ack_durable(self, future: asyncio.Future[None], request_id: int) -> None:
        self.connection.ack_ended()
        error = future.exception()
        if error is None:
            self._answer_ack(request_id, None, "")
        else:
            self._answer_ack(request_id, replies.PERSISTENCE_ERROR, str(error))

    def _acknowledge_in_transaction(
        self,
        txn: tuple[int, int],
        run: AckRun,
        cumulative: bool,
        request_id: int | None,
        is_last: bool,
    ) -> None:
        outcome = self.subscription.acknowledge_in_transaction(self, txn, run, cumulative)
        self.connection.ack_begun()
        outcome.add_done_callback(self._on_ack_ended)
        parts = (*self._ack_parts, outcome)
        self._ack_parts = () if is_last else parts
        if request_id is not None:
            whole = outcome if len(parts) == 1 else asyncio.gather(*parts)
            whole.add_done_callback(lambda future: self._answer_transactional(future, request_id))

    def _on_ack_ended(self, outcome: asyncio.Future[None]) -> None:
        self.connection.ack_ended()
        outcome.exception()  # marks it as retrieved: the client may not have asked for an answer

    def _answer_transactional(self, outcome: asyncio.Future[Any], request_id: int) -> None:
        error = outcome.exception()
        if error is None:
            self._answer_ack(request_id, None, "")
        else:
            code = error.code if isinstance(error, PulsarError) else replies.PERSISTENCE_ERROR
            self._answer_ack(request_id, code, str(error))

    def _answer_ack(self, request_id: int, code: int | None, message: str) -> None:
        self.connection.send_frame(
            replies.ack_response(self.consumer_id, request_id, code, message)
        )
