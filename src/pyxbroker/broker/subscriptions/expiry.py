"""Message expiry: messages that are too old count as acknowledged.

A bisection finds the position, and all subscriptions move there together. Mirrors
PersistentTopic.checkMessageExpiry, PersistentMessageExpiryMonitor.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import in_slices
from pyxbroker.base.system_cursors import COMPACTION, is_system_cursor
from pyxbroker.broker.dispatch.interfaces import DispatchedTopic
from pyxbroker.entry import Position
from pyxbroker.mledger.cursor import CursorDeleted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyxbroker.broker.subscriptions.subscription import Subscription

log = get_logger("pyxbroker.topic")

COMPARED_PER_STEP = 256  # subscriptions whose positions are compared per step


class ExpiringTopic(DispatchedTopic, Protocol):
    """The topic of messages and subscriptions that expire (topics/persistent.py)."""

    @property
    def subscriptions(self) -> Mapping[str, Subscription]: ...
    @property
    def last_confirmed(self) -> Position: ...
    def closed_before(self, mark: Position, time_ms: int) -> Position: ...
    def mark_up_to(self, position: tuple[int, int]) -> Position | None: ...
    async def time_after(self, mark: Position) -> int | None: ...
    async def position_before_time(
        self, time_ms: int, after: Position | None = None
    ) -> Position: ...
    async def delete_subscription(self, name: str, force: bool) -> None: ...


def expiring_subscriptions(topic: ExpiringTopic) -> list[Subscription]:
    """Return the subscriptions whose messages expire and are evicted."""
    return [each for each in topic.subscriptions.values() if each.name != COMPACTION]


class Slowest(NamedTuple):
    """The slowest subscription, and its mark when it was found."""

    mark: Position
    subscription: Subscription


async def slowest_of(subscriptions: Sequence[Subscription]) -> Slowest | None:
    """Return the slowest subscription, ignoring concurrent seeks; None without subscriptions."""
    slowest: Slowest | None = None
    async for at in in_slices(range(0, len(subscriptions), COMPARED_PER_STEP)):
        last = min(subscriptions[at : at + COMPARED_PER_STEP], key=_mark_of)
        if slowest is None or _mark_of(last) < slowest.mark:
            slowest = Slowest(_mark_of(last), last)
    return slowest


def _mark_of(subscription: Subscription) -> Position:
    return subscription.acks.mark_delete


async def first_without_backlog(
    topic: ExpiringTopic, subscriptions: Sequence[Subscription]
) -> Subscription | None:
    """Return the first subscription that has acknowledged every entry, or None."""
    async for each in in_slices(subscriptions):
        if _mark_of(each) >= topic.last_confirmed:
            return each
    return None


async def expire(
    topic: ExpiringTopic, age_s: float, subscriptions: Sequence[Subscription] | None = None
) -> int:
    """Acknowledge entries older than the age. Return their number, over all subscriptions.

    Raises LedgerError if entries cannot be read now.
    """
    some = expiring_subscriptions(topic) if subscriptions is None else subscriptions
    slowest = await slowest_of(some)
    if slowest is None or slowest.mark >= topic.last_confirmed:
        return 0
    before_ms = int((topic.wall_clock() - age_s) * 1000)
    mark = topic.closed_before(slowest.mark, before_ms)
    oldest_ms = await topic.time_after(mark)
    if oldest_ms is None or oldest_ms < before_ms:
        mark = await topic.position_before_time(before_ms, mark)
    if mark <= slowest.mark:
        # Entries up to the mark are not too old; a subscription may have gone back to them.
        return 0
    skipped = 0
    async for each in in_slices(some):
        skipped += await _expire(each, mark)
    return skipped


async def _expire(subscription: Subscription, mark: Position) -> int:
    """Acknowledge expired entries up to a mark. Return their number."""
    # Starts the rate measurement, even if no client has asked for the rate yet.
    subscription.expired_rate(time.monotonic())
    expired = await subscription.skip_to(mark)
    subscription.expired += expired
    subscription.last_expired_s = subscription.topic.wall_clock()
    return expired


async def expire_to(
    topic: ExpiringTopic, subscription: Subscription, position: tuple[int, int]
) -> bool:
    """Acknowledge everything up to a position for one subscription. If the position has no entry,
    the previous entry is used.

    Return False if nothing is left to acknowledge there, if the position is beyond the last entry,
    or while the subscription is being moved or deleted.
    """
    mark = topic.mark_up_to(position)
    if mark is None or mark <= subscription.acks.mark_delete:
        return False
    await _expire(subscription, mark)
    return subscription.acks.mark_delete >= mark


async def skip_to(subscriptions: Sequence[Subscription], mark: Position) -> int:
    """Acknowledge everything up to a mark. Return the number of entries, over all subscriptions."""
    skipped = 0
    async for each in in_slices(subscriptions):
        skipped += await each.skip_to(mark)
    return skipped


async def persist(subscriptions: Sequence[Subscription]) -> None:
    """Make the acknowledgements of subscriptions durable. Subscriptions deleted meanwhile are
    skipped. Raises CursorError.
    """
    # Subscriptions without changes do not suspend the task.
    async for each in in_slices(subscriptions):
        with contextlib.suppress(CursorDeleted):
            await each.persist()


async def expire_subscriptions(topic: ExpiringTopic) -> None:
    """Delete the subscriptions that were not used for as long as the policy demands.

    Raises PulsarError, MetadataError.
    """
    limit_s = topic.policies.subscription_expiry_s
    if limit_s <= 0 or "subscription_expiry_s" in topic.policies.refused:
        return
    before_ms = int((topic.wall_clock() - limit_s) * 1000)
    async for each in in_slices(list(topic.subscriptions.values())):
        is_used = each.consumers or each.arriving or each.closing
        is_kept = each.replicated or is_system_cursor(each.name)
        if topic.subscriptions.get(each.name) is not each:
            continue
        if not (is_used or is_kept) and each.last_active_ms < before_ms:
            await topic.delete_subscription(each.name, force=False)
            log.info(
                "deleted, because it was not used for too long",
                topic=topic.name,
                subscription=each.name,
                last_active_ms=each.last_active_ms,
            )
