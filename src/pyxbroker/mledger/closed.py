"""Managed ledgers that are not open, as read from metadata: their ledgers and their cursors.

Reading them takes over nothing and reads only nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeAlias, TypeVar

from pyxbroker.base.slices import in_slices
from pyxbroker.base.url_encoding import decode
from pyxbroker.entry import Position
from pyxbroker.metadata import paths
from pyxbroker.metadata.protobuf_records import MalformedRecord
from pyxbroker.metadata.store import GetResult, MetadataError, MetadataStore
from pyxbroker.mledger import positions
from pyxbroker.mledger.positions import LedgerRecord

CURSORS_PER_READ = 256  # nodes of cursors per request

Unreadable: TypeAlias = MetadataError | MalformedRecord
Made = TypeVar("Made")


class ClosedCursor(NamedTuple):
    """The minimum position of a cursor; one that was not closed may be further."""

    mark_delete: Position
    properties: dict[str, int]
    last_active_ms: int  # 0: unknown


class ClosedLedger(NamedTuple):
    """A managed ledger that is not open."""

    ledgers: list[LedgerRecord]  # with entries, or not closed
    cursors: dict[str, ClosedCursor]
    modified_ms: int  # when its list of ledgers was last written
    is_terminated: bool = False

    @property
    def is_known(self) -> bool:
        """True if the ends of all ledgers are known; that of an open one is not."""
        return all(each.timestamp_ms for each in self.ledgers)

    @property
    def was_closed(self) -> bool:
        """True if the last owner closed it cleanly. Always False after a termination, which leaves
        no open ledger in any case.
        """
        return self.is_known and not self.is_terminated

    def slowest(self, but: Iterable[str] = ()) -> Position | None:
        """Return the lowest mark-delete position of the other cursors; None if none exists."""
        marks = (each.mark_delete for name, each in self.cursors.items() if name not in but)
        return min(marks, default=None)

    def first_remaining(self, mark: Position) -> LedgerRecord | None:
        """Return the ledger of the first entry after a mark; an open ledger may have entries."""
        for each in self.ledgers:
            if not each.timestamp_ms or (
                each.entries and (each.ledger_id, each.entries - 1) > mark
            ):
                return each
        return None

    def bytes_after(self, mark: Position) -> int:
        """Return the bytes of the entries after a mark, without those of an open ledger."""
        total = 0
        for each in self.ledgers:
            if each.ledger_id > mark.ledger_id:
                total += each.size
            elif each.ledger_id == mark.ledger_id and each.entries:
                total += each.size * max(each.entries - mark.entry_id - 1, 0) // each.entries
        return total


async def read_closed(store: MetadataStore, name: str) -> ClosedLedger | None:
    """Return a managed ledger, or None if it does not exist.

    Raises MetadataError, MalformedRecord.
    """
    [found] = await read_all_closed(store, [name])
    if isinstance(found, Exception):
        raise found
    return found


async def read_all_closed(
    store: MetadataStore, names: Sequence[str]
) -> list[ClosedLedger | Unreadable | None]:
    """Return several managed ledgers, read together, which is much faster than one by one.

    The result has an error in the place of each managed ledger that cannot be read.
    """
    nodes = [paths.managed_ledger(name) for name in names]
    # Both requests make a single round trip to the store.
    lists, cursors = store.get_all(nodes), store.children_all(nodes)
    found: list[ClosedLedger | Unreadable | None] = []
    async for node in in_slices(await lists):
        found.append(_made(node, _closed_ledger))
    of_each = await cursors
    for index, encoded in enumerate(of_each):
        if isinstance(encoded, BaseException) and not isinstance(found[index], Exception):
            found[index] = _trouble(encoded)
    # One topic may have ten thousand cursors, so this is a generator.
    left = (
        (index, name)
        for index, encoded in enumerate(of_each)
        if not isinstance(encoded, BaseException)
        for name in encoded
    )
    ends: dict[int, dict[int, int]] = {}  # last entry by ledger, for each topic
    while some := list(islice(left, CURSORS_PER_READ)):
        asked = store.get_all([f"{nodes[index]}/{name}" for index, name in some])
        async for (index, name), node in in_slices(zip(some, await asked, strict=True)):
            ledger = found[index]
            if isinstance(ledger, ClosedLedger):
                if index not in ends:
                    ends = {index: _ends(ledger)}
                error = _made(node, partial(_add_cursor, ledger, ends[index], decode(name)))
                if error is not None:
                    found[index] = error
    return found


def _made(
    node: GetResult | BaseException | None, make: Callable[[GetResult | None], Made]
) -> Made | Unreadable:
    """Decode a node, or return the error."""
    if isinstance(node, BaseException):
        return _trouble(node)
    try:
        return make(node)
    except MalformedRecord as error:
        return error


def _trouble(error: BaseException) -> Unreadable:
    if not isinstance(error, MetadataError):
        raise error
    return error


def _closed_ledger(found: GetResult | None) -> ClosedLedger | None:
    if found is None:
        return None
    listed, _, terminated = positions.decode_ledger_list(found.value)
    # The last one may have been closed without entries; the next owner drops it.
    ledgers = [each for each in listed if each.entries or not each.timestamp_ms]
    ledgers.sort(key=lambda each: each.ledger_id)
    return ClosedLedger(ledgers, {}, found.modified_ms, terminated is not None)


def _ends(ledger: ClosedLedger) -> dict[int, int]:
    """Return the last entry of each ledger."""
    return {each.ledger_id: each.entries - 1 for each in ledger.ledgers}


def _add_cursor(
    ledger: ClosedLedger, ends: dict[int, int], name: str, found: GetResult | None
) -> None:
    """Add a cursor, unless it was deleted meanwhile."""
    if found is None:
        return
    record = positions.decode_cursor(found.value, ends)
    mark = record.acks.mark_delete
    ledger.cursors[name] = ClosedCursor(mark, record.properties, record.last_active_ms)
