"""Backlog quotas: limits on the size and the age of the unacknowledged messages of subscriptions.

Quotas are checked at intervals, and when a producer is opened; never for single messages. Mirrors
BacklogQuotaManager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pyxbroker.base.errors import (
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    PulsarError,
)
from pyxbroker.base.log import get_logger
from pyxbroker.broker.subscriptions.expiry import (
    expire,
    expiring_subscriptions,
    skip_to,
    slowest_of,
)
from pyxbroker.policies.values import (
    CONSUMER_BACKLOG_EVICTION,
    PRODUCER_EXCEPTION,
    PRODUCER_REQUEST_HOLD,
    BacklogQuota,
)

if TYPE_CHECKING:
    from pyxbroker.broker.topics.persistent import PersistentTopic

log = get_logger("pyxbroker.topic")

EVICTED_TO = 0.9  # eviction reduces the backlog to this share of the limit
REFUSALS: dict[str, type[PulsarError]] = {
    PRODUCER_REQUEST_HOLD: ProducerBlockedQuotaExceededError,
    PRODUCER_EXCEPTION: ProducerBlockedQuotaExceededException,
}
REFUSED = "Cannot create producer on topic with backlog quota exceeded"


async def check_producer(topic: PersistentTopic) -> None:
    """Raise the error for a producer that is opened while a quota is exceeded."""
    size, age = topic.policies.backlog_size, topic.policies.backlog_age
    if size.policy in REFUSALS and await is_size_exceeded(topic):
        raise REFUSALS[size.policy](REFUSED)
    if age.policy in REFUSALS and await is_age_exceeded(topic):
        raise REFUSALS[age.policy](REFUSED)


async def check(topic: PersistentTopic) -> None:
    """Enforce the policy of a quota if it is exceeded. Raises LedgerError."""
    if await is_size_exceeded(topic):
        await _enforce(topic, "backlog_size", _evict_by_size)
    elif await is_age_exceeded(topic):
        await _enforce(topic, "backlog_age", _evict_by_age)


async def _enforce(
    topic: PersistentTopic, name: str, evict: Callable[[PersistentTopic], Awaitable[None]]
) -> None:
    """Evict messages or disconnect producers. Nothing is evicted for an unreadable policy."""
    quota: BacklogQuota = getattr(topic.policies, name)
    if quota.policy != CONSUMER_BACKLOG_EVICTION:
        _disconnect_producers(topic, quota.policy)
    elif name not in topic.policies.refused:
        if topic.evictions is None:
            topic.evictions = Counter()
        topic.evictions["size" if name == "backlog_size" else "time"] += 1
        await evict(topic)


async def is_size_exceeded(topic: PersistentTopic) -> bool:
    """Return True if the backlog of the slowest subscription has reached the limit."""
    limit = topic.policies.backlog_size.limit
    if limit < 0 or topic.name.is_system:
        return False
    size = 0
    if topic.storage_size >= limit:
        slowest = await slowest_of(expiring_subscriptions(topic))
        if slowest is not None:
            size = topic.bytes_after(slowest.mark)
    return size >= limit


async def is_age_exceeded(topic: PersistentTopic) -> bool:
    """Return True if the oldest unacknowledged entry is older than the limit.

    The precise age is that of the entry. Otherwise it is the time since its ledger was closed; an
    entry in the open ledger has no age. Raises LedgerError.
    """
    limit_s = topic.policies.backlog_age.limit
    if limit_s <= 0 or topic.name.is_system:
        return False
    slowest = await slowest_of(expiring_subscriptions(topic))
    if slowest is None:
        return False
    if topic.policies.precise_backlog_age:
        since_ms = await topic.time_after(slowest.mark) or 0
    else:
        since_ms = topic.first_closed_ms(slowest.mark)
    return since_ms > 0 and topic.wall_clock() - since_ms / 1000 > limit_s


def _disconnect_producers(topic: PersistentTopic, policy: str) -> None:
    if topic.producers:
        log.warning("a backlog quota is exceeded", topic=topic.name, policy=policy)
        topic.turn.run(topic.close_producers)


async def _evict_by_size(topic: PersistentTopic) -> None:
    limit = int(topic.policies.backlog_size.limit * EVICTED_TO)
    mark = topic.mark_before_bytes(limit)
    _log_evicted(topic, await skip_to(expiring_subscriptions(topic), mark))


async def _evict_by_age(topic: PersistentTopic) -> None:
    limit_s = topic.policies.backlog_age.limit
    if topic.policies.precise_backlog_age:
        _log_evicted(topic, await expire(topic, limit_s * EVICTED_TO))
        return
    some = expiring_subscriptions(topic)
    slowest = await slowest_of(some)
    if slowest is not None:
        before_ms = int((topic.wall_clock() - limit_s) * 1000)
        mark = topic.closed_before(slowest.mark, before_ms)
        _log_evicted(topic, await skip_to(some, mark))


def _log_evicted(topic: PersistentTopic, entries: int) -> None:
    if entries:
        log.warning(
            "a backlog quota is exceeded; the oldest messages count as acknowledged",
            topic=topic.name,
            entries=entries,
        )
