"""Periodic work on open topics: expiry, quotas, ages of ledgers, disk space."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from math import inf
from typing import TYPE_CHECKING

from pyxbroker.base.errors import PulsarError
from pyxbroker.base.histogram import Histogram
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import in_slices, run_in_slices
from pyxbroker.broker.subscriptions import expiry
from pyxbroker.broker.topics import quotas
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.metadata.store import MetadataError
from pyxbroker.mledger.errors import ManagedLedgerError

if TYPE_CHECKING:
    from pyxbroker.broker.topics.topic import Topic


log = get_logger("pyxbroker.topics")

TOPIC_S = 5.0  # after this time a walk continues with other topics
BACKGROUND_MAX = 64  # topics whose work continues in the background
QUOTA_CHECK_BOUNDS_S = (5.0, 10.0, 30.0, 60.0, 300.0, inf)  # as in Pulsar

Check = Callable[["PersistentTopic"], Awaitable[None]]


async def open_topics(topics: Iterator[Topic]) -> AsyncIterator[PersistentTopic]:
    """Yield the open persistent topics, with pauses in which other tasks run."""
    async for topic in in_slices(topics):
        if isinstance(topic, PersistentTopic) and not topic.fenced:
            yield topic


class _Walk:
    """One pass over topics, one after the other."""

    def __init__(self, event: str, topics: AsyncIterator[PersistentTopic], check: Check) -> None:
        self.event = event  # the log line for an error
        self.topics = topics
        self.check = check
        self.at: PersistentTopic | None = None  # the current topic
        self.count = 0  # topics so far


class Upkeep:
    """The periodic work on open topics. `topics` returns them."""

    def __init__(self, topics: Callable[[], Iterator[Topic]]) -> None:
        self._topics = topics
        self._due: dict[PersistentTopic, None] = {}  # whose TTL has changed
        self._task: asyncio.Task[None] | None = None
        # Walkers that a topic holds up. Each ends with its topic: cancelling it could leave an
        # operation half done.
        self._background: dict[asyncio.Task[None], PersistentTopic] = {}
        self._rates_task: asyncio.Task[None] | None = None  # applies the broker's rates to topics
        self._have_rates_changed = False  # the rates have changed since that task began
        self._checking: asyncio.Task[None] | None = None  # the running check of quotas
        self._next_checking: asyncio.Task[None] | None = None  # the check after the running one
        self.quota_checks_s = Histogram(QUOTA_CHECK_BOUNDS_S)

    async def expire_messages(self) -> None:
        """Acknowledge messages that are older than the TTL. The broker calls this at intervals."""
        await self._check_open("messages did not expire", expire_messages)

    async def expire_subscriptions(self) -> None:
        """Delete subscriptions without consumers for too long. Called at intervals."""
        await self._check_open("a subscription was not deleted", expiry.expire_subscriptions)

    async def note_rates(self) -> None:
        """Update the rates of topics, clients and subscriptions. Called each minute."""
        from pyxbroker.broker.statistics.stats import note_rates

        async for topic in in_slices(list(self._topics())):
            await run_in_slices(note_rates(topic, time.monotonic()))

    def on_broker_rates(self) -> None:
        """Begin to apply changed rates of the broker to all open topics, in slices."""
        self._have_rates_changed = True
        if self._rates_task is None:
            self._rates_task = asyncio.ensure_future(self._apply_rates())

    async def _apply_rates(self) -> None:
        try:
            while self._have_rates_changed:
                self._have_rates_changed = False
                async for topic in in_slices(list(self._topics())):
                    try:
                        topic.on_broker_rates()
                    except Exception as error:  # A defect affects this topic only.
                        log.failure("rates were not applied", error, topic=str(topic.name))
        finally:
            self._rates_task = None

    async def check_quotas(self) -> None:
        """Enforce the backlog quotas of all open topics. Called at intervals and on request.

        Callers that come during a check share the check that begins after it.
        """
        if self._next_checking is None:
            self._next_checking = asyncio.ensure_future(self._check_quotas(self._checking))
        checking = self._next_checking
        await asyncio.wait([checking])  # A caller that is cancelled does not cancel the check.
        if not checking.cancelled():
            checking.result()

    async def _check_quotas(self, last: asyncio.Task[None] | None) -> None:
        if last is not None:
            await asyncio.wait([last])
        self._checking, self._next_checking = self._next_checking, None
        began_s = time.perf_counter()
        await self._check_open("a backlog quota was not checked", quotas.check)
        self.quota_checks_s.add(time.perf_counter() - began_s)

    async def check_ages(self) -> None:
        """Close and delete ledgers that are old enough. Called at intervals."""

        async def check(topic: PersistentTopic) -> None:
            topic.check_age()

        await self._check_open("the age of a topic could not be checked", check)

    async def free_space(self) -> None:
        """Delete entries that all subscriptions have acknowledged, since disk space is short."""

        async def check(topic: PersistentTopic) -> None:
            topic.free_space()

        await self._check_open("the space of a topic could not be freed", check)

    async def store_sequence_ids(self) -> None:
        """Take snapshots of sequence ids in topics with deduplication. Called at intervals."""
        await self._check_open("sequence ids were not stored", _store_sequence_ids)

    async def compact(self) -> None:
        """Compact topics that exceed the compaction threshold. Called at intervals."""
        await self._check_open("a topic was not compacted", _compact)

    async def forget_producers(self) -> None:
        """Forget producer names that were not used for long. Called at intervals."""
        await self._check_open("producers were not forgotten", _forget_producers)

    def expire_soon(self, topic: PersistentTopic) -> None:
        """Queue a topic whose TTL has changed. One topic of the queue is checked at a time."""
        self._due[topic] = None
        if self._task is None:
            self._expire_due()

    def _expire_due(self) -> None:
        walk = _Walk("messages did not expire", self._take_due(), expire_messages)
        self._task = asyncio.ensure_future(self._complete(walk))
        self._task.add_done_callback(self._on_done)

    async def _take_due(self) -> AsyncIterator[PersistentTopic]:
        while self._due:
            topic = next(iter(self._due))
            del self._due[topic]
            if not topic.fenced:
                yield topic
            await asyncio.sleep(0)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._due:
            # A topic was queued after the walk had ended.
            self._expire_due()

    async def _check_open(self, event: str, check: Check) -> None:
        await self._complete(_Walk(event, open_topics(self._topics()), check))

    async def _complete(self, walk: _Walk) -> None:
        """Complete a walk. A topic that fails or takes long does not hold up the others."""
        walker = asyncio.ensure_future(self._walk(walk))
        try:
            while True:
                count = walk.count
                done, _ = await asyncio.wait([walker], timeout=TOPIC_S)
                if done:
                    walker.result()
                    return
                if (
                    walk.at is not None
                    and walk.count == count
                    and len(self._background) < BACKGROUND_MAX
                ):
                    log.warning("periodic work on a topic takes long", topic=walk.at.name)
                    self._background[walker] = walk.at
                    walker.add_done_callback(lambda task: self._background.pop(task, None))
                    walker = asyncio.ensure_future(self._walk(walk))
        except asyncio.CancelledError:
            walker.cancel()
            raise

    async def _walk(self, walk: _Walk) -> None:
        this = asyncio.current_task()
        async for topic in walk.topics:
            if self._background and topic in self._background.values():
                continue
            walk.at = topic
            walk.count += 1
            await attempt(walk.event, topic, walk.check)
            if this in self._background:
                return
            walk.at = None

    def close(self) -> None:
        """Cancel all work."""
        self._due.clear()
        quota_checks = (self._checking, self._next_checking)
        for task in (*self._background, self._task, self._rates_task, *quota_checks):
            if task is not None:
                task.cancel()


async def expire_messages(topic: PersistentTopic) -> None:
    """Acknowledge messages that are older than the TTL of the topic. Raises LedgerError."""
    ttl_s = topic.policies.message_ttl_s
    is_refused = "message_ttl_s" in topic.policies.refused
    if ttl_s > 0 and not topic.name.is_system and not is_refused:
        await expiry.expire(topic, ttl_s)


async def _store_sequence_ids(topic: PersistentTopic) -> None:
    if topic.deduplication is not None:
        await topic.deduplication.snapshot_if_due()


async def _compact(topic: PersistentTopic) -> None:
    if topic.policies.compaction_threshold > 0:
        await topic.compaction_subscription()
        if topic.is_compaction_due:
            topic.compacting.begin()


async def _forget_producers(topic: PersistentTopic) -> None:
    if topic.deduplication is not None:
        await topic.deduplication.forget_inactive()


async def attempt(event: str, topic: PersistentTopic, check: Check) -> bool:
    """Do the work on one topic. Log an error and return False if that fails."""
    try:
        await check(topic)
    except (PulsarError, LedgerError, ManagedLedgerError, MetadataError) as error:
        log.warning(event, topic=topic.name, error=error)
        return False
    except Exception as error:
        log.failure(event, error, topic=topic.name)
        return False
    return True
