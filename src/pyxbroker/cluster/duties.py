"""The duties that one broker of a cluster has for all: periodic work on what no broker has open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise

from pyxbroker.base.bundles import Bundle
from pyxbroker.cluster.election import Election
from pyxbroker.cluster.ownership import BundleName, BundleOwnership
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore

Boundaries = Callable[[str], Awaitable[list[int]]]


class Duties:
    """The duties of one broker. Two brokers may have the same one for a moment, so that it must be
    safe to do it twice.
    """

    def __init__(
        self,
        store: MetadataStore,
        boundaries: Boundaries,
        owned: BundleOwnership,
        election: Election,
    ) -> None:
        self._store = store
        self._boundaries = boundaries
        self._owned = owned
        self._election = election

    async def collect_garbage(self, collect: Callable[[], Awaitable[None]]) -> None:
        """Collect the garbage of the cluster if this broker is the leader."""
        if self._election.is_leader:
            await collect()

    async def bundles(self, namespace: str) -> tuple[Bundle, ...]:
        """Return the bundles whose closed topics this broker checks, in order: its own, and those
        without an owner if it is the leader. Raises MetadataError.
        """
        ranges = [Bundle(*each) for each in pairwise(await self._boundaries(namespace))]
        owned = {each for each in ranges if self._owned.is_owned(BundleName(namespace, str(each)))}
        if not self._election.is_leader:
            return tuple(sorted(owned))
        owners = set(await self._store.children(paths.bundle_owners(namespace)))
        return tuple(each for each in ranges if each in owned or str(each) not in owners)
