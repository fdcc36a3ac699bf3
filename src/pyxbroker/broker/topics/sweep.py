"""A sweep over the metadata of closed topics, which applies policies to them too.

The nodes of a topic show the earliest time at which its policies require some work. Nodes are read
in batches of topics. A topic is opened only if work is due, and closed again after the work unless
a client uses it. Topics are opened one at a time, with long pauses between them. For each namespace
the sweep remembers when its first topic is due, and skips the namespace until then. Topics that
were closed meanwhile are checked in any case.

Among several brokers, each one checks the bundles that it owns, and the leader those that no broker
owns.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from pyxbroker.base.bundles import Bundle, hash_of
from pyxbroker.base.clock import wall_s
from pyxbroker.base.errors import NamespaceNotFound, PulsarError
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import in_slices
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

TOPICS_PER_READ = 128  # topics whose nodes are read in one batch
WORK_S = 0.01  # CPU time of the loop between two pauses
PAUSE_SHARE = 30  # a pause is as long as the CPU time times this ...
WAIT_SHARE = 1  # ... or as the elapsed time times this, for a slow disk or a busy machine
PAUSE_MAX_S = 3.0
TOPIC_S = 5.0  # after this time the sweep continues with other topics
BACKGROUND_MAX = 16  # topics whose work continues in the background
RETRY_S = 300.0  # until a topic is checked again whose work could not be done
NOT_APPLIED = "the policies of a closed topic were not applied"


class _Namespace(NamedTuple):
    policies: Policies  # at the last check
    changes: int  # of the policies that its topics set for themselves, at the last check
    bundles: tuple[Bundle, ...] | None  # that were checked; None: all
    due_ms: float  # the earliest time at which work is due


class Sweep:
    """Applies policies to the topics that are not open in this broker."""

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
        self._tasks: dict[TopicName, asyncio.Task[None]] = {}  # topics with work under way
        self._closed: dict[str, set[TopicName]] = {}  # closed since the last check, by namespace
        self._work_since = 0.0  # CPU time of the loop at the last pause
        self._since = 0.0  # time of the last pause
        self.wall_clock = wall_s
        self.bundles: Callable[[str], Awaitable[tuple[Bundle, ...]]] | None = None
        """A function that returns the bundles of a namespace that this broker checks; None: all."""
        registry.on_closed.append(self._on_closed)

    async def run(self) -> None:
        """Check all namespaces in which work may be due. The broker calls this at intervals."""
        self._begin_work()
        async for name in self._names():
            try:
                policies, changes = await self._policies.of_namespace(NamespaceName.get(name))
                bundles = None if self.bundles is None else await self.bundles(name)
            except NamespaceNotFound:
                # The namespace is being deleted with all its topics.
                self.forget(name)
                continue
            except (PulsarError, MetadataError) as error:
                log.warning(
                    "the closed topics of a namespace were not checked", namespace=name, error=error
                )
                continue
            # After an interrupted check the next one includes all topics.
            known = self._namespaces.pop(name, None)
            closed = self._closed.pop(name, set())
            if (
                known is None
                or known[:3] != (policies, changes, bundles)
                or known.due_ms <= self.wall_clock() * 1000
            ):
                due_ms = await self._check_namespace(name, bundles)
            else:
                due_ms = min(known.due_ms, await self._check_topics(closed, bundles))
            self._namespaces[name] = _Namespace(policies, changes, bundles, due_ms)
            await self._pause()

    def _on_closed(self, topic: Topic) -> None:
        """Check a topic in the next sweep, unless the sweep itself has closed it."""
        name = topic.name
        if name.is_persistent and name not in self._tasks:
            self._closed.setdefault(name.namespace, set()).add(name)

    def forget(self, namespace: str) -> None:
        """Forget a namespace that is being deleted."""
        self._namespaces.pop(namespace, None)
        self._closed.pop(namespace, None)

    def close(self) -> None:
        """Cancel the work that continues in the background."""
        for task in self._tasks.values():
            task.cancel()

    async def _names(self) -> AsyncIterator[str]:
        for tenant in await self._store.children(paths.MANAGED_LEDGERS):
            for namespace in await self._store.children(f"{paths.MANAGED_LEDGERS}/{tenant}"):
                yield f"{tenant}/{namespace}"

    async def _check_namespace(self, namespace: str, bundles: tuple[Bundle, ...] | None) -> float:
        """Check each topic of a namespace; return when the next one is due, in ms since 1970."""
        nodes = await self._store.children(paths.managed_ledgers(namespace))
        names = (topic_of_node(PERSISTENT, namespace, encoded) for encoded in nodes)
        return await self._check_topics((name for name in names if name is not None), bundles)

    async def _check_topics(
        self, names: Iterable[TopicName], bundles: tuple[Bundle, ...] | None
    ) -> float:
        """Check the topics of bundles, open ones excepted; return when the next one is due."""
        next_ms = inf
        left = iter(names)
        while some := list(islice(left, TOPICS_PER_READ)):
            if bundles is not None:
                some = [name for name in some if _is_in(name, bundles)]
            for name, due_ms in await self._first_due(some):
                if due_ms <= self.wall_clock() * 1000:
                    # The nodes may have changed during the work for other topics.
                    due_ms = await self._check_topic(name)
                next_ms = min(next_ms, due_ms)
                await self._pause()
        return next_ms

    async def _first_due(self, names: Iterable[TopicName]) -> list[tuple[TopicName, float]]:
        """Return when work is due for each closed topic, read in one batch.

        The time is 0 for a topic whose nodes cannot be read: reading it singly reports the error.
        """
        closed = [name for name in names if name in self._tasks or not self._loader.is_open(name)]
        found = await read_all_closed(self._store, [name.managed_ledger_name for name in closed])
        due: list[tuple[TopicName, float]] = []
        async for name, each in in_slices(zip(closed, found, strict=True)):
            try:
                at_ms = 0.0 if isinstance(each, Exception) else await self._due_of(name, each)
            except Exception:  # Reported when the topic is checked singly.
                at_ms = 0.0
            due.append((name, at_ms))
        return due

    async def _check_topic(self, name: TopicName) -> float:
        """Check one topic, and do its work if it is due; return when it is due next."""
        now_ms = self.wall_clock() * 1000
        again_ms = now_ms + RETRY_S * 1000
        if name in self._tasks:
            return again_ms
        try:
            due_ms = await self._due_ms(name)
            if due_ms > now_ms:
                return due_ms
            await self._begin(name)
            # Work that failed or takes longer than expected is not retried immediately.
            return max(await self._due_ms(name), again_ms)
        except MalformedRecord:
            # Opening the topic reports the error. No work is known until the record is repaired.
            return inf
        except (PulsarError, MetadataError) as error:
            log.warning(NOT_APPLIED, topic=name, error=error)
        except Exception as error:
            log.failure(NOT_APPLIED, error, topic=name)
        return again_ms

    async def _begin(self, name: TopicName) -> None:
        """Do the work for a topic. Long work continues in the background.

        Cancelling it could leave an operation half done.
        """
        task = self._tasks[name] = asyncio.ensure_future(self._attempt(name))
        task.add_done_callback(lambda _: self._tasks.pop(name, None))
        try:
            done, _ = await asyncio.wait(
                [task], timeout=TOPIC_S if len(self._tasks) <= BACKGROUND_MAX else None
            )
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            log.warning("applying the policies of a closed topic takes long", topic=name)

    async def _attempt(self, name: TopicName) -> None:
        try:
            await self._apply_policies(name)
        except (PulsarError, MetadataError, MalformedRecord) as error:
            log.warning(NOT_APPLIED, topic=name, error=error)
        except Exception as error:
            log.failure(NOT_APPLIED, error, topic=name)

    async def _due_ms(self, name: TopicName) -> float:
        return await self._due_of(name, await read_closed(self._store, name.managed_ledger_name))

    async def _due_of(self, name: TopicName, found: ClosedLedger | None) -> float:
        policies = await self._policies.of_topic(name)
        if found is None or name.is_system or policies.refused:
            return inf
        return due_ms(found, policies, self._started_ms)

    async def _apply_policies(self, name: TopicName) -> None:
        """Open a topic and do the work that is due."""
        found = await self._store.get(paths.managed_ledger(name.managed_ledger_name))
        if found is None or self._loader.is_open(name):
            # A client has opened it meanwhile: open topics are checked elsewhere (upkeep.py).
            return
        topic = await self._loader.get(name, create=False)
        if not isinstance(topic, PersistentTopic):
            return
        topic.wall_clock = self.wall_clock
        topic.idle_since(max(found.modified_ms, self._started_ms) / 1000)
        for event, work in (
            ("messages did not expire", upkeep.expire_messages),
            ("a subscription was not deleted", expiry.expire_subscriptions),
            ("a backlog quota was not checked", quotas.check),
            ("old ledgers were not deleted", PersistentTopic.trim),
        ):
            await upkeep.attempt(event, topic, work)
        await self._inactive.delete_if_inactive(topic)
        if not (topic.fenced or topic.is_in_use):
            await self._deletion.unload(name)

    def _begin_work(self) -> None:
        self._work_since = time.thread_time()
        self._since = time.monotonic()

    async def _pause(self) -> None:
        """Pause when necessary, to keep the sweep's share of CPU and disk time small."""
        worked_s = time.thread_time() - self._work_since
        lasted_s = time.monotonic() - self._since
        pause_s = max(worked_s * PAUSE_SHARE, lasted_s * WAIT_SHARE)
        if pause_s >= WORK_S * PAUSE_SHARE:
            await asyncio.sleep(min(pause_s, PAUSE_MAX_S))
            self._begin_work()


def _is_in(name: TopicName, bundles: tuple[Bundle, ...]) -> bool:
    at = bisect_right(bundles, (hash_of(name), inf)) - 1
    return at >= 0 and name in bundles[at]


# --- times at which work is due ---------------------------------------------------------------


def due_ms(found: ClosedLedger, policies: Policies, started_ms: int) -> float:
    """Return the earliest time, in ms since 1970, at which a policy requires work; inf for never.

    All entries of a closed ledger are older than its end, whose time is known. All entries of
    a ledger that was not closed are younger than the list that names it.
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
    """Return when the ledger with the first entry after a mark reaches an age."""
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
