"""The policies of namespaces and their topics, and who is told when they change.

A namespace's record is Pulsar's Policies, JSON at /admin/policies/<tenant>/<namespace>; whoever
writes it, the metadata store tells. Then it is read again, and everybody who follows the namespace
is told, in slices of the event loop. What topics say of themselves comes from whoever reads their
records (broker/topics/topic_policies.py); a topic that says nothing has the policies of its
namespace, the very same object. What cannot be read changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain
from typing import Any, Protocol

from pyxbroker.base.errors import MetadataStoreError, NamespaceNotFound
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import Slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.metadata import paths
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.metadata.store import MetadataError, MetadataStore, Notification, Unavailable
from pyxbroker.policies.records import DELETED, decode
from pyxbroker.policies.resolver import Record, Refusal, resolve
from pyxbroker.policies.shapes import Level
from pyxbroker.policies.table import NAMES, of_system_topic
from pyxbroker.policies.values import Policies

log = get_logger("pyxbroker.policies")

RETRY_S = 1.0  # while the store cannot be reached
PREFIX = paths.POLICIES + "/"


class Follower(Protocol):
    """Who is told of policies: a topic."""

    name: TopicName
    policies: Policies

    def on_policies(self, policies: Policies) -> None: ...


class _Says:
    """What one topic says of itself, and what holds for it by that."""

    def __init__(self) -> None:
        self.records: dict[bool, Record] = {}  # by whether all clusters share it
        self.policies: Policies | None = None  # None: not made yet of what is said now
        self.last: Policies | None = None  # what was made of what was said before
        self.refusals: list[Refusal] = []


class _Namespace:
    """What is known of one namespace."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value: bytes | None = None  # of the record, as it was read last
        self.broker: Policies | None = None  # with which its policies were made
        self.record: Record | None = None  # the last one that was good
        self.topics: dict[TopicName, _Says] = {}  # that say something; never partitions
        self.changes = 0  # of what topics say
        self.changed: set[TopicName] = set()  # of those: whoever follows them is to be told
        self.policies: Policies | None = None  # None: no record was good yet
        self.refusals: list[Refusal] = []
        self.is_deleted = False  # or about to be: its record says so
        self.followers: dict[TopicName, Follower] = {}
        self.partitions: dict[TopicName, set[TopicName]] = {}  # that follow, by their topic
        self.is_changed = False  # since it was read
        self.is_news = False  # not every follower knows of policies
        self.task: asyncio.Task[None] | None = None


