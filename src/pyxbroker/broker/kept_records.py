"""Records of an operator's that are kept for the whole cluster: JSON objects at nodes of metadata,
where Pulsar has them. Nothing goes by what most of them say: there is one broker with one bookie.
"""

from __future__ import annotations

from collections.abc import Callable

from pyxbroker.metadata.store import MetadataStore
from pyxbroker.metadata.turns import Turns
from pyxbroker.policies.records import Fields, fields_of, rewrite


class KeptRecords:
    """Those of one metadata store. Changes of one record in this process take turns.

    Methods raise MetadataStoreError for a record that cannot be read, which is not written over,
    and MetadataError.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._changing = Turns[str](store)

    async def read(self, path: str) -> Fields | None:
        """A record; None when there is none."""
        found = await self._store.get(path)
        return None if found is None else fields_of(path, found.value)

    async def change(self, path: str, changed: Callable[[Fields], Fields]) -> Fields:
        """Writes what becomes of a record, of {} when there is none, and returns it. Raises what
        `changed` does, and ConcurrentModification.
        """
        async with self._changing.turn(path):
            fields = await rewrite(self._store, path, lambda before: changed(before or {}))
        assert fields is not None
        return fields
