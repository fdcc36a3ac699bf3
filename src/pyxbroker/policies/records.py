"""Records of JSON in metadata are read, changed and written back: all of it in one function.

A change is written only over the version that was read; another broker that comes in between costs
another round. Those of one process take turns.
What we do not know of a record, as another version of Pulsar's broker may have written it, is kept.
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

DELETED = "deleted"  # in the record of a namespace: it goes, with all that is in it
ROUNDS_MAX = 100  # the change of another broker is written in each of them

Fields = dict[str, Any]
Change = Callable[[Fields], None]
"""Changes the fields in place. It is called again with newer ones when somebody was faster; what it
raises is raised, and nothing is written.
"""

log = get_logger("pyxbroker.policies")


async def change_namespace(
    store: MetadataStore, cache: MetadataCache, name: str, change: Change
) -> Fields:
    """Changes a namespace's record, Pulsar's Policies; the fields as they were written.

    Raises NamespaceNotFound, ConcurrentModification, and what change_record does.
    """
    fields = await change_record(store, cache, paths.namespace_policies(name), change)
    if fields is None:
        raise NamespaceNotFound(f"Namespace {name} does not exist.")
    return fields


async def create_record(
    store: MetadataStore, cache: MetadataCache, path: str, fields: Fields
) -> bool:
    """Makes a record; False when there is one. Raises MetadataError."""
    try:
        await store.put(path, to_json(fields), MUST_NOT_EXIST)
    except BadVersion:
        return False
    finally:
        cache.forget(path)
    return True


async def delete_record(store: MetadataStore, cache: MetadataCache, path: str) -> bool:
    """Deletes a record, or a node that is above some; False when there is none. Raises NotEmpty,
    MetadataError.
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
    """Changes a record; None when there is none. Nobody may change what is returned.

    Raises ConcurrentModification when others are faster again and again, MetadataStoreError for a
    record that cannot be read, MetadataError.
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
    """Writes what becomes of a record, or of None where there is none, and returns it: within a
    turn of the record. None is not written. A cache learns of it, also when nobody knows whether it
    was written.

    Raises what `changed` does, and change_record.
    """
    slices = Slices()  # to read, to change and to write a large record takes some milliseconds each
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
    """The fields of a record, which are not to be changed; None when there is none. Raises
    MetadataStoreError, MetadataError.
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
    """The fields of a record; none of an empty one. Raises MetadataStoreError."""
    if not value:
        return {}
    try:
        return parse(value)
    except ValueError as error:
        log.warning("a record in metadata cannot be read", path=path, error=error)
        raise MetadataStoreError("The record in metadata cannot be read.") from error
