"""Disconnects producers and consumers whose role loses the right that they were opened with. Apache
Pulsar leaves them open.

The metadata store notifies of changed records of namespaces and tenants. The grants are compared
with the previous ones. If something was revoked, the affected open topics are checked in slices.
Producers and consumers without the right are closed; their clients reconnect, and are refused. New
grants, other policies and unaffected topics cause no work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pyxbroker.auth.authorization import (
    CONSUME_TOPIC,
    GET_TOPICS,
    PRODUCE_TO_TOPIC,
    Resource,
    Right,
)
from pyxbroker.auth.permissions import ADMINISTRATORS, MODE
from pyxbroker.auth.principal import Principal
from pyxbroker.base.errors import AuthorizationError, MetadataStoreError
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import Slices, in_slices
from pyxbroker.base.topic_name import NamespaceName, TopicName
from pyxbroker.broker.topics.producer import Producer
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataError, MetadataStore, Notification
from pyxbroker.policies.grants import AUTH, ROLES, SUBSCRIPTIONS, TOPICS
from pyxbroker.policies.records import Fields

if TYPE_CHECKING:
    from pyxbroker.auth.audit import Audit
    from pyxbroker.auth.permissions import Permissions
    from pyxbroker.broker.grant_records import GrantRecords
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.broker.topics.registry import TopicRegistry
    from pyxbroker.broker.topics.topic import Topic
    from pyxbroker.connection import Connection

log = get_logger("pyxbroker.authorization")

RETRY_S = 1.0  # pause while metadata cannot be read
TOPICS_PER_STEP = 50  # topics compared with a revocation per step
REVOKED = "The role has lost its right."

Grant = tuple[str, ...]  # a right in a record: place, role and action
Place = str | TopicName  # name of a tenant or a namespace, or one topic
EVERY_TOPIC = ("*",)
RESTRICTED = (*EVERY_TOPIC, SUBSCRIPTIONS)


class Granted(NamedTuple):
    """The parts of a namespace's or tenant's record that grant rights.

    They refer to the record itself. Listing 100,000 grants takes long, so only differences are
    listed.
    """

    administrators: Any
    roles: Any
    topics: Any
    subscriptions: Any
    mode: Any


NOTHING = Granted(None, None, None, None, None)  # for a missing record


def granted_by(record: Fields) -> Granted:
    """Return the grants in a namespace's or tenant's record."""
    auth = _object(record.get(AUTH))
    return Granted(
        record.get(ADMINISTRATORS),
        auth.get(ROLES),
        auth.get(TOPICS),
        auth.get(SUBSCRIPTIONS),
        record.get(MODE),
    )


def revoked_by(old: Granted, new: Granted) -> Iterator[Grant | None]:
    """Yield the grants that a changed record has revoked, in short steps; None for a step without
    one.
    """
    yield from _left_out(old.administrators, new.administrators, (ADMINISTRATORS,))
    yield from _pairs_left_out(old.roles, new.roles, EVERY_TOPIC)
    topics = _object(new.topics)
    for topic, roles in _object(old.topics).items():
        yield None
        yield from _pairs_left_out(roles, topics.get(topic), (topic,))
    # Restrictions of subscriptions revoke rights by being added, so each difference may revoke one.
    yield from _pairs_left_out(old.subscriptions, new.subscriptions, RESTRICTED)
    yield from _pairs_left_out(new.subscriptions, old.subscriptions, RESTRICTED)
    if new is NOTHING or str(old.mode) != str(new.mode):
        yield (*EVERY_TOPIC, MODE, str(old.mode))


def _pairs_left_out(before: Any, after: Any, where: Grant) -> Iterator[Grant | None]:
    others = _object(after)
    for role, values in _object(before).items():
        yield None
        yield from _left_out(values, others.get(role), (*where, role))


def _left_out(before: Any, after: Any, where: Grant) -> Iterator[Grant | None]:
    if before == after:
        return
    left = set()
    for each in _list(after):
        if isinstance(each, str):
            left.add(each)
        yield None
    for each in _list(before):
        is_lost = isinstance(each, str) and each not in left
        yield (*where, each) if is_lost else None


def _object(value: Any) -> Fields:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class Watcher(Protocol):
    """A client's watcher of the topics of a namespace (commands/topic_list.py)."""

    connection: Connection
    watcher_id: int
    forget: Callable[[], None]


