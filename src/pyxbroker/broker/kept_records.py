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

TRIES_MAX = 10  # of a change, while others change something as well

Fields = dict[str, Any]


async def read(store: MetadataStore, path: str) -> Fields | None:
    """A record; None when there is none. Raises MetadataError."""
    return (await _read(store, path))[0]


async def change(store: MetadataStore, path: str, changed: Callable[[Fields], Fields]) -> Fields:
    """Writes what becomes of a record, of {} when there is none, and returns it. Raises what
    changed does, and MetadataError.
    """
    for _ in range(TRIES_MAX):
        before, version = await _read(store, path)
        after = changed(before or {})
        try:
            await store.put(path, to_json(after), version)
            return after
        except BadVersion:
            continue
    raise MetadataError("The record is being changed by others; try again.")


async def _read(store: MetadataStore, path: str) -> tuple[Fields | None, int]:
    found = await store.get(path)
    if found is None:
        return None, MUST_NOT_EXIST
    try:
        fields = json.loads(found.value)
    except (ValueError, RecursionError) as error:
        raise MalformedRecord(f"{path} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise MalformedRecord(f"{path} is {type(fields).__name__}, not an object")
    return fields, found.version
