"""Functions that read and change JSON records in metadata.

A change is written only over the version that was read. If another broker has written in between,
the change is applied again to the new version. Changes by one process wait in a queue. Fields that
this broker does not know, for example from another version of Pulsar, are preserved.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyxbroker.base.compact_json import to_json
from pyxbroker.base.errors import ConcurrentModification, MetadataStoreError, NamespaceNotFound
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import Slices
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MUST_NOT_EXIST, BadVersion, MetadataStore, NotFound

if TYPE_CHECKING:
    from pyxbroker.metadata.cache import MetadataCache

DELETED = "deleted"  # set in a namespace's record while the namespace is being deleted
ROUNDS_MAX = 100  # each failed round means that another broker has written the record

Fields = dict[str, Any]
Change = Callable[[Fields], None]
"""Changes the fields in place. It is called again with newer fields after a conflict. An exception
from it is passed on, and nothing is written.
"""

log = get_logger("pyxbroker.policies")


async def change_namespace(
    store: MetadataStore, cache: MetadataCache, name: str, change: Change
) -> Fields:
    """Change a namespace's record, Pulsar's Policies, and return the written fields.

    Raise NamespaceNotFound, and the errors of change_record.
    """
    fields = await change_record(store, cache, paths.namespace_policies(name), change)
    if fields is None:
        raise NamespaceNotFound(f"Namespace {name} does not exist.")
    return fields


async def create_record(
    store: MetadataStore, cache: MetadataCache, path: str, fields: Fields
) -> bool:
    """Create a record. Return False if it exists already. Raise MetadataError."""
    try:
        await store.put(path, to_json(fields), MUST_NOT_EXIST)
    except BadVersion:
        return False
    finally:
        cache.forget(path)
    return True


async def delete_record(store: MetadataStore, cache: MetadataCache, path: str) -> bool:
    """Delete a record or an intermediate node. Return False if it does not exist.

    Raise NotEmpty or MetadataError.
    """
    try:
        await store.delete(path)
    except NotFound:
        return False
    finally:
        cache.forget(path)
    return True


async def change_record(
    store: MetadataStore, cache: MetadataCache, path: str, change: Change
) -> Fields | None:
    """Change a record and return its fields, which the caller must not change.

    Return None if it does not exist. Raise ConcurrentModification after too many conflicts,
    MetadataStoreError if the record is invalid, and MetadataError.
    """

    def changed(fields: Fields | None) -> Fields | None:
        if fields is not None:
            change(fields)
        return fields

    async with cache.turn(path):
        return await rewrite(store, path, changed, cache)


async def rewrite(
    store: MetadataStore,
    path: str,
    changed: Callable[[Fields | None], Fields | None],
    cache: MetadataCache | None = None,
) -> Fields | None:
    """Write and return the result of `changed` for a record, or for None if it does not exist.

    A result of None is not written. The caller holds the turn of the record. The cache is updated
    even if the outcome of the write is unknown. Raise the errors of `changed` and change_record.
    """
    slices = Slices()  # reading, changing and writing a large record each take milliseconds
    for _ in range(ROUNDS_MAX):
        found = await store.get(path)
        await slices.pause()
        before = None if found is None else fields_of(path, found.value)
        await slices.pause()
        fields = changed(before)
        if fields is None:
            return None
        version = MUST_NOT_EXIST if found is None else found.version
        await slices.pause()
        value = to_json(fields)
        await slices.pause()
        try:
            await store.put(path, value, version)
        except BadVersion:
            continue
        finally:
            if cache is not None:
                cache.forget(path)
                cache.note_written(value, fields)
        return fields
    raise ConcurrentModification("Concurrent modification")


async def read_cached(cache: MetadataCache, path: str) -> Fields | None:
    """Return the fields of a record, which the caller must not change, or None.

    Raise MetadataStoreError or MetadataError.
    """
    value = await cache.get(path)
    if value is None:
        return None
    return fields_of(path, value, lambda value: cache.parsed(path, value, decode))


def decode(value: bytes) -> dict[str, Any]:
    """The fields of a record in metadata. Raises ValueError when it is not a JSON object."""
    try:
        fields = json.loads(value)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(fields, dict):
        raise ValueError(f"it is {type(fields).__name__}, not an object")
    return fields


def fields_of(path: str, value: bytes, parse: Callable[[bytes], Fields] = decode) -> Fields:
    """Return the fields of a record; an empty value has none. Raise MetadataStoreError."""
    if not value:
        return {}
    try:
        return parse(value)
    except ValueError as error:
        log.warning("a record in metadata cannot be read", path=path, error=error)
        raise MetadataStoreError("The record in metadata cannot be read.") from error