class RevokedRights:
    """Checks the rights behind everything open at one broker, from the first authorization on."""

    def __init__(
        self,
        store: MetadataStore,
        permissions: Permissions,
        records: GrantRecords,
        registry: TopicRegistry,
        watchers: Callable[[], Sequence[tuple[str, Watcher]]],
        audit: Audit,
    ) -> None:
        self._permissions = permissions
        self._records = records
        self._registry = registry
        self._watchers = watchers
        self._audit = audit
        self.changes = 0  # number of changed records so far
        self._waiting: dict[Place, bool] = {}  # True: check everything in the place
        self._failed: dict[Place, None] = {}  # places whose check failed, until the retry
        self._next_try: asyncio.TimerHandle | None = None
        self._running: asyncio.Task[None] | None = None
        self._unsubscribe = store.watch(self._on_change, prefix=paths.POLICIES + "/")

    def _on_change(self, notification: Notification) -> None:
        name = notification.path.removeprefix(paths.POLICIES + "/")
        if name.count("/") <= 1:
            self.changes += 1
            self._schedule(name, False)

    def check_all(self) -> None:
        """Check the rights behind everything open, because a role is no superuser any more."""
        self.changes += 1
        places = {topic.name.namespace for topic in self._registry}
        places.update(namespace for namespace, _ in self._watchers())
        for place in places:
            self._schedule(place, True)

    def recheck(self, resource: Resource, changes: int) -> None:
        """Check a resource that was opened with a right checked after so many changes."""
        if changes != self.changes and isinstance(resource, NamespaceName | TopicName):
            name = resource.namespace if isinstance(resource, TopicName) else str(resource)
            self._schedule(name, True)

    def _schedule(self, place: Place, as_a_whole: bool) -> None:
        if not as_a_whole and place not in self._records.granted:
            return  # no right was checked there, so nothing is open
        self._waiting[place] = self._waiting.get(place, False) or as_a_whole
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._check_changed())

    async def _check_changed(self) -> None:
        """Check the places that have changed."""
        while self._waiting:
            place, as_a_whole = next(iter(self._waiting.items()))
            del self._waiting[place]
            judge = RightChecks(self._permissions)
            if isinstance(place, str):
                await self._try(place, self._check_place(place, as_a_whole, judge))
                continue
            topic = self._registry.loaded(place)
            if topic is not None:
                await self._try(place, self._check_topic(topic, judge))

    async def _try(self, place: Place, check: Awaitable[None]) -> None:
        """Run the check of one place. A failure is retried later, and does not affect other
        places.
        """
        try:
            await check
            return
        except (MetadataError, MetadataStoreError) as error:
            if isinstance(place, TopicName):
                place = place.namespace  # its record applies to all its topics
            if place not in self._failed:
                log.warning("rights cannot be checked", name=place, error=error)
        except Exception as error:
            log.failure("the check of rights failed", error, name=place)
        self._failed[place] = None
        if self._next_try is None:
            loop = asyncio.get_running_loop()
            self._next_try = loop.call_later(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._next_try = None
        failed, self._failed = self._failed, {}
        for place in failed:
            self._schedule(place, True)

    async def _check_place(self, name: str, as_a_whole: bool, judge: RightChecks) -> None:
        earlier = self._records.granted.get(name, [])
        after = await self._records.refresh(name)
        slices = Slices()
        rights, wheres = 0, set[str]()
        # A place checked as a whole needs no comparison (also after a failed check).
        for before in () if as_a_whole else earlier:
            async for lost in in_slices(revoked_by(before, after), slices):
                if lost is not None:
                    rights += 1
                    wheres.add(lost[0])
        if not rights and not as_a_whole:
            return
        in_all = as_a_whole or ADMINISTRATORS in wheres or EVERY_TOPIC[0] in wheres
        if rights:
            log.info("rights were revoked", name=name, rights=rights)
        for number, topic in enumerate(list(self._registry)):
            if _is_in(topic.name, name) and (
                in_all or not wheres.isdisjoint(_names_of(topic.name))
            ):
                await self._try(topic.name, self._check_topic(topic, judge))
            if number % TOPICS_PER_STEP == 0:
                await slices.pause()
        if in_all:
            await self._check_watchers(name, judge)

    async def _check_topic(self, topic: Topic, judge: RightChecks) -> None:
        waiting = () if topic.access is None else topic.access.waiting_producers()
        async for producer in in_slices([*topic.producers.values(), *waiting]):
            principal = producer.connection.session.principal
            if not await judge.may(principal, PRODUCE_TO_TOPIC, topic.name) and not producer.closed:
                self._log_closed(producer, topic, "PRODUCE")
                topic.turn.run(self._close_producer, topic, producer)
        for subscription in topic.all_subscriptions():
            name = subscription.name
            async for consumer in in_slices(list(subscription.consumers)):
                principal = consumer.connection.session.principal
                may = await judge.may(principal, CONSUME_TOPIC, topic.name, name)
                if not may and not consumer.closed:
                    self._log_closed(consumer, topic, "CONSUME")
                    topic.turn.run(subscription.disconnect_one, consumer)

    @staticmethod
    def _close_producer(topic: Topic, producer: Producer) -> None:
        refused = AuthorizationError(REVOKED)
        if topic.access is None or not topic.access.refuse(producer, refused):
            topic.close_producer(producer)

    async def _check_watchers(self, name: str, judge: RightChecks) -> None:
        """Close watchers of topic lists whose role may not list topics any more."""
        async for namespace, watcher in in_slices(self._watchers()):
            resource = NamespaceName.get(namespace)
            if _is_in(resource, name):
                await self._try(namespace, self._check_watcher(watcher, resource, judge))

    @staticmethod
    async def _check_watcher(
        watcher: Watcher, namespace: NamespaceName, judge: RightChecks
    ) -> None:
        session = watcher.connection.session
        if not await judge.may(session.principal, GET_TOPICS, namespace):
            log.warning("a watcher's role has lost its right", peer=watcher.connection.peer)
            if session.watchers.pop(watcher.watcher_id, None) is watcher:
                watcher.forget()

    def _log_closed(self, closed: Producer | Consumer, topic: Topic, operation: str) -> None:
        session = closed.connection.session
        principal: Principal = session.principal
        log.warning(
            "closed: its role has lost the right",
            peer=closed.connection.peer,
            topic=topic.name,
            right=operation,
            **principal._asdict(),
        )
        self._audit.refused(principal, session.address, operation, topic.name, "closed", REVOKED)

    def stop(self) -> None:
        """Stop all checks."""
        self._unsubscribe()
        if self._next_try is not None:
            self._next_try.cancel()
        if self._running is not None:
            self._running.cancel()


class RightChecks:
    """Checks each right once for all producers and consumers of the same role."""

    def __init__(self, permissions: Permissions) -> None:
        self._permissions = permissions
        self._resource: Resource = None
        self._known: dict[tuple[Principal, Right, str], bool] = {}

    async def may(
        self, principal: Principal, right: Right, resource: Resource, subscription: str = ""
    ) -> bool:
        """Return True if a principal has a right. Raises MetadataStoreError, MetadataError."""
        if resource is not self._resource:
            self._resource, self._known = resource, {}
        key = principal, right, subscription
        if key not in self._known:
            try:
                await self._permissions.check(principal, right, resource, subscription)
            except AuthorizationError:
                self._known[key] = False
            else:
                self._known[key] = True
        return self._known[key]


def _is_in(resource: TopicName | NamespaceName, name: str) -> bool:
    """Return True if a resource belongs to a namespace or a tenant."""
    namespace = resource.namespace if isinstance(resource, TopicName) else str(resource)
    return namespace == name or resource.tenant == name


def _names_of(topic: TopicName) -> tuple[str, str]:
    return str(topic), topic.partitioned_topic_name
