"""Resource groups: each is a record, Pulsar's ResourceGroup at /admin/resourcegroups/<name>.

A namespace names its group. The rates of a group are stored for brokers that apply them. This
broker has limits for topics and subscriptions, but none across namespaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.base.compact_json import to_json
from pyxbroker.base.errors import (
    NamespaceNotFound,
    ResourceGroupInUse,
    ResourceGroupNotFound,
    ResourceGroupsLimitReached,
)
from pyxbroker.base.slices import in_slices
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MUST_NOT_EXIST, MetadataStore, NotFound
from pyxbroker.metadata.turns import Turns
from pyxbroker.policies.records import Fields, change_record, fields_of

if TYPE_CHECKING:
    from pyxbroker.broker.namespaces import Namespaces
    from pyxbroker.broker.tenants import Tenants
    from pyxbroker.metadata.cache import MetadataCache

GROUPS_MAX = 1_000
GROUP = "resource_group_name"  # a field of a namespace's record
_GROUP = GROUP.encode()


class ResourceGroups:
    """The resource groups of this instance. Mirrors ResourceGroupsBase."""

    def __init__(
        self, store: MetadataStore, cache: MetadataCache, tenants: Tenants, namespaces: Namespaces
    ) -> None:
        self._store = store
        self._cache = cache
        self._tenants = tenants
        self._namespaces = namespaces
        # No namespace can join a group while the group is deleted.
        self._turns = Turns[None](store)

    async def names(self) -> list[str]:
        return await self._store.children(paths.RESOURCE_GROUPS)

    async def record(self, name: str) -> Fields:
        """Return the fields of a group's record. Raises ResourceGroupNotFound."""
        path = paths.resource_group(name)
        found = await self._store.get(path) if name in await self.names() else None
        if found is None:
            raise ResourceGroupNotFound("ResourceGroup does not exist")
        return fields_of(path, found.value)

    async def put(self, name: str, fields: Fields, new: Fields) -> None:
        """Change fields of a group. A group that does not exist is created, with `new` as its
        defaults.

        Raises ResourceGroupsLimitReached, ConcurrentModification.
        """
        path = paths.resource_group(name)
        async with self._turns.turn(None):
            names = await self.names()
            if name in names:
                await change_record(
                    self._store, self._cache, path, lambda record: record.update(fields)
                )
                return
            if len(names) >= GROUPS_MAX:
                raise ResourceGroupsLimitReached(f"There are {GROUPS_MAX} resource groups already.")
            try:
                await self._store.put(path, to_json(new | fields), MUST_NOT_EXIST)
            finally:
                self._cache.forget(path)

    async def delete(self, name: str) -> None:
        """Delete a group. Raises ResourceGroupNotFound, ResourceGroupInUse if a namespace is in
        it.
        """
        async with self._turns.turn(None):
            await self.record(name)
            if await self._is_in_use(name):
                raise ResourceGroupInUse("ResourceGroup is in use")
            path = paths.resource_group(name)
            try:
                await self._store.delete(path)
            except NotFound as error:
                raise ResourceGroupNotFound("ResourceGroup does not exist") from error
            finally:
                self._cache.forget(path)

    async def _is_in_use(self, name: str) -> bool:
        """Return True if a namespace is in the group. There may be thousands of namespaces, and few
        in any group, so only the records of those are decoded.
        """
        for tenant in await self._tenants.names():
            async for namespace in in_slices(await self._namespaces.names(tenant)):
                path = paths.namespace_policies(namespace)
                value = await self._cache.get(path)
                if (
                    value is not None
                    and _GROUP in value
                    and fields_of(path, value).get(GROUP) == name
                ):
                    return True
        return False

    async def of_namespace(self, namespace: str) -> str | None:
        """Return the group of a namespace; None if the namespace does not exist."""
        try:
            return (await self._namespaces.record(namespace)).get(GROUP)
        except NamespaceNotFound:
            return None

    async def set_of_namespace(self, namespace: str, group: str | None) -> None:
        """Set the group of a namespace, or remove it from its group (None).

        Raises NamespaceNotFound, ResourceGroupNotFound, ConcurrentModification.
        """
        async with self._turns.turn(None):
            if group is not None:
                await self.record(group)

            def change(fields: Fields) -> None:
                if group is None:
                    fields.pop(GROUP, None)
                else:
                    fields[GROUP] = group

            await self._namespaces.change(namespace, change)
