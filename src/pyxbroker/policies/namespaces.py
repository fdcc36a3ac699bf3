"""The policies of namespaces and their topics, and their followers.

A namespace's record is Pulsar's Policies, JSON at /admin/policies/<tenant>/<namespace>. The
metadata store notifies of each change to it, by whichever process. The record is then read again,
and the followers of the namespace are notified in time slices of the event loop. The records of
topics come from their reader (broker/topics/topic_policies.py). A topic without a record shares the
policies object of its namespace. A record or field that cannot be read changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain
from typing import Any, Protocol

from pyxbroker.base.errors import MetadataStoreError, NamespaceNotFound
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import Slices, in_slices
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

RETRY_S = 1.0  # while the store is unavailable
PREFIX = paths.POLICIES + "/"


class Follower(Protocol):
    """A topic that is notified of its policies."""

    name: TopicName
    policies: Policies

    def on_policies(self, policies: Policies) -> None: ...


class _TopicState:
    """The records of one topic, and the policies that result from them."""

    def __init__(self) -> None:
        self.records: dict[bool, Record] = {}  # by whether the record is shared by all clusters
        self.policies: Policies | None = None  # None: not computed for the current records yet
        self.last: Policies | None = None  # computed from the records before
        self.refusals: list[Refusal] = []


class _Namespace:
    """The state of one namespace."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value: bytes | None = None  # the record as it was last read
        self.broker: Policies | None = None  # the broker's policies when `policies` was computed
        self.record: Record | None = None  # the last valid one
        self.topics: dict[TopicName, _TopicState] = {}  # topics with records; never partitions
        self.changes = 0  # number of changes to records of topics
        self.changed: set[TopicName] = set()  # topics whose followers must be notified
        self.policies: Policies | None = None  # None: there was no valid record yet
        self.refusals: list[Refusal] = []
        self.is_deleted = False  # the record marks the namespace as being deleted
        self.followers: dict[TopicName, Follower] = {}
        self.partitions: dict[TopicName, set[TopicName]] = {}  # followers, by partitioned topic
        self.is_changed = False  # the record has changed since it was read
        self.needs_notification = False  # followers do not know `policies` yet
        self.task: asyncio.Task[None] | None = None


