"""Records that an operator stores for the whole cluster: JSON objects in metadata, at Pulsar's
paths. Most of them have no effect, because there is one broker with one bookie.
"""

from __future__ import annotations

from collections.abc import Callable

from pyxbroker.metadata.store import MetadataStore
from pyxbroker.metadata.turns import Turns
from pyxbroker.policies.records import Fields, fields_of, rewrite


class StoredRecords:
    """The stored records of a metadata store. Changes of one record by this process are serialized.

    Methods raise MetadataError, and MetadataStoreError for an unreadable record, which is not
    overwritten.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._changing = Turns[str](store)

    async def read(self, path: str) -> Fields | None:
        """Return a record, or None."""
        found = await self._store.get(path)
        return None if found is None else fields_of(path, found.value)

    async def change(self, path: str, changed: Callable[[Fields], Fields]) -> Fields:
        """Replace a record by the result of `changed`, which gets {} for a missing record. Return
        the result. Raises the errors of `changed`, and ConcurrentModification.
        """
        async with self._changing.turn(path):
            fields = await rewrite(self._store, path, lambda before: changed(before or {}))
        assert fields is not None
        return fields
