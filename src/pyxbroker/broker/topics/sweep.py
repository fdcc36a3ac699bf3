"""Policies hold for topics that nobody has opened, too: a sweep over the metadata of all of them.

A topic is judged by its nodes alone: when at the earliest something will be due that its policies
ask for. The nodes of some topics are read together. Only one for which something is due is opened,
looked after, and closed again unless somebody uses it by then; one at a time, and with long rests
between. Of a namespace is remembered when the first of its topics is due, so that it is not looked
into before; but a topic that was closed meanwhile is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from pyxbroker.base.errors import NamespaceNotFound, PulsarError
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import Slices
from pyxbroker.base.system_cursors import COMPACTION, is_system_cursor
from pyxbroker.base.topic_name import PERSISTENT, NamespaceName, TopicName
from pyxbroker.broker.subscriptions import expiry
from pyxbroker.broker.subscriptions.subscription import REPLICATED_SUBSCRIPTION
from pyxbroker.broker.topics import quotas, upkeep
from pyxbroker.broker.topics.names import topic_of_node
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.entry import Position
from pyxbroker.metadata import paths
from pyxbroker.metadata.protobuf_records import MalformedRecord
from pyxbroker.metadata.store import MetadataError, MetadataStore
from pyxbroker.mledger.closed import ClosedLedger, read_all_closed, read_closed
from pyxbroker.policies.values import (
    CONSUMER_BACKLOG_EVICTION,
    DELETE_WHEN_NO_SUBSCRIPTIONS,
    Policies,
)

if TYPE_CHECKING:
    from pyxbroker.broker.topics.deletion import TopicDeletion
    from pyxbroker.broker.topics.inactive_topics import InactiveTopics
    from pyxbroker.broker.topics.loading import TopicLoader
    from pyxbroker.broker.topics.policy_access import PolicyAccess
    from pyxbroker.broker.topics.registry import TopicRegistry
    from pyxbroker.broker.topics.topic import Topic

log = get_logger("pyxbroker.topics")

TOPICS_PER_READ = 128  # that are read together
WORK_S = 0.01  # CPU of the loop; then it rests
REST_SHARE = 30  # as long as this times that
WAIT_SHARE = 1  # or as this times how long it took: where the disk is slow, or the machine busy
REST_MAX_S = 3.0
TOPIC_S = 5.0  # then the others are looked after meanwhile
LEFT_MAX = 16  # topics that go on by themselves at a time
LOOK_AGAIN_S = 300.0  # until a topic is looked into again of which nothing could be done
NOT_LOOKED_AFTER = "a closed topic was not looked after"


class _Namespace(NamedTuple):
    policies: Policies  # by which it was judged
    changes: int  # of what its topics say
    due_ms: float  # before this nothing is due


class Sweep:
    """Looks after the topics that are not open here."""

    def __init__(
        self,
        store: MetadataStore,
        registry: TopicRegistry,
        loader: TopicLoader,
        deletion: TopicDeletion,
        inactive: InactiveTopics,
        policies: PolicyAccess,
        started_ms: int,
    ) -> None:
        self._store = store
        self._loader = loader
        self._deletion = deletion
        self._inactive = inactive
        self._policies = policies
        self._started_ms = started_ms
        self._namespaces: dict[str, _Namespace] = {}
        self._at: dict[TopicName, asyncio.Task[None]] = {}  # that it looks after
        self._closed: dict[str, set[TopicName]] = {}  # that others have closed, by namespace
        self._work_since = 0.0  # CPU of the loop
        self._since = 0.0
        self.wall_clock = time.time
        registry.on_closed.append(self._on_closed)

    async def look(self) -> None:
        """Called now and then: all namespaces of which something may be due."""
        self._begin_work()
        async for name in self._names():
            try:
                policies, changes = await self._policies.of_namespace(NamespaceName.get(name))
            except NamespaceNotFound:
                # It goes with all that is in it.
                self.forget(name)
                continue
            except (PulsarError, MetadataError) as error:
                log.warning("a namespace is not looked into", namespace=name, error=error)
                continue
            # If it is not looked into to the end, all of it is the next time.
            known = self._namespaces.pop(name, None)
            closed = self._closed.pop(name, set())
            if (
                known is None
                or known[:2] != (policies, changes)
                or known.due_ms <= self.wall_clock() * 1000
            ):
                due_ms = await self._look_into(name)
            else:
                due_ms = min(known.due_ms, await self._look_at_each(closed))
            self._namespaces[name] = _Namespace(policies, changes, due_ms)
            await self._rest()

    def _on_closed(self, topic: Topic) -> None:
        """Check a topic in the next sweep, unless the sweep itself has closed it."""
        name = topic.name
        if name.is_persistent and name not in self._at:
            self._closed.setdefault(name.namespace, set()).add(name)

    def forget(self, namespace: str) -> None:
        """A namespace goes."""
        self._namespaces.pop(namespace, None)
        self._closed.pop(namespace, None)

    def close(self) -> None:
        """Topics that still go on by themselves are left as they are."""
        for task in self._at.values():
            task.cancel()

    async def _names(self) -> AsyncIterator[str]:
        for tenant in await self._store.children(paths.MANAGED_LEDGERS):
            for namespace in await self._store.children(f"{paths.MANAGED_LEDGERS}/{tenant}"):
                yield f"{tenant}/{namespace}"

    async def _look_into(self, namespace: str) -> float:
        """Looks after each topic; when the next one is due, in ms since the epoch."""
        nodes = await self._store.children(paths.managed_ledgers(namespace))
        names = (topic_of_node(PERSISTENT, namespace, encoded) for encoded in nodes)
        return await self._look_at_each(name for name in names if name is not None)

    async def _look_at_each(self, names: Iterable[TopicName]) -> float:
        """The same of some topics; those that are open are not looked after."""
        next_ms = inf
        left = iter(names)
        while some := list(islice(left, TOPICS_PER_READ)):
            for name, due_ms in await self._first_due(some):
                if due_ms <= self.wall_clock() * 1000:
                    # What was read may have changed while others were looked after.
                    due_ms = await self._look_at(name)
                next_ms = min(next_ms, due_ms)
                await self._rest()
        return next_ms

    async def _first_due(self, names: Iterable[TopicName]) -> list[tuple[TopicName, float]]:
        """When something is due of those that are not open, read together; 0 where that cannot be
        told: who reads such a one by itself finds out why.
        """
        closed = [name for name in names if name in self._at or not self._loader.is_open(name)]
        found = await read_all_closed(self._store, [name.managed_ledger_name for name in closed])
        slices = Slices()
        due: list[tuple[TopicName, float]] = []
        for name, each in zip(closed, found, strict=True):
            try:
                at_ms = 0.0 if isinstance(each, Exception) else await self._due_of(name, each)
            except Exception:  # Who looks at it by itself tells what it is.
                at_ms = 0.0
            due.append((name, at_ms))
            await slices.pause()
        return due

    async def _look_at(self, name: TopicName) -> float:
        """The same of one topic."""
        now_ms = self.wall_clock() * 1000
        again_ms = now_ms + LOOK_AGAIN_S * 1000
        if name in self._at:
            return again_ms
        try:
            due_ms = await self._due_ms(name)
            if due_ms > now_ms:
                return due_ms
            await self._begin(name)
            # What cannot be done now, or takes longer than it looks, is not tried all the time.
            return max(await self._due_ms(name), again_ms)
        except MalformedRecord:
            # Who opens it is told; until it is repaired nobody knows what it needs.
            return inf
        except (PulsarError, MetadataError) as error:
            log.warning(NOT_LOOKED_AFTER, topic=name, error=error)
        except Exception as error:
            log.failure(NOT_LOOKED_AFTER, error, topic=name)
        return again_ms

    async def _begin(self, name: TopicName) -> None:
        """Looks after a topic. What takes too long goes on by itself: cancelled it would leave
        things half done.
        """
        task = self._at[name] = asyncio.ensure_future(self._attempt(name))
        task.add_done_callback(lambda _: self._at.pop(name, None))
        try:
            done, _ = await asyncio.wait(
                [task], timeout=TOPIC_S if len(self._at) <= LEFT_MAX else None
            )
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            log.warning("a closed topic takes long to be looked after", topic=name)

    async def _attempt(self, name: TopicName) -> None:
        try:
            await self._look_after(name)
        except (PulsarError, MetadataError, MalformedRecord) as error:
            log.warning(NOT_LOOKED_AFTER, topic=name, error=error)
        except Exception as error:
            log.failure(NOT_LOOKED_AFTER, error, topic=name)

    async def _due_ms(self, name: TopicName) -> float:
        return await self._due_of(name, await read_closed(self._store, name.managed_ledger_name))

    async def _due_of(self, name: TopicName, found: ClosedLedger | None) -> float:
        policies = await self._policies.of_topic(name)
        if found is None or name.is_system or policies.refused:
            return inf
        return due_ms(found, policies, self._started_ms)

    async def _look_after(self, name: TopicName) -> None:
        """Opens a topic and does what is due."""
        found = await self._store.get(paths.managed_ledger(name.managed_ledger_name))
        if found is None or self._loader.is_open(name):
            # Who has come meanwhile uses it, and what was read says nothing of that.
            return
        topic = await self._loader.get(name, create=False)
        if not isinstance(topic, PersistentTopic):
            return
        topic.wall_clock = self.wall_clock
        topic.idle_since(max(found.modified_ms, self._started_ms) / 1000)
        for event, look in (
            ("messages did not expire", upkeep.expire_messages),
            ("a subscription was not deleted", expiry.expire_subscriptions),
            ("a backlog quota was not looked at", quotas.check),
            ("old ledgers were not deleted", PersistentTopic.trim),
        ):
            await upkeep.attempt(event, topic, look)
        await self._inactive.delete_if_inactive(topic)
        if not (topic.fenced or topic.is_in_use):
            await self._deletion.unload(name)

    def _begin_work(self) -> None:
        self._work_since = time.thread_time()
        self._since = time.monotonic()

    async def _rest(self) -> None:
        """Yields, and long enough that the sweep is a small part of what the broker does, and of
        what it asks the disk for.
        """
        worked_s = time.thread_time() - self._work_since
        lasted_s = time.monotonic() - self._since
        rest_s = max(worked_s * REST_SHARE, lasted_s * WAIT_SHARE)
        if rest_s >= WORK_S * REST_SHARE:
            await asyncio.sleep(min(rest_s, REST_MAX_S))
            self._begin_work()


# --- when something is due --------------------------------------------------------------------


def due_ms(found: ClosedLedger, policies: Policies, started_ms: int) -> float:
    """When, in ms since the epoch, a policy first asks for something; inf: never as it is.

    Of a ledger that was closed its end is known, and when: everything in it is older. Where that
    is to be gone, opening the topic is worth it. Of one that was not closed nothing is known, but
    that all of it is younger than the list that names it.
    """
    return min(
        _expiry_ms(found, policies),
        _subscription_expiry_ms(found, policies, started_ms),
        _eviction_ms(found, policies),
        _trimming_ms(found, policies),
        _inactive_ms(found, policies, started_ms),
    )


def _expiry_ms(found: ClosedLedger, policies: Policies) -> float:
    if policies.message_ttl_s <= 0:
        return inf
    return _age_ms(found, found.slowest(but=(COMPACTION,)), policies.message_ttl_s)


def _age_ms(found: ClosedLedger, slowest: Position | None, age_s: float) -> float:
    """When the ledger with the first entry after a mark will be so old."""
    left = None if slowest is None else found.first_remaining(slowest)
    if left is None:
        return inf
    return (left.timestamp_ms or found.modified_ms) + age_s * 1000


def _subscription_expiry_ms(found: ClosedLedger, policies: Policies, started_ms: int) -> float:
    limit_s = policies.subscription_expiry_s
    if limit_s <= 0:
        return inf
    last_active = (
        each.last_active_ms
        if found.was_closed and each.last_active_ms
        else max(each.last_active_ms, started_ms)
        for name, each in found.cursors.items()
        if not is_system_cursor(name) and each.properties.get(REPLICATED_SUBSCRIPTION) != 1
    )
    return min(last_active, default=inf) + limit_s * 1000


def _eviction_ms(found: ClosedLedger, policies: Policies) -> float:
    slowest = found.slowest()
    size, age = policies.backlog_size, policies.backlog_age
    if slowest is None:
        return inf
    is_evicted = size.policy == CONSUMER_BACKLOG_EVICTION and size.limit >= 0
    if is_evicted and (not found.is_known or found.bytes_after(slowest) >= max(size.limit, 1)):
        return 0.0
    if age.policy == CONSUMER_BACKLOG_EVICTION and age.limit > 0:
        return _age_ms(found, slowest, age.limit)
    return inf


def _trimming_ms(found: ClosedLedger, policies: Policies) -> float:
    time_s, bytes_max = policies.retention
    if not found.ledgers:
        return inf
    oldest = found.ledgers[0]
    slowest = found.slowest()
    if slowest is not None and slowest < (oldest.ledger_id, oldest.entries - 1):
        return inf
    rest = sum(each.size for each in found.ledgers[1:])
    if 0 <= bytes_max <= rest and oldest.timestamp_ms:
        return 0.0
    return inf if time_s < 0 else (oldest.timestamp_ms or found.modified_ms) + time_s * 1000


def _inactive_ms(found: ClosedLedger, policies: Policies, started_ms: int) -> float:
    inactive, retention_s = policies.inactive_topics, policies.retention.time_s
    if not inactive.delete or retention_s < 0:
        return inf
    slowest = found.slowest([name for name in found.cursors if is_system_cursor(name)])
    if slowest is not None and (
        inactive.mode == DELETE_WHEN_NO_SUBSCRIPTIONS
        or (found.is_known and found.first_remaining(slowest) is not None)
    ):
        return inf
    idle_s = max(inactive.max_inactive_s, retention_s)
    return max(found.modified_ms, started_ms) + idle_s * 1000