class NamespacePolicies:
    """The policies of the namespaces in use. `run` calls a function in an event-loop turn."""

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
        self._refresh_task: asyncio.Task[None] | None = None  # broker policies changed
        self._unsubscribe = store.watch(self._on_notification, prefix=PREFIX)

    def set_broker(self, broker: Policies) -> None:
        """Replace the policies of the broker, which apply where no other level sets one.

        Callers that ask for policies get the new ones immediately. Followers are notified
        namespace by namespace.
        """
        if broker == self.broker:
            return
        self.broker = broker
        if self._refresh_task is None:
            self._refresh_task = asyncio.ensure_future(self._refresh_all())

    async def _refresh_all(self) -> None:
        slices = Slices()
        left: list[_Namespace] = []
        broker = None
        while left or broker is not self.broker:
            if broker is not self.broker:
                # Another change during the pass restarts it.
                broker = self.broker
                left = list(self._namespaces.values())
            else:
                namespace = left.pop()
                try:
                    self._refresh(namespace)
                except Exception as error:  # It must not affect other namespaces.
                    log.failure("settings were not applied", error, namespace=namespace.name)
            await slices.pause()
        # Cleared here rather than when the task is done: a change between the two would be lost.
        self._refresh_task = None

    def _refresh(self, namespace: _Namespace) -> None:
        """Compute the policies again if the broker's policies have changed since."""
        if namespace.value is not None and namespace.broker is not self.broker:
            self._compute(namespace, namespace.value)

    async def get(self, topic: TopicName) -> Policies:
        """Return the policies of a topic by the current records."""
        return self._of_topic(await self._read(topic.namespace), topic)

    async def of_namespace(self, name: str) -> Policies:
        """Return the policies of a namespace's topics without records.

        Raise NamespaceNotFound if the namespace does not exist, and MetadataStoreError if no valid
        record of it has ever been read.
        """
        policies = (await self._read(name)).policies
        assert policies is not None
        return policies

    async def record(self, name: str) -> dict[str, Any]:
        """Return the current fields of a namespace's record; the caller must not change them.

        Raise NamespaceNotFound, or MetadataStoreError if the record cannot be read.
        """
        namespace = await self._read(name)
        assert namespace.record is not None and namespace.policies is not None
        if namespace.policies.refused == NAMES:
            # The last valid record may be outdated.
            raise MetadataStoreError(f"The policies of namespace {name} cannot be read.")
        return namespace.record.fields

    async def is_deleted(self, name: str) -> bool:
        """Return True while a namespace is being deleted. Raise NamespaceNotFound afterwards."""
        return (await self._read(name)).is_deleted

    async def get_open(self, topic: TopicName) -> Policies:
        """Return what get() returns. Raises NamespaceNotFound also during deletion."""
        namespace = await self._read(topic.namespace)
        if namespace.is_deleted:
            raise _being_deleted(namespace.name)
        return self._of_topic(namespace, topic)

    async def check_open(self, name: str) -> None:
        """Raise NamespaceNotFound if the namespace is being deleted or does not exist."""
        if await self.is_deleted(name):
            raise _being_deleted(name)

    async def _read(self, name: str) -> _Namespace:
        """Return the up-to-date state of a namespace; raise the errors of of_namespace."""
        value = await self._cache.get(paths.namespace_policies(name))
        if value is None:
            raise NamespaceNotFound(
                f"Namespace not found: {name} does not exist; create it first, or use a topic of"
                " public/default."
            )
        namespace = self._namespaces.get(name) or self._state_of(name)
        if namespace.value is not value:
            self._compute(namespace, value)
        self._refresh(namespace)
        if namespace.policies is None:
            raise MetadataStoreError(f"The policies of namespace {name} cannot be read.")
        return namespace

    def follow(self, name: str, follower: Follower) -> None:
        """Add a follower, and notify it if its policies are outdated already."""
        namespace = self._state_of(name)
        namespace.followers[follower.name] = follower
        if follower.name.is_partitioned:
            namespace.partitions.setdefault(_record_owner(follower.name), set()).add(follower.name)
        if namespace.policies is None:
            namespace.is_changed = True
            self._start_task(namespace)
            return
        policies = self._of_topic(namespace, follower.name)
        if follower.policies != policies:
            follower.on_policies(policies)

    def set_record(self, topic: TopicName, is_global: bool, fields: dict[str, Any] | None) -> None:
        """Replace one of the two records of a topic; None or no fields removes it."""
        namespace = self._state_of(topic.namespace)
        state = namespace.topics.get(topic)
        if state is None:
            if not fields:
                return
            state = namespace.topics[topic] = _TopicState()
        if fields:
            state.records[is_global] = Record(Level.TOPIC, str(topic), fields)
        else:
            state.records.pop(is_global, None)
        state.policies = None
        namespace.changes += 1
        if not state.records:
            del namespace.topics[topic]
        if namespace.followers:
            namespace.changed.add(topic)
            self._start_task(namespace)

    def changes(self, name: str) -> int:
        """Return how often the records of a namespace's topics have changed."""
        namespace = self._namespaces.get(name)
        return 0 if namespace is None else namespace.changes

    def has_records(self, topic: TopicName) -> bool:
        """Return True if a topic has a record, as far as records have been read."""
        namespace = self._namespaces.get(topic.namespace)
        return namespace is not None and topic in namespace.topics

    def fields(self, topic: TopicName, is_global: bool) -> dict[str, Any]:
        """Return the fields of one of the two records of a topic."""
        namespace = self._namespaces.get(topic.namespace)
        state = None if namespace is None else namespace.topics.get(topic)
        record = None if state is None else state.records.get(is_global)
        return {} if record is None else record.fields

    def _of_topic(self, namespace: _Namespace, topic: TopicName) -> Policies:
        """Return the policies of a topic, computing them if necessary."""
        self._refresh(namespace)
        of_namespace = namespace.policies
        assert of_namespace is not None
        if topic.is_system:
            return of_system_topic(of_namespace, self.broker, is_compacted=topic.is_snapshots)
        state = namespace.topics.get(_record_owner(topic)) if namespace.topics else None
        if state is None:
            return of_namespace
        if state.policies is None:
            # The cluster's own record takes precedence over the one that all clusters share.
            records = [state.records[key] for key in (False, True) if key in state.records]
            if namespace.record is not None:
                records.append(namespace.record)
            last = state.last or of_namespace
            policies, refusals = resolve(records, self.broker, last, self._cluster)
            if of_namespace.refused == NAMES:
                # The record of the namespace is invalid, and the last valid one may be outdated.
                policies = policies._replace(refused=NAMES)
            state.policies = state.last = policies
            self._log_refusals(refusals, state.refusals)
            state.refusals = refusals
        return state.policies

    @staticmethod
    def _log_refusals(refusals: list[Refusal], known: list[Refusal]) -> None:
        for refusal in refusals:
            if refusal not in known:
                whose = "topic" if "://" in refusal.owner else "namespace"
                log.error(
                    "invalid field in a policy record, the policy keeps its last value",
                    field=refusal.field,
                    reason=refusal.reason,
                    **{whose: refusal.owner},
                )

    def followers(self, namespace: str) -> list[TopicName]:
        """Return the open topics of a namespace: every open topic is a follower."""
        found = self._namespaces.get(namespace)
        return [] if found is None else list(found.followers)

    def unfollow(self, name: str, follower: Follower) -> None:
        """Remove a follower."""
        namespace = self._namespaces.get(name)
        if namespace is None or namespace.followers.get(follower.name) is not follower:
            return
        del namespace.followers[follower.name]
        if follower.name.is_partitioned:
            owner = _record_owner(follower.name)
            namespace.partitions[owner].discard(follower.name)
            if not namespace.partitions[owner]:
                del namespace.partitions[owner]

    def _state_of(self, name: str) -> _Namespace:
        """Return the state of a namespace, adding it if necessary."""
        namespace = self._namespaces.get(name)
        if namespace is None:
            namespace = self._namespaces[name] = _Namespace(name)
        return namespace

    def close(self) -> None:
        self._unsubscribe()
        if self._refresh_task is not None:
            self._refresh_task.cancel()
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
            # The next caller reads the record.
            del self._namespaces[name]
            return
        namespace.is_changed = True
        self._start_task(namespace)

    def _start_task(self, namespace: _Namespace) -> None:
        if namespace.task is None:
            namespace.task = asyncio.ensure_future(self._process_changes(namespace))
            namespace.task.add_done_callback(lambda task: self._on_task_done(namespace, task))

    def _on_task_done(self, namespace: _Namespace, task: asyncio.Task[None]) -> None:
        namespace.task = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            # The next change starts a new task.
            log.failure("policies were not applied", error, namespace=namespace.name)
        elif namespace.is_changed or namespace.needs_notification or namespace.changed:
            self._start_task(namespace)

    async def _process_changes(self, namespace: _Namespace) -> None:
        """Read changed records and notify followers until nothing is left to do."""
        while namespace.is_changed or namespace.needs_notification or namespace.changed:
            if not namespace.is_changed:
                changed = None if namespace.needs_notification else namespace.changed
                namespace.needs_notification = False
                namespace.changed = set()
                await self._notify(namespace, changed)
                continue
            namespace.is_changed = False
            try:
                path = paths.namespace_policies(namespace.name)
                value = await self._cache.get(path)
                # Watch for the namespace to be created again. A notification that arrives during
                # the call counts whatever the answer is.
                if (
                    value is None
                    and namespace.followers
                    and await self._store.exists(path, watch=True)
                ):
                    namespace.is_changed = True
            except MetadataError as error:
                log.warning(
                    "policies cannot be read, the last ones stay in force",
                    namespace=namespace.name,
                    error=error,
                )
                if isinstance(error, Unavailable):
                    namespace.is_changed = True
                    await asyncio.sleep(RETRY_S)
                continue
            if value is None:
                log.warning(
                    "a namespace was deleted, its open topics keep their policies",
                    namespace=namespace.name,
                )
            elif value is not namespace.value:
                self._compute(namespace, value)

    def _compute(self, namespace: _Namespace, value: bytes) -> None:
        """Compute the policies after a change of the record or of the broker's policies."""
        namespace.value = value
        if namespace.broker not in (None, self.broker) and namespace.followers:
            # System topics use policies of the broker that their namespace does not have.
            namespace.needs_notification = True
            self._start_task(namespace)
        namespace.broker = self.broker
        before = namespace.policies
        path = paths.namespace_policies(namespace.name)
        try:
            fields = self._cache.parsed(path, value, decode)
        except ValueError as error:
            log.error(
                "policies cannot be read, the last ones stay in force",
                namespace=namespace.name,
                error=error,
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
        for state in namespace.topics.values():
            state.policies = None
        if namespace.followers:
            namespace.needs_notification = True
            self._start_task(namespace)

    async def _notify(self, namespace: _Namespace, topics: set[TopicName] | None) -> None:
        """Notify the followers of some topics, or all followers."""
        if topics is None:
            names = list(namespace.followers)
        else:
            names = [*topics, *chain(*(namespace.partitions.get(each, ()) for each in topics))]
        async for name in in_slices(names):
            follower = namespace.followers.get(name)
            if follower is not None and namespace.policies is not None:
                policies = self._of_topic(namespace, name)
                if policies != follower.policies:
                    self._run(self._notify_one, follower, policies)

    @staticmethod
    def _notify_one(follower: Follower, policies: Policies) -> None:
        try:
            follower.on_policies(policies)
        except Exception as error:
            # One failure must not keep other followers from being notified.
            log.failure("a topic did not apply its policies", error, topic=follower.name)


def _being_deleted(name: str) -> NamespaceNotFound:
    return NamespaceNotFound(f"Namespace is deleted: {name} is deleted with everything in it.")


def _record_owner(topic: TopicName) -> TopicName:
    """Return the topic that has the records: the topic itself, or its partitioned topic."""
    return TopicName.get(topic.partitioned_topic_name) if topic.is_partitioned else topic
