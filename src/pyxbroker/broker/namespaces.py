"""Namespaces: creation, deletion, and operations on all topics of one.

A namespace is a record, Pulsar's Policies at /admin/policies/<tenant>/<namespace>. It is below its
tenant's node, so a metadata store refuses to delete a tenant with namespaces. A deletion first sets
`deleted` in the record. From then on clients can create and open nothing in it. An interrupted
deletion can be repeated. Mirrors NamespacesBase and NamespaceResources.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pyxbroker.base.bundles import (
    BUNDLES_MAX,
    WHOLE,
    Bundle,
    boundaries_of,
    bundles_of,
    data_of,
    hash_of,
)
from pyxbroker.base.compact_json import to_json
from pyxbroker.base.errors import (
    BundleNotEmpty,
    BundlesLimitReached,
    ConcurrentModification,
    NamespaceExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    NamespacesLimitReached,
    PulsarError,
    SubscriptionNotFound,
    TenantNotFound,
    TopicNotFound,
)
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import Slices, in_slices
from pyxbroker.base.system_cursors import is_system_cursor
from pyxbroker.base.topic_name import (
    NON_PERSISTENT,
    PERSISTENT,
    SYSTEM_NAMESPACE,
    NamespaceName,
    TopicName,
)
from pyxbroker.broker.topics.names import topic_of_node
from pyxbroker.broker.topics.partition_nodes import for_each
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import (
    MUST_NOT_EXIST,
    BadVersion,
    MetadataStore,
    NotEmpty,
    NotFound,
)
from pyxbroker.metadata.turns import Turns
from pyxbroker.mledger.cursor import CursorDeleted
from pyxbroker.policies.records import (
    DELETED,
    Change,
    Fields,
    change_namespace,
    change_record,
    create_record,
    fields_of,
)
from pyxbroker.settings.config import Config

if TYPE_CHECKING:
    from pyxbroker.broker.topics.topic import Topic
    from pyxbroker.broker.topics.topics import Topics
    from pyxbroker.metadata.cache import MetadataCache

log = get_logger("pyxbroker.namespaces")

DOMAINS = (PERSISTENT, NON_PERSISTENT)
SPLITS_MAX = 7  # attempts to store a split while other brokers change the record, as in Pulsar
SPLIT_RETRY_S = 0.1
BOUNDARIES_MAX = 10_000  # namespaces whose boundaries stay in memory
ROUNDS_MAX = 5  # repetitions of a deletion, while other brokers create topics

# Return True if the caller may use a subscription, or a system topic.
MayUse = Callable[[str], Awaitable[bool]]
MayReach = Callable[[TopicName], Awaitable[bool]]


async def _may_always(_what: str | TopicName) -> bool:
    return True


class Namespaces:
    """The namespaces of this cluster and their topics."""

    def __init__(
        self, config: Config, store: MetadataStore, cache: MetadataCache, topics: Topics
    ) -> None:
        self._config = config
        self._store = store
        self._cache = cache
        self._topics = topics
        # The boundaries of bundles, with the value of the record that has them.
        self._boundaries: dict[str, tuple[bytes, list[int]]] = {}
        self.unload_coordinators: (
            Callable[[Callable[[TopicName], bool]], Awaitable[None]] | None
        ) = None
        """Closes the transaction coordinators of partitions for which a function returns True;
        None: none is open.
        """
        self._creations = Turns[None](store)
        self._deletions = Turns[str](store)

    @property
    def creation_lock(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Lock for the creation of tenants and namespaces. It keeps limits exact, and the tenant
        alive while a namespace is created in it. Raises Unavailable.
        """
        return self._creations.turn(None)

    # --- reading ------------------------------------------------------------------------------

    async def names(self, tenant: str) -> list[str]:
        """Return `tenant/namespace` of each namespace of a tenant."""
        children = await self._store.children(paths.tenant(tenant))
        return [f"{tenant}/{each}" for each in children]

    async def exists(self, name: str) -> bool:
        return await self._store.exists(paths.namespace_policies(name))

    async def record(self, name: str) -> Fields:
        """Return the current fields of a namespace's record. Raises NamespaceNotFound."""
        path = paths.namespace_policies(name)
        found = await self._store.get(path)
        if found is None:
            raise NamespaceNotFound(f"Namespace {name} does not exist.")
        return fields_of(path, found.value)

    async def local_record(self, name: str) -> Fields:
        """Return the fields of a namespace's record of this cluster, empty without a record."""
        path = paths.local_policies(name)
        found = await self._store.get(path)
        return {} if found is None else fields_of(path, found.value)

    async def topic_names(self, name: str, domain: str) -> list[TopicName]:
        """Return the topics of a namespace, including partitions and system topics. Of
        non-persistent topics, only those loaded by this broker are included.
        """
        if domain == NON_PERSISTENT:
            return await self._topics.registry.open_names(name, domain)
        return await self._of_nodes(name, domain, paths.managed_ledgers(name))

    async def partitioned_names(self, name: str, domain: str) -> list[TopicName]:
        """Return the partitioned topics of a namespace."""
        return await self._of_nodes(name, domain, paths.partitioned_topics(name, domain))

    async def _of_nodes(self, name: str, domain: str, path: str) -> list[TopicName]:
        names = []
        # 100,000 names would block the loop for a second, a few hundred long ones for 20 ms.
        async for node in in_slices(await self._store.children(path)):
            found = topic_of_node(domain, name, node)
            if found is not None:
                names.append(found)
        return names

    # --- changing -----------------------------------------------------------------------------

    async def change(self, name: str, change: Change) -> Fields:
        """Change the record of a namespace. Return its new fields.

        Raises NamespaceNotFound, ConcurrentModification, and the errors of `change`.
        """
        return await change_namespace(self._store, self._cache, name, change)

    async def change_local(self, name: str, change: Change) -> None:
        """Change a namespace's record of this cluster. The first change also stores the bundles
        there, as Pulsar does.

        Raises NamespaceNotFound, ConcurrentModification, and the errors of `change`.
        """
        path = paths.local_policies(name)
        cache = self._cache
        async with self.creation_lock:
            await self._topics.policies.of_namespace(NamespaceName.get(name))
            if not await self._store.exists(path):
                fields = {"bundles": data_of(await self.bundles(name)), "migrated": False}
                await create_record(self._store, cache, path, fields)
            await change_record(self._store, cache, path, change)

    async def create(self, name: NamespaceName, fields: Fields) -> None:
        """Create a namespace.

        Raises NamespaceExists, NamespacesLimitReached, TenantNotFound.
        """
        tenant = name.tenant
        async with self.creation_lock:
            if not await self._store.exists(paths.tenant(tenant)):
                raise TenantNotFound("Tenant does not exist")
            limit = self._config.maxNamespacesPerTenant
            # Pulsar also admits one more than the limit.
            if limit > 0 and len(await self.names(tenant)) > limit:
                raise NamespacesLimitReached(
                    f"Exceed the maximum number of namespace in tenant :{tenant}"
                )
            path = paths.namespace_policies(str(name))
            if not await create_record(self._store, self._cache, path, fields):
                raise NamespaceExists("Namespace already exists")
        log.info("a namespace was created", namespace=name)

    # --- deleting -----------------------------------------------------------------------------

    async def delete(self, name: str, force: bool) -> None:
        """Delete a namespace, with force together with its topics. An interrupted deletion can be
        repeated.

        Raises NamespaceNotFound, NamespaceNotEmpty, Unavailable after waiting for another deletion
        of it, and the errors that prevent the deletion of a topic.
        """
        if name == SYSTEM_NAMESPACE and self.unload_coordinators is not None:
            raise NamespaceNotEmpty(
                f"Namespace {name} has the transaction coordinators. It cannot be deleted while"
                " transactions are enabled."
            )
        async with self._deletions.turn(name):
            await self._delete(name, force)
        log.info("a namespace was deleted", namespace=name)

    async def _delete(self, name: str, force: bool) -> None:
        was_deleted = (await self.record(name)).get(DELETED) is True
        if not force and not was_deleted:
            await self._check_empty(name)
        await self.change(name, lambda fields: fields.update({DELETED: True}))
        try:
            # Creations that have begun before have finished now, and no others begin.
            await self._topics.loader.wait_settled(name)
            if not force:
                await self._check_empty(name)
        except BaseException as error:
            # An earlier interrupted deletion stays marked. Without force, its topics are preserved.
            if not was_deleted or isinstance(error, NamespaceNotEmpty):
                await self.change(name, lambda fields: fields.update({DELETED: False}))
            raise
        for _ in range(ROUNDS_MAX):
            await self._delete_topics(name)
            if await self._delete_nodes(name):
                return
        raise NamespaceNotEmpty("Cannot delete non empty namespace")

    async def _check_empty(self, name: str) -> None:
        """Raise NamespaceNotEmpty if there are topics other than system topics."""
        for domain in DOMAINS:
            for look in (self.partitioned_names, self.topic_names):
                if not all(each.is_system for each in await look(name, domain)):
                    raise NamespaceNotEmpty("Cannot delete non empty namespace")

    async def _delete_topics(self, name: str) -> None:
        """Delete every topic. System topics go last, because other topics write to them."""

        async def delete_partitioned(topic: TopicName) -> None:
            try:
                await self._topics.partitioned.delete(topic, force=True)
            except TopicNotFound:
                # Its record has no partitions, or it was deleted meanwhile.
                await self._delete_node(
                    paths.partitioned_topic(name, topic.local_name, topic.domain)
                )

        delete = self._topics.deletion.delete_anywhere
        for is_system in (False, True):
            for look, work in (
                (self.partitioned_names, delete_partitioned),
                (self.topic_names, delete),
            ):
                for domain in DOMAINS:
                    found = await look(name, domain)
                    await for_each((each for each in found if each.is_system == is_system), work)

    async def _delete_nodes(self, name: str) -> bool:
        """Delete the metadata of a namespace except its topics; the record goes last.

        Return False if another broker has created a topic meanwhile.
        """
        schemas = paths.schemas(name)
        await self._delete_schemas(name, schemas)
        quotas = paths.resource_quotas(name)
        for bundle in await self._store.children(quotas):
            await self._delete_node(f"{quotas}/{bundle}")
        above = [paths.managed_ledgers(name, domain) for domain in DOMAINS]
        above += [paths.partitioned_topics(name, domain) for domain in DOMAINS]
        above += [paths.topics_of(name), paths.partitioned_topics_of(name), schemas, quotas]
        try:
            for path in above:
                await self._delete_node(path)
            # It is empty, and nothing can be created until its record is deleted.
            self._topics.forget_namespace(name)
            for path in (paths.local_policies(name), paths.namespace_policies(name)):
                await self._delete_node(path)
        except NotEmpty as error:
            log.info("a topic was created while its namespace was deleted", error=error)
            return False
        return True

    async def _delete_schemas(self, name: str, path: str) -> None:
        """Delete the remaining schemas, which belong to no topic."""

        async def delete(node: str) -> None:
            await self._topics.schemas.delete_storage(f"{name}/{node}")

        await for_each(await self._store.children(path), delete)

    async def _delete_node(self, path: str) -> None:
        try:
            with contextlib.suppress(NotFound):
                await self._store.delete(path)
        finally:
            self._cache.forget(path)

    # --- all topics of a namespace ------------------------------------------------------------

    async def unload(self, name: str, bundle: Bundle = WHOLE) -> None:
        """Unload the loaded topics. Their clients are disconnected, and look the topics up again.

        Raises NamespaceNotFound, PersistenceError.
        """
        await self.record(name)
        found = self._topics.registry.in_namespace(name)
        await for_each(await _inside(found, bundle), self._topics.deletion.unload)
        await self._unload_coordinators(name, lambda topic: topic in bundle)

    async def clear_backlog(
        self,
        name: str,
        subscription: str | None = None,
        bundle: Bundle = WHOLE,
        may_use: MayUse = _may_always,
        may_reach: MayReach = _may_always,
    ) -> None:
        """Clear the backlog of the persistent topics that the caller may reach: of one
        subscription, or of all that the caller may use. The cursor of compaction does not move:
        entries not yet compacted would be missing from all views.

        Raises NamespaceNotFound, SubscriptionNotFound if no topic has the subscription, and the
        errors of opening a topic.
        """

        async def clear(topic: Topic) -> None:
            names = list(topic.subscriptions) if subscription is None else [subscription]
            slices = Slices()
            for each in names:
                is_wanted = not is_system_cursor(each) and await may_use(each)
                await slices.pause()
                if is_wanted and each in topic.subscriptions:
                    with contextlib.suppress(CursorDeleted):
                        await topic.clear_backlog(each)

        count = await self._each_persistent(name, subscription, clear, bundle, may_reach)
        if subscription is not None and not count:
            raise SubscriptionNotFound(f"Subscription {subscription} not found in {name}")

    async def unsubscribe(
        self,
        name: str,
        subscription: str,
        bundle: Bundle = WHOLE,
        may_reach: MayReach = _may_always,
    ) -> None:
        """Delete a subscription of every topic that has it and that the caller may reach.

        Raises NamespaceNotFound, SubscriptionBusy while it has consumers.
        """

        async def delete(topic: Topic) -> None:
            with contextlib.suppress(SubscriptionNotFound):
                await topic.delete_subscription(subscription, force=False)

        await self._each_persistent(name, subscription, delete, bundle, may_reach)

    async def _each_persistent(
        self,
        name: str,
        subscription: str | None,
        work: Callable[[Topic], Awaitable[None]],
        bundle: Bundle,
        may_reach: MayReach,
    ) -> int:
        """Call work for each persistent topic with the subscription, or with any. Return their
        number. System topics that the caller may not reach are skipped.
        """
        await self.record(name)
        count = 0

        async def do(topic: TopicName) -> None:
            nonlocal count
            if topic.is_system and not await may_reach(topic):
                return
            names = await self._topics.registry.subscription_names(topic)
            if not names or not (subscription is None or subscription in names):
                return
            count += 1
            # If the topic is deleted meanwhile, its subscriptions are, too.
            with contextlib.suppress(TopicNotFound):
                await work(await self._topics.loader.get(topic, create=False))

        found = await self.topic_names(name, PERSISTENT)
        await for_each(await _inside(found, bundle), do)
        return count

    # --- bundles ------------------------------------------------------------------------------

    async def bundles(self, name: str) -> list[int]:
        """Return the boundaries of a namespace's bundles. Raises NamespaceNotFound."""
        record = await self.record(name)
        local = await self.local_record(name)
        count = self._config.defaultNumberOfNamespaceBundles
        return boundaries_of(bundles_of(record, local, count))

    async def boundaries(self, name: str) -> list[int]:
        """Return what `bundles` returns, from memory while the record does not change. The caller
        must not change it. As in Pulsar, the first call stores the bundles in the record of this
        cluster, so that a change of the settings does not move topics.

        Raises NamespaceNotFound.
        """
        path = paths.local_policies(name)
        value = await self._cache.get(path)
        known = self._boundaries.get(name)
        if known is not None and known[0] is value:
            return known[1]
        fields = {} if value is None else fields_of(path, value)
        if value is None or not fields.get("bundles"):
            boundaries = await self.bundles(name)

            def add(fields: Fields) -> None:
                fields.setdefault("migrated", False)
                if not fields.get("bundles"):
                    fields["bundles"] = data_of(boundaries)

            if value is not None:
                await change_record(self._store, self._cache, path, add)
            else:
                record: Fields = {}
                add(record)
                await create_record(self._store, self._cache, path, record)
            return boundaries
        boundaries = boundaries_of(fields["bundles"])
        self._boundaries[name] = value, boundaries
        if len(self._boundaries) > BOUNDARIES_MAX:
            del self._boundaries[next(iter(self._boundaries))]
        return boundaries

    async def close_bundle(
        self, name: str, bundle: Bundle, stays: Callable[[TopicName], bool]
    ) -> list[Topic]:
        """Close the topics of a bundle that are open or are being opened, except those for which
        `stays` returns True. Failures are logged, and after `namespaceBundleUnloadingTimeoutMs` the
        remaining topics are left to close later.

        Return the topics, whose clients the caller notifies (Topic.send_notices).
        """
        opening = self._topics.loader.opening_in(name)
        found = {*self._topics.registry.in_namespace(name), *opening}
        moving: list[Topic] = []
        inside = [each for each in await _inside(list(found), bundle) if not stays(each)]
        closing = asyncio.ensure_future(self._close_topics(inside, moving))
        timeout_s = self._config.namespaceBundleUnloadingTimeoutMs / 1000
        if not (await asyncio.wait([closing], timeout=timeout_s))[0]:
            log.warning("a bundle is given up although topics of it are still being closed",
                        namespace=name, bundle=str(bundle))  # fmt: skip
        await self._unload_coordinators(name, lambda topic: topic in bundle and not stays(topic))
        return moving

    async def _unload_coordinators(self, name: str, is_inside: Callable[[TopicName], bool]) -> None:
        if name == SYSTEM_NAMESPACE and self.unload_coordinators is not None:
            await self.unload_coordinators(is_inside)

    async def _close_topics(self, topics: list[TopicName], moving: list[Topic]) -> None:
        async def close(topic: TopicName) -> None:
            try:
                await self._topics.deletion.unload(topic, moving)
            except PulsarError as error:
                log.warning("a topic was not closed cleanly", topic=topic, error=error)

        await for_each(topics, close)

    async def bundle_topics(self, name: str, bundle: Bundle) -> list[TopicName]:
        """Return the topics of a bundle, including partitions and system topics."""
        return [
            each
            for domain in DOMAINS
            for each in await _inside(await self.topic_names(name, domain), bundle)
        ]

    async def hashes(self, name: str, bundle: Bundle) -> dict[str, int]:
        """Return the hash of each topic of a bundle."""
        found = {}
        async for each in in_slices(await self.bundle_topics(name, bundle)):
            found[str(each)] = hash_of(each)
        return found

    async def largest_bundle(self, name: str) -> Bundle:
        """Return the bundle with the most topics. Raises NamespaceNotFound."""
        boundaries = await self.bundles(name)
        last = len(boundaries) - 2
        counts = [0] * (last + 1)
        async for at in in_slices((await self.hashes(name, WHOLE)).values()):
            counts[min(bisect_right(boundaries, at) - 1, last)] += 1
        index = counts.index(max(counts))
        return Bundle(boundaries[index], boundaries[index + 1])

    async def split_bundle(self, name: str, bundle: Bundle, positions: list[int]) -> None:
        """Split a bundle at the given positions. The division is stored in this cluster's record
        only.

        Raises NamespaceNotFound, BundlesLimitReached, and ConcurrentModification if the bundle does
        not exist any more.
        """
        async with self.creation_lock:
            await self._topics.policies.of_namespace(NamespaceName.get(name))
            for _ in range(SPLITS_MAX):
                if await self._store_split(name, bundle, positions):
                    log.info("a bundle was split", namespace=name, bundle=str(bundle))
                    return
                await asyncio.sleep(SPLIT_RETRY_S)
        raise ConcurrentModification("Concurrent modification")

    async def _store_split(self, name: str, bundle: Bundle, positions: list[int]) -> bool:
        """Store a split; return False if another broker changes the record at the same time."""
        path = paths.local_policies(name)
        before = await self.bundles(name)
        found = await self._store.get(path)
        fields = {} if found is None else fields_of(path, found.value)
        if fields.get("bundles"):
            before = boundaries_of(fields["bundles"])
        if not {bundle.lower, bundle.upper} <= set(before):
            raise ConcurrentModification("Concurrent modification")
        boundaries = sorted({*before, *positions})
        if len(boundaries) - 1 > BUNDLES_MAX:
            raise BundlesLimitReached(f"A namespace has at most {BUNDLES_MAX} bundles.")
        whole = {"migrated": False} | fields | {"bundles": data_of(boundaries)}
        version = MUST_NOT_EXIST if found is None else found.version
        try:
            await self._store.put(path, to_json(whole), version)
        except BadVersion:
            return False
        finally:
            self._cache.forget(path)
        return True

    async def delete_bundle(self, name: str, bundle: Bundle, force: bool) -> None:
        """Delete the topics of a bundle, with force. The bundle itself remains, and topics can be
        created in it.

        Raises NamespaceNotFound, BundleNotEmpty without force, and the errors that prevent the
        deletion of a topic.
        """
        await self.record(name)
        # System topics with the policies of topics belong to the namespace, whatever their bundle.
        topics = await self.bundle_topics(name, bundle)
        if not force and not all(each.is_system for each in topics):
            raise BundleNotEmpty("Cannot delete non empty bundle")
        found = (each for each in topics if not each.is_system)
        await for_each(found, lambda topic: self._topics.deletion.delete_by_name(topic, force=True))


async def _inside(names: list[TopicName], bundle: Bundle) -> list[TopicName]:
    """Return the topics that are in a bundle."""
    if bundle == WHOLE:
        return names
    found = []
    async for each in in_slices(names):
        if each in bundle:
            found.append(each)
    return found
