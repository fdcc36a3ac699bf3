"""The metadata of a topic's managed ledger and its cursors, loaded or not: Pulsar's
ManagedLedgerInfo.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyxbroker.base.errors import TopicNotFound
from pyxbroker.base.slices import Slices
from pyxbroker.base.times import iso_ms
from pyxbroker.base.url_encoding import decode
from pyxbroker.metadata import paths
from pyxbroker.mledger import records

if TYPE_CHECKING:
    from pyxbroker.base.topic_name import TopicName
    from pyxbroker.metadata.store import GetResult, MetadataStore

RANGES_MAX = 1_000  # listed per cursor
NODES_CONCURRENT = 64  # nodes read concurrently


async def read_info(store: MetadataStore, name: TopicName) -> dict[str, Any]:
    """Read the metadata of a topic's managed ledger. Raises TopicNotFound, MetadataError."""
    ledger = name.managed_ledger_name
    path = paths.managed_ledger(ledger)
    found = await store.get(path)
    if found is None:
        raise TopicNotFound(f"Topic {name} not found")
    info = records.decode_managed_ledger_info(found.value)
    slices = Slices()
    answer = _head(found)
    ledgers = answer["ledgers"] = []
    for each in info.ledgerInfo:
        ledgers.append(_ledger(each))
        await slices.pause()
    if info.HasField("terminatedPosition"):
        answer["terminatedPosition"] = _position(info.terminatedPosition)
    cursors: dict[str, Any] = {}
    nodes = sorted(await store.children(path))
    for at in range(0, len(nodes), NODES_CONCURRENT):
        some = nodes[at : at + NODES_CONCURRENT]
        values = await asyncio.gather(*(store.get(f"{path}/{node}") for node in some))
        for node, value in zip(some, values, strict=True):
            if value is not None:
                cursors[decode(node)] = await _cursor(value, slices)
                await asyncio.sleep(0)
    answer["cursors"] = cursors
    if info.properties:
        pairs = ((each.key, each.value) for each in info.properties)
        answer["properties"] = await _properties(pairs, slices)
    return answer


async def _properties(pairs: Iterable[tuple[str, Any]], slices: Slices) -> dict[str, Any]:
    """Convert properties in steps: a record of some MiB can have 100,000 of them."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        found[name] = value
        await slices.pause()
    return found


def _head(found: GetResult) -> dict[str, Any]:
    return {
        "version": found.version,
        "creationDate": iso_ms(found.created_ms),
        "modificationDate": iso_ms(found.modified_ms),
    }


def _ledger(info: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {"ledgerId": info.ledgerId}
    for name in ("entries", "size", "timestamp"):
        if info.HasField(name):
            answer[name] = getattr(info, name)
    answer["isOffloaded"] = False
    return answer


async def _cursor(found: GetResult, slices: Slices) -> dict[str, Any]:
    info = records.decode_managed_cursor_info(found.value)
    answer = _head(found)
    answer["cursorsLedgerId"] = info.cursorsLedgerId
    if info.HasField("markDeleteLedgerId"):
        answer["markDelete"] = {
            "ledgerId": info.markDeleteLedgerId,
            "entryId": info.markDeleteEntryId,
        }
    if info.individualDeletedMessages:
        answer["individualDeletedMessages"] = [
            {"from": _position(each.lowerEndpoint), "to": _position(each.upperEndpoint)}
            for each in info.individualDeletedMessages[:RANGES_MAX]
        ]
    if info.properties:
        answer["properties"] = await _properties(_named(info.properties), slices)
    if info.cursorProperties:
        answer["cursorProperties"] = await _properties(_named(info.cursorProperties), slices)
    return answer


def _named(properties: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    return ((each.name, each.value) for each in properties)


def _position(position: Any) -> dict[str, int]:
    return {"ledgerId": position.ledgerId, "entryId": position.entryId}
