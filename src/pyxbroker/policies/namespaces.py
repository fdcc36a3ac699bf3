"""The policies of namespaces, and who is told when they change.

A namespace's record is Pulsar's Policies, JSON at /admin/policies/<tenant>/<namespace>; whoever
writes it, the metadata store tells. Then it is read again, and everybody who follows the namespace
is told, in slices of the event loop. What cannot be read changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from pyxbroker.base.errors import MetadataStoreError, NamespaceNotFound
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import Slices
from pyxbroker.metadata import paths
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.metadata.store import MetadataError, MetadataStore, Notification, Unavailable
from pyxbroker.policies.resolver import Record, Refusal, decode, resolve
from pyxbroker.policies.shapes import Level
from pyxbroker.policies.table import NAMES
from pyxbroker.policies.values import Policies

log = get_logger("pyxbroker.policies")

SLICE_S = 0.002  # of telling followers, then it yields
RETRY_S = 1.0  # while the store cannot be reached
PREFIX = paths.POLICIES + "/"


class Follower(Protocol):
    """Who is told of a namespace's policies: a topic."""

    policies: Policies

    def on_policies(self, policies: Policies) -> None: ...


class _Namespace:
    """What is known of one namespace."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value: bytes | None = None  # of the record, as it was read last
        self.policies: Policies | None = None  # None: no record was good yet
        self.refusals: list[Refusal] = []
        self.is_deleted = False  # or about to be: its record says so
        self.followers: dict[Follower, None] = {}
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
        self._cache = cache
        self._run = run
        self._namespaces: dict[str, _Namespace] = {}
        self._unsubscribe = store.watch(self._on_notification, prefix=PREFIX)

    async def get(self, name: str) -> Policies:
        """What holds for the topics of a namespace, by what metadata says now.

        Raises NamespaceNotFound when there is no such namespace, MetadataStoreError when its record
        cannot be read and never could.
        """
        value = await self._cache.get(paths.namespace_policies(name))
        if value is None:
            raise NamespaceNotFound(
                f"Namespace not found: {name} does not exist; create it first, or use a topic of"
                " public/default."
            )
        namespace = self._namespace(name)
        if namespace.value is not value:
            self._take(namespace, value)
        if namespace.policies is None:
            raise MetadataStoreError(f"The policies of namespace {name} cannot be read.")
        return namespace.policies

    async def get_open(self, name: str) -> Policies:
        """The same, for whoever opens topics: one that is being deleted is not there any more."""
        policies = await self.get(name)
        if self._namespace(name).is_deleted:
            raise NamespaceNotFound(f"Namespace is deleted: {name} goes with all that is in it.")
        return policies

    def follow(self, name: str, follower: Follower) -> None:
        """From now on a follower is told of changes; also of one that it has missed."""
        namespace = self._namespace(name)
        namespace.followers[follower] = None
        if namespace.policies is None:
            namespace.is_changed = True
            self._go_on(namespace)
        elif follower.policies != namespace.policies:
            follower.on_policies(namespace.policies)

    def leave(self, name: str, follower: Follower) -> None:
        """A follower is told nothing any more."""
        namespace = self._namespaces.get(name)
        if namespace is not None:
            namespace.followers.pop(follower, None)

    def _namespace(self, name: str) -> _Namespace:
        """What is known of a namespace, from now on kept."""
        namespace = self._namespaces.get(name)
        if namespace is None:
            namespace = self._namespaces[name] = _Namespace(name)
        return namespace

    def close(self) -> None:
        self._unsubscribe()
        for namespace in self._namespaces.values():
            if namespace.task is not None:
                namespace.task.cancel()

    # --- changes ------------------------------------------------------------------------------

    def _on_notification(self, notification: Notification) -> None:
        name = notification.path.removeprefix(PREFIX)
        namespace = self._namespaces.get(name)
        if namespace is None:
            return
        if not namespace.followers and namespace.task is None:
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
        elif namespace.is_changed or namespace.is_news:
            self._go_on(namespace)

    async def _settle(self, namespace: _Namespace) -> None:
        """Reads what has changed and tells it, until nothing is left to do."""
        while namespace.is_changed or namespace.is_news:
            if not namespace.is_changed:
                namespace.is_news = False
                await self._tell(namespace)
                continue
            namespace.is_changed = False
            try:
                value = await self._cache.get(paths.namespace_policies(namespace.name))
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
        """Makes policies of a record that is new."""
        namespace.value = value
        before = namespace.policies
        try:
            record = Record(Level.NAMESPACE, namespace.name, decode(value))
        except ValueError as error:
            log.error(
                "policies cannot be read, those before stay", namespace=namespace.name, error=error
            )
            if before is not None:
                self._set(namespace, before._replace(refused=NAMES))
            return
        namespace.is_deleted = record.fields.get("deleted") is True
        policies, refusals = resolve([record], self.broker, before or self.broker, self._cluster)
        for refusal in refusals:
            if refusal not in namespace.refusals:
                log.error(
                    "a policy cannot be what its field says, it stays as it was",
                    namespace=namespace.name,
                    field=refusal.field,
                    reason=refusal.reason,
                )
        namespace.refusals = refusals
        self._set(namespace, policies)

    def _set(self, namespace: _Namespace, policies: Policies) -> None:
        before, namespace.policies = namespace.policies, policies
        if policies != before and namespace.followers:
            namespace.is_news = True
            self._go_on(namespace)

    async def _tell(self, namespace: _Namespace) -> None:
        slices = Slices(SLICE_S)
        for follower in list(namespace.followers):
            if follower in namespace.followers and namespace.policies is not None:
                self._run(self._tell_one, follower, namespace.policies)
            await slices.pause()

    @staticmethod
    def _tell_one(follower: Follower, policies: Policies) -> None:
        try:
            follower.on_policies(policies)
        except Exception as error:
            # The others are told all the same.
            log.failure("a topic did not take its policies over", error, topic=_name_of(follower))


def _name_of(follower: Any) -> str:
    return str(getattr(follower, "name", follower))
