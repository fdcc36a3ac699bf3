"""The interfaces between a dispatcher, its parts, its subscription and its topic.

Each lists what a lower module asks of a higher one, which it need not import then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from pyxbroker.broker.dispatch.entry_source import EntrySource

if TYPE_CHECKING:
    import asyncio
    from collections import Counter
    from collections.abc import Callable

    from pyxbroker.ackset import AckSet
    from pyxbroker.base.topic_name import TopicName
    from pyxbroker.broker.broker_limits import BrokerLimits
    from pyxbroker.broker.dispatch.dispatch_limiter import DispatchLimiter, Published
    from pyxbroker.broker.dispatch.unacked import BrokerUnacked
    from pyxbroker.entry import EntryBatch, Position
    from pyxbroker.policies.values import Policies
    from pyxbroker.turn import Turn


class DispatchedTopic(Protocol):
    """The topic of a dispatcher (topics/topic.py)."""

    name: TopicName
    turn: Turn
    loop: asyncio.AbstractEventLoop
    policies: Policies
    unacked_in_broker: BrokerUnacked | None
    broker_limits: BrokerLimits
    wall_clock: Callable[[], float]
    partition: int
    ack_ranges_max: int
    source: EntrySource
    dispatch_limiter: DispatchLimiter | None

    @property
    def subscriptions(self) -> Mapping[str, DispatchedSubscription]: ...
    @property
    def limits_dispatch(self) -> bool: ...
    @property
    def is_terminated(self) -> bool: ...
    @property
    def published(self) -> Published: ...


class CompactedView(EntrySource, Protocol):
    """The compacted view of a topic (compaction/compacted.py)."""

    def acks_of(self, ledger_id: int, acks: AckSet) -> AckSet: ...


class PendingAcknowledgements(Protocol):
    """The acknowledgements of open transactions (transactions/pending_ack_handle.py)."""

    def view(self, batch: EntryBatch, acks: AckSet) -> AckSet: ...
    def without_pending(self, positions: list[tuple[int, int]]) -> list[tuple[int, int]]: ...


class DispatchedSubscription(Protocol):
    """The subscription of a dispatcher (subscriptions/subscription.py)."""

    name: str
    dispatch_limiter: DispatchLimiter | None
    throttled: Counter[str] | None

    @property
    def topic(self) -> DispatchedTopic: ...
    @property
    def acks(self) -> AckSet: ...
    @property
    def backlog(self) -> int: ...
    @property
    def compacted(self) -> CompactedView | None: ...
    @property
    def pending_acks(self) -> PendingAcknowledgements | None: ...
    def acknowledge_positions(self, positions: Iterable[tuple[int, int]]) -> None: ...
    def acknowledge_ledger(self, ledger_id: int, last: int) -> None: ...
    def on_defect(self, error: Exception) -> None: ...


class DispatchLoop(Protocol):
    """A dispatcher, as its parts see it (dispatcher.py)."""

    topic: DispatchedTopic
    subscription: DispatchedSubscription
    source: EntrySource

    def wake(self) -> None: ...
    def rewind(self) -> None: ...
    def drop_read(self) -> None: ...
    def retry_read(self) -> None: ...
    def put_back(self, positions: list[Position], again: bool) -> None: ...
