"""Records of an operator's that are kept for the whole cluster: JSON objects at nodes of metadata,
where Pulsar has them. Nothing goes by what most of them say: there is one broker with one bookie.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyxbroker.base.compact_json import to_json
from pyxbroker.metadata.protobuf_records import MalformedRecord
from pyxbroker.metadata.store import MUST_NOT_EXIST, BadVersion, MetadataError, MetadataStore
from pyxbroker.metadata.turns import Turns

TRIES_MAX = 10  # of a change, while other brokers change something as well

Fields = dict[str, Any]


class KeptRecords:
    """Those of one metadata store. Changes of one record in this process take turns."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._changing = Turns[str](store)

    async def read(self, path: str) -> Fields | None:
        """A record; None when there is none. Raises MetadataError."""
        return (await self._read(path))[0]

    async def change(self, path: str, changed: Callable[[Fields], Fields]) -> Fields:
        """Writes what becomes of a record, of {} when there is none, and returns it. Raises what
        changed does, and MetadataError.
        """
        async with self._changing.turn(path):
            for _ in range(TRIES_MAX):
                before, version = await self._read(path)
                after = changed(before or {})
                try:
                    await self._store.put(path, to_json(after), version)
                    return after
                except BadVersion:
                    continue
        raise MetadataError("The record is being changed by others; try again.")

    async def _read(self, path: str) -> tuple[Fields | None, int]:
        found = await self._store.get(path)
        if found is None:
            return None, MUST_NOT_EXIST
        try:
            fields = json.loads(found.value)
        except (ValueError, RecursionError) as error:
            raise MalformedRecord(f"{path} is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise MalformedRecord(f"{path} is {type(fields).__name__}, not an object")
        return fields, found.version