class NamespacePolicies:
    """The policies of the namespaces that are in use. `run` calls within a turn of the loop."""

    def __init__(
        self,
        broker: Policies,
        store: MetadataStore,
        cache: MetadataCache,
        run: Callable[..., None],
        cluster: str,
    ) -> None:
        self.broker = broker
        self._cluster = cluster
        self._store = store
        self._cache = cache
        self._run = run
        self._namespaces: dict[str, _Namespace] = {}
        self._retaking: asyncio.Task[None] | None = None  # what the broker says is new
        self._unsubscribe = store.watch(self._on_notification, prefix=PREFIX)

    def set_broker(self, broker: Policies) -> None:
        """What the broker says where no other level does has changed.

        Who asks for policies has the new ones at once; who follows is told, namespace by namespace.
        """
        if broker == self.broker:
            return
        self.broker = broker
        if self._retaking is None:
            self._retaking = asyncio.ensure_future(self._retake_all())

    async def _retake_all(self) -> None:
        slices = Slices()
        left: list[_Namespace] = []
        broker = None
        while left or broker is not self.broker:
            if broker is not self.broker:
                # What changes again meanwhile begins anew.
                broker = self.broker
                left = list(self._namespaces.values())
            else:
                namespace = left.pop()
                try:
                    self._retake(namespace)
                except Exception as error:  # It costs the topics of this namespace alone.
                    log.failure("settings were not taken over", error, namespace=namespace.name)
            await slices.pause()
        # Not when the task is done: what changes in that turn would be told to nobody.
        self._retaking = None

    def _retake(self, namespace: _Namespace) -> None:
        """Makes the policies anew if what the broker says has changed since they were made."""
        if namespace.value is not None and namespace.broker is not self.broker:
            self._take(namespace, namespace.value)

    async def get(self, topic: TopicName) -> Policies:
        """What holds for a topic, by what metadata and the topic say now."""
        return self._of_topic(await self._read(topic.namespace), topic)

    async def of_namespace(self, name: str) -> Policies:
        """What holds for the topics of a namespace that say nothing, by what metadata says now.

        Raises NamespaceNotFound when there is no such namespace, MetadataStoreError when its record
        cannot be read and never could.
        """
        policies = (await self._read(name)).policies
        assert policies is not None
        return policies

    async def record(self, name: str) -> dict[str, Any]:
        """The fields of a namespace's record as it is now, which are not to be changed.

        Raises NamespaceNotFound, MetadataStoreError when it cannot be read.
        """
        namespace = await self._read(name)
        assert namespace.record is not None and namespace.policies is not None
        if namespace.policies.refused == NAMES:
            # The last one that was good may be an old one.
            raise MetadataStoreError(f"The policies of namespace {name} cannot be read.")
        return namespace.record.fields

    async def is_deleted(self, name: str) -> bool:
        """Whether a namespace is being deleted. Raises NamespaceNotFound when it is gone."""
        return (await self._read(name)).is_deleted

    async def get_open(self, topic: TopicName) -> Policies:
        """As get; raises NamespaceNotFound also while the namespace is being deleted."""
        namespace = await self._read(topic.namespace)
        if namespace.is_deleted:
            raise _is_going(namespace.name)
        return self._of_topic(namespace, topic)

    async def check_open(self, name: str) -> None:
        """Raises NamespaceNotFound for a namespace that is being deleted, or that there is not."""
        if await self.is_deleted(name):
            raise _is_going(name)

    async def _read(self, name: str) -> _Namespace:
        """What metadata says of a namespace now; its policies are known. Raises as of_namespace."""
        value = await self._cache.get(paths.namespace_policies(name))
        if value is None:
            raise NamespaceNotFound(
                f"Namespace not found: {name} does not exist; create it first, or use a topic of"
                " public/default."
            )
        namespace = self._namespaces.get(name) or self._namespace(name)
        if namespace.value is not value:
            self._take(namespace, value)
        self._retake(namespace)
        if namespace.policies is None:
            raise MetadataStoreError(f"The policies of namespace {name} cannot be read.")
        return namespace

    def follow(self, name: str, follower: Follower) -> None:
        """From now on a follower is told of changes; also of one that it has missed."""
        namespace = self._namespace(name)
        namespace.followers[follower.name] = follower
        if follower.name.is_partitioned:
            namespace.partitions.setdefault(_whole(follower.name), set()).add(follower.name)
        if namespace.policies is None:
            namespace.is_changed = True
            self._go_on(namespace)
            return
        policies = self._of_topic(namespace, follower.name)
        if follower.policies != policies:
            follower.on_policies(policies)

    def set_record(self, topic: TopicName, is_global: bool, fields: dict[str, Any] | None) -> None:
        """What one of the two records of a topic says from now on; None: nothing any more."""
        namespace = self._namespace(topic.namespace)
        says = namespace.topics.get(topic)
        if says is None:
            if not fields:
                return
            says = namespace.topics[topic] = _Says()
        if fields:
            says.records[is_global] = Record(Level.TOPIC, str(topic), fields)
        else:
            says.records.pop(is_global, None)
        says.policies = None
        namespace.changes += 1
        if not says.records:
            del namespace.topics[topic]
        if namespace.followers:
            namespace.changed.add(topic)
            self._go_on(namespace)

    def changes(self, name: str) -> int:
        """How often what the topics of a namespace say has changed."""
        namespace = self._namespaces.get(name)
        return 0 if namespace is None else namespace.changes

    def says(self, topic: TopicName) -> bool:
        """Whether a topic says anything of itself, as far as is known."""
        namespace = self._namespaces.get(topic.namespace)
        return namespace is not None and topic in namespace.topics

    def fields(self, topic: TopicName, is_global: bool) -> dict[str, Any]:
        """What one of the two records of a topic says."""
        namespace = self._namespaces.get(topic.namespace)
        says = None if namespace is None else namespace.topics.get(topic)
        record = None if says is None else says.records.get(is_global)
        return {} if record is None else record.fields

    def _of_topic(self, namespace: _Namespace, topic: TopicName) -> Policies:
        """What holds for a topic of a namespace that is known."""
        self._retake(namespace)
        of_namespace = namespace.policies
        assert of_namespace is not None
        if topic.is_system:
            return of_system_topic(of_namespace, self.broker)
        says = namespace.topics.get(_whole(topic)) if namespace.topics else None
        if says is None:
            return of_namespace
        if says.policies is None:
            # Its own record is asked first, then the one that all clusters share.
            records = [says.records[key] for key in (False, True) if key in says.records]
            if namespace.record is not None:
                records.append(namespace.record)
            last = says.last or of_namespace
            policies, refusals = resolve(records, self.broker, last, self._cluster)
            if of_namespace.refused == NAMES:
                # The record of its namespace cannot be read: the last good one is only a guess.
                policies = policies._replace(refused=NAMES)
            says.policies = says.last = policies
            self._log_refusals(refusals, says.refusals)
            says.refusals = refusals
        return says.policies

    @staticmethod
    def _log_refusals(refusals: list[Refusal], known: list[Refusal]) -> None:
        for refusal in refusals:
            if refusal not in known:
                whose = "topic" if "://" in refusal.owner else "namespace"
                log.error(
                    "a policy cannot be what its field says, it stays as it was",
                    field=refusal.field,
                    reason=refusal.reason,
                    **{whose: refusal.owner},
                )

    def followers(self, namespace: str) -> list[TopicName]:
        """The topics of a namespace that are open here, as none is that does not follow."""
        found = self._namespaces.get(namespace)
        return [] if found is None else list(found.followers)

    def leave(self, name: str, follower: Follower) -> None:
        """A follower is told nothing any more."""
        namespace = self._namespaces.get(name)
        if namespace is None or namespace.followers.get(follower.name) is not follower:
            return
        del namespace.followers[follower.name]
        if follower.name.is_partitioned:
            whole = _whole(follower.name)
            namespace.partitions[whole].discard(follower.name)
            if not namespace.partitions[whole]:
                del namespace.partitions[whole]

    def _namespace(self, name: str) -> _Namespace:
        """What is known of a namespace, from now on kept."""
        namespace = self._namespaces.get(name)
        if namespace is None:
            namespace = self._namespaces[name] = _Namespace(name)
        return namespace

    def close(self) -> None:
        self._unsubscribe()
        if self._retaking is not None:
            self._retaking.cancel()
        for namespace in self._namespaces.values():
            if namespace.task is not None:
                namespace.task.cancel()

    # --- changes ------------------------------------------------------------------------------

    def _on_notification(self, notification: Notification) -> None:
        name = notification.path.removeprefix(PREFIX)
        namespace = self._namespaces.get(name)
        if namespace is None:
            return
        if not namespace.followers and not namespace.topics and namespace.task is None:
            # Who asks for it next reads it; nobody needs to know before.
            del self._namespaces[name]
            return
        namespace.is_changed = True
        self._go_on(namespace)

    def _go_on(self, namespace: _Namespace) -> None:
        if namespace.task is None:
            namespace.task = asyncio.ensure_future(self._settle(namespace))
            namespace.task.add_done_callback(lambda task: self._on_settled(namespace, task))

    def _on_settled(self, namespace: _Namespace, task: asyncio.Task[None]) -> None:
        namespace.task = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            # The next change begins anew.
            log.failure("policies were not taken over", error, namespace=namespace.name)
        elif namespace.is_changed or namespace.is_news or namespace.changed:
            self._go_on(namespace)

    async def _settle(self, namespace: _Namespace) -> None:
        """Reads what has changed and tells it, until nothing is left to do."""
        while namespace.is_changed or namespace.is_news or namespace.changed:
            if not namespace.is_changed:
                changed = None if namespace.is_news else namespace.changed
                namespace.is_news = False
                namespace.changed = set()
                await self._tell(namespace, changed)
                continue
            namespace.is_changed = False
            try:
                path = paths.namespace_policies(namespace.name)
                value = await self._cache.get(path)
                # Its topics are to hear of it when it comes back. What they hear while it is asked
                # for counts whatever the answer.
                if (
                    value is None
                    and namespace.followers
                    and await self._store.exists(path, watch=True)
                ):
                    namespace.is_changed = True
            except MetadataError as error:
                log.warning(
                    "policies cannot be read, those before stay",
                    namespace=namespace.name,
                    error=error,
                )
                if isinstance(error, Unavailable):
                    namespace.is_changed = True
                    await asyncio.sleep(RETRY_S)
                continue
            if value is None:
                log.warning(
                    "a namespace is gone, its open topics keep their policies",
                    namespace=namespace.name,
                )
            elif value is not namespace.value:
                self._take(namespace, value)

    def _take(self, namespace: _Namespace, value: bytes) -> None:
        """Makes policies of a record that is new, or of what the broker says."""
        namespace.value = value
        if namespace.broker not in (None, self.broker) and namespace.followers:
            # Topics of the broker itself have something of it that their namespace has not.
            namespace.is_news = True
            self._go_on(namespace)
        namespace.broker = self.broker
        before = namespace.policies
        path = paths.namespace_policies(namespace.name)
        try:
            fields = self._cache.parsed(path, value, decode)
        except ValueError as error:
            log.error(
                "policies cannot be read, those before stay", namespace=namespace.name, error=error
            )
            if before is not None:
                self._set(namespace, before._replace(refused=NAMES))
            return
        record = Record(Level.NAMESPACE, namespace.name, fields)
        namespace.is_deleted = record.fields.get(DELETED) is True
        policies, refusals = resolve([record], self.broker, before or self.broker, self._cluster)
        self._log_refusals(refusals, namespace.refusals)
        namespace.refusals = refusals
        namespace.record = record
        self._set(namespace, policies)

    def _set(self, namespace: _Namespace, policies: Policies) -> None:
        before, namespace.policies = namespace.policies, policies
        if policies == before:
            return
        for says in namespace.topics.values():
            says.policies = None
        if namespace.followers:
            namespace.is_news = True
            self._go_on(namespace)

    async def _tell(self, namespace: _Namespace, topics: set[TopicName] | None) -> None:
        """Tells those who follow some topics, or everybody."""
        slices = Slices()
        if topics is None:
            names = list(namespace.followers)
        else:
            names = [*topics, *chain(*(namespace.partitions.get(each, ()) for each in topics))]
        for name in names:
            follower = namespace.followers.get(name)
            if follower is not None and namespace.policies is not None:
                policies = self._of_topic(namespace, name)
                if policies != follower.policies:
                    self._run(self._tell_one, follower, policies)
            await slices.pause()

    @staticmethod
    def _tell_one(follower: Follower, policies: Policies) -> None:
        try:
            follower.on_policies(policies)
        except Exception as error:
            # The others are told all the same.
            log.failure("a topic did not take its policies over", error, topic=follower.name)


def _is_going(name: str) -> NamespaceNotFound:
    return NamespaceNotFound(f"Namespace is deleted: {name} goes with all that is in it.")


def _whole(topic: TopicName) -> TopicName:
    """The topic that says something for this one: itself, or the one it is a partition of."""
    return TopicName.get(topic.partitioned_topic_name) if topic.is_partitioned else topic
