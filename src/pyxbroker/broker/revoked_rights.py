"""What becomes of producers and consumers whose role loses the right that they were opened with:
they are sent away. Apache Pulsar leaves them open.

Metadata tells when the record of a namespace or a tenant has changed. What it grants is compared
with what it granted before; where something was taken away, the open topics that it is about are
gone through in slices, and who may not use them any more is closed: its client comes back, and is
told then that it has no right. Nothing is done for a grant, for other policies, or for a topic that
no revocation is about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

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
from pyxbroker.base.slices import Slices
from pyxbroker.base.topic_name import NamespaceName, TopicName
from pyxbroker.broker.topics.producer import Producer
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataError, MetadataStore, Notification
from pyxbroker.policies.grants import AUTH, ROLES, SUBSCRIPTIONS, TOPICS
from pyxbroker.policies.records import Fields

if TYPE_CHECKING:
    from pyxbroker.auth.audit import Audit
    from pyxbroker.auth.permissions import Permissions
    from pyxbroker.broker.commands.topic_list import TopicLists, TopicListWatcher
    from pyxbroker.broker.granted import GrantRecords
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.broker.topics.registry import TopicRegistry
    from pyxbroker.broker.topics.topic import Topic

log = get_logger("pyxbroker.authorization")

RETRY_S = 1.0  # while metadata cannot be read
TOPICS_PER_STEP = 50  # looked at for whether a revocation is about them
TAKEN_AWAY = "The role has lost its right."

Grant = tuple[str, ...]  # what a record lets somebody do: where, who and what
Place = str | TopicName  # the name of a tenant or a namespace, or one topic
EVERY_TOPIC = ("*",)
RESTRICTED = (*EVERY_TOPIC, SUBSCRIPTIONS)


class Granted(NamedTuple):
    """The parts of a record of a namespace or a tenant that let roles do something.

    They are the record's own: to list what 100,000 grants say takes long, and is done only where
    two records differ.
    """

    administrators: Any
    roles: Any
    topics: Any
    subscriptions: Any
    mode: Any


NOTHING = Granted(None, None, None, None, None)  # where there is no record


def granted_by(record: Fields) -> Granted:
    """What a record of a namespace or a tenant lets roles do."""
    auth = _object(record.get(AUTH))
    return Granted(
        record.get(ADMINISTRATORS),
        auth.get(ROLES),
        auth.get(TOPICS),
        auth.get(SUBSCRIPTIONS),
        record.get(MODE),
    )


def lost_by(old: Granted, new: Granted) -> Iterator[Grant | None]:
    """What is taken away of what a record granted, in short steps; None: a step that has found
    nothing.
    """
    yield from _left_out(old.administrators, new.administrators, (ADMINISTRATORS,))
    yield from _pairs_left_out(old.roles, new.roles, EVERY_TOPIC)
    topics = _object(new.topics)
    for topic, roles in _object(old.topics).items():
        yield None
        yield from _pairs_left_out(roles, topics.get(topic), (topic,))
    # Who may not use a subscription, or any of a name that does not begin with their role, is said
    # by what is there: each difference may take something away.
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


class RevokedRights:
    """Looks after the rights of what is open at one broker, from the first question on."""

    def __init__(
        self,
        store: MetadataStore,
        permissions: Permissions,
        records: GrantRecords,
        registry: TopicRegistry,
        lists: Callable[[], TopicLists],
        audit: Audit,
    ) -> None:
        self._permissions = permissions
        self._records = records
        self._registry = registry
        self._lists = lists
        self._audit = audit
        self.changes = 0  # of records, so far
        self._waiting: dict[Place, bool] = {}  # True: gone through, whatever has changed
        self._failed: dict[Place, None] = {}  # what could not be looked at, until the next try
        self._next_try: asyncio.TimerHandle | None = None
        self._running: asyncio.Task[None] | None = None
        self._unsubscribe = store.watch(self._on_change, prefix=paths.POLICIES + "/")

    def _on_change(self, notification: Notification) -> None:
        name = notification.path.removeprefix(paths.POLICIES + "/")
        if name.count("/") <= 1:
            self.changes += 1
            self._look_soon(name, False)

    def check_all(self) -> None:
        """Check the rights to all that is open: a role is no superuser any more."""
        self.changes += 1
        places = {topic.name.namespace for topic in self._registry}
        places.update(namespace for namespace, _ in self._lists().watchers())
        for place in places:
            self._look_soon(place, True)

    def look_again(self, resource: Resource, changes: int) -> None:
        """Something was opened whose right was looked at when there had been so many changes."""
        if changes != self.changes and isinstance(resource, NamespaceName | TopicName):
            name = resource.namespace if isinstance(resource, TopicName) else str(resource)
            self._look_soon(name, True)

    def _look_soon(self, place: Place, as_a_whole: bool) -> None:
        if not as_a_whole and place not in self._records.granted:
            return  # nobody has asked for a right there, so nobody has one
        self._waiting[place] = self._waiting.get(place, False) or as_a_whole
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        """Goes through what has changed."""
        while self._waiting:
            place, as_a_whole = next(iter(self._waiting.items()))
            del self._waiting[place]
            judge = Judge(self._permissions)
            if isinstance(place, str):
                await self._try(place, self._look_at(place, as_a_whole, judge))
                continue
            topic = self._registry.loaded(place)
            if topic is not None:
                await self._try(place, self._look_at_topic(topic, judge))

    async def _try(self, place: Place, looking: Awaitable[None]) -> None:
        """What goes wrong in one place costs no other one; it is looked at again later."""
        try:
            await looking
            return
        except (MetadataError, MetadataStoreError) as error:
            if isinstance(place, TopicName):
                place = place.namespace  # whose record it is, of all its topics
            if place not in self._failed:
                log.warning("rights cannot be looked at", name=place, error=error)
        except Exception as error:
            log.failure("rights could not be looked at", error, name=place)
        self._failed[place] = None
        if self._next_try is None:
            loop = asyncio.get_running_loop()
            self._next_try = loop.call_later(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._next_try = None
        failed, self._failed = self._failed, {}
        for place in failed:
            self._look_soon(place, True)

    async def _look_at(self, name: str, as_a_whole: bool, judge: Judge) -> None:
        before = self._records.granted.get(name)
        after = await self._records.look_anew(name)
        slices = Slices()
        rights, wheres = 0, set[str]()
        # What is gone through as a whole needs no comparison, be it because that has failed.
        for lost in () if before is None or as_a_whole else lost_by(before, after):
            if lost is not None:
                rights += 1
                wheres.add(lost[0])
            await slices.pause()
        if not rights and not as_a_whole:
            return
        in_all = as_a_whole or ADMINISTRATORS in wheres or EVERY_TOPIC[0] in wheres
        if rights:
            log.info("rights were taken away", name=name, rights=rights)
        for number, topic in enumerate(list(self._registry)):
            if _is_in(topic.name, name) and (
                in_all or not wheres.isdisjoint(_names_of(topic.name))
            ):
                await self._try(topic.name, self._look_at_topic(topic, judge))
            if number % TOPICS_PER_STEP == 0:
                await slices.pause()
        if in_all:
            await self._look_at_watchers(name, judge)

    async def _look_at_topic(self, topic: Topic, judge: Judge) -> None:
        slices = Slices()
        waiting = () if topic.access is None else topic.access.waiting_producers()
        for producer in [*topic.producers.values(), *waiting]:
            principal = producer.connection.session.principal
            if not await judge.may(principal, PRODUCE_TO_TOPIC, topic.name) and not producer.closed:
                self._tell(producer, topic, "PRODUCE")
                topic.turn.run(self._send_producer_away, topic, producer)
            await slices.pause()
        for subscription in topic.all_subscriptions():
            name = subscription.name
            for consumer in list(subscription.consumers):
                principal = consumer.connection.session.principal
                may = await judge.may(principal, CONSUME_TOPIC, topic.name, name)
                if not may and not consumer.closed:
                    self._tell(consumer, topic, "CONSUME")
                    topic.turn.run(subscription.send_away, consumer)
                await slices.pause()

    @staticmethod
    def _send_producer_away(topic: Topic, producer: Producer) -> None:
        refused = AuthorizationError(TAKEN_AWAY)
        if topic.access is None or not topic.access.refuse(producer, refused):
            topic.close_producer(producer)

    async def _look_at_watchers(self, name: str, judge: Judge) -> None:
        """Nobody is told of topics any more that they may not list."""
        slices = Slices()
        for namespace, watcher in self._lists().watchers():
            resource = NamespaceName.get(namespace)
            if _is_in(resource, name):
                await self._try(namespace, self._look_at_watcher(watcher, resource, judge))
            await slices.pause()

    @staticmethod
    async def _look_at_watcher(
        watcher: TopicListWatcher, namespace: NamespaceName, judge: Judge
    ) -> None:
        session = watcher.connection.session
        if not await judge.may(session.principal, GET_TOPICS, namespace):
            log.warning("a watcher's role has lost its right", peer=watcher.connection.peer)
            if session.watchers.pop(watcher.watcher_id, None) is watcher:
                watcher.forget()

    def _tell(self, closed: Producer | Consumer, topic: Topic, operation: str) -> None:
        session = closed.connection.session
        principal: Principal = session.principal
        log.warning(
            "closed: its role has lost the right",
            peer=closed.connection.peer,
            topic=topic.name,
            right=operation,
            **principal._asdict(),
        )
        self._audit.refused(principal, session.address, operation, topic.name, "closed", TAKEN_AWAY)

    def stop(self) -> None:
        """Nothing is looked at any more."""
        self._unsubscribe()
        if self._next_try is not None:
            self._next_try.cancel()
        if self._running is not None:
            self._running.cancel()


class Judge:
    """Asks for each right once, of thousands that have the same role."""

    def __init__(self, permissions: Permissions) -> None:
        self._permissions = permissions
        self._resource: Resource = None
        self._known: dict[tuple[Principal, Right, str], bool] = {}

    async def may(
        self, principal: Principal, right: Right, resource: Resource, subscription: str = ""
    ) -> bool:
        """Whether somebody has a right. Raises MetadataStoreError, MetadataError."""
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
    """Whether it belongs to a namespace or a tenant."""
    namespace = resource.namespace if isinstance(resource, TopicName) else str(resource)
    return namespace == name or resource.tenant == name


def _names_of(topic: TopicName) -> tuple[str, str]:
    return str(topic), topic.partitioned_topic_name
