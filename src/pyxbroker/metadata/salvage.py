"""Reconstruction of a damaged store from its database and from its copies and change logs.

The two sources are merged path by path. The database counts as far as it is readable, since it has
every acknowledged transaction. The rest comes from copies and change logs. A node that neither
source determines becomes a damaged node: it exists, and reading it fails with the reason.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from pyxbroker.metadata.change_log import COUNTER, DAMAGED, DELETED, NODE, Change
from pyxbroker.metadata.copies import GONE, Recorded, State
from pyxbroker.metadata.damage import BadRow, Rows
from pyxbroker.metadata.database import root
from pyxbroker.metadata.store import CorruptStore

NAMED_MAX = 10


@dataclass
class Found:
    """The readable content of a database."""

    state: State = field(default_factory=State)
    bad: list[BadRow] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass
class Merged:
    """The merged state, the paths that were repaired, and those that are lost."""

    state: State
    repaired: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Describe the result as a part of a sentence."""
        parts = []
        if self.repaired:
            parts.append(f"{_named(self.repaired)} came from the copies and change logs")
        if self.lost:
            parts.append(f"{_named(self.lost)} could not be recovered and will be refused")
        return "; ".join(parts) or "nothing is lost"


def read_rows(database: sqlite3.Connection, database_format: int) -> Found:
    """Read every readable row. Raises sqlite3.Error if the disk fails."""
    rows = Rows(database, database_format)
    found = Found(bad=rows.bad, errors=rows.errors)
    found.state.apply(rows.good())
    return found


def merge(path: Path, found: Found | None, recorded: Recorded, is_behind: bool) -> Merged:
    """Merge both sources. `is_behind`: the database lacks acknowledged transactions.

    Raises CorruptStore if neither source suffices.
    """
    if found is None:
        if not recorded.is_complete:
            raise CorruptStore(
                f"the metadata file {path} is damaged and cannot be read, and so are its copies and"
                f" change logs; `pyxbroker metadata restore` uses the newest copy that is intact"
            )
        return Merged(_with_root(recorded.state), repaired=_live(recorded.state))
    if found.errors and not recorded.is_complete:
        raise CorruptStore(
            f"the metadata file {path} is damaged ({found.errors[0]}), and its copies and change"
            f" logs are incomplete; `pyxbroker metadata repair` retains what is readable"
        )
    if found.bad and not recorded.is_complete and not (is_behind or found.errors):
        return merge_incomplete(found, recorded)
    if is_behind and not recorded.is_complete:
        raise CorruptStore(
            f"the log of the metadata file {path} is damaged or missing, and its copies and change"
            f" logs are incomplete; `pyxbroker metadata repair` retains what is readable"
        )
    merged = Merged(State())
    # Also for bad rows: if a name is damaged, only the records identify the node.
    if found.errors or found.bad or is_behind:
        merged.state.apply(recorded.state.nodes.values())
        merged.state.apply(recorded.state.counters.values())
    merged.state.apply(found.state.nodes.values())
    merged.state.apply(_counters(found.state))
    if found.errors or found.bad or is_behind:
        merged.repaired = _newer(merged.state, found.state)
    for row in found.bad:
        _repair(row, merged, recorded)
    _with_root(merged.state)
    return merged


def merge_incomplete(found: Found | None, recorded: Recorded) -> Merged:
    """Merge without complete records: retain every intact row.

    Nodes that only the records have become damaged nodes: they may have changed since, or belong to
    the damaged rows.
    """
    if found is None:
        found = Found()
    merged = Merged(State())
    merged.state.apply(found.state.nodes.values())
    merged.state.apply(_counters(found.state))
    for path, change in recorded.state.nodes.items():
        if path not in merged.state.nodes and change.kind == NODE:
            sentence = "the metadata was damaged, and its copies may be older than it was"
            merged.state.nodes[path] = _damaged(path, change.transaction, sentence)
            merged.lost.append(path)
    merged.state.apply(_counters(recorded.state))
    for row in found.bad:
        _repair(row, merged, recorded)
    _with_root(merged.state)
    return merged


def newest_of(row: BadRow, recorded: Recorded) -> Change | None:
    """Return the record that equals a damaged row before its damage, or None if it is uncertain.

    Complete records have the newest state of each node. Otherwise the record must have the version
    and the transaction that are still readable in the row.
    """
    change = recorded.state.nodes.get(row.path)
    if change is None or change.kind != NODE:
        return None
    if recorded.is_complete or (change.version, change.transaction) == row[1:3]:
        return change
    return None


def _repair(row: BadRow, merged: Merged, recorded: Recorded) -> None:
    nodes, counters = merged.state.nodes, merged.state.counters
    path, _, suffix = row.path.partition(" (its ")
    if suffix == "deletion)":
        deletion = recorded.state.nodes.get(path)
        if deletion is not None and deletion.kind == DELETED:
            nodes.setdefault(path, deletion)
        return
    if suffix == "counter)":
        counter = recorded.state.counters.get(path)
        if counter is not None and counter.kind == COUNTER:
            counters[path] = counter
            merged.repaired.append(row.path)
        else:
            merged.lost.append(row.path)
        return
    change = newest_of(row, recorded)
    if change is not None:
        nodes[path] = change
        if path not in merged.repaired:
            merged.repaired.append(path)
        return
    other = nodes.get(path)
    if other is not None and other.kind == NODE:
        return  # A damaged copy of a page: another row of the node is intact.
    if recorded.is_complete:
        return  # The name was damaged: the records have the node under its correct name.
    if "\ufffd" in path:
        merged.lost.append(path)  # Not even its name is readable.
        return
    if path in merged.lost:
        merged.lost.remove(path)
    sentence = row.sentence or "its row in the database was damaged, and there was no other"
    nodes[path] = _damaged(path, 0, sentence)
    merged.lost.append(path)


def _damaged(path: str, transaction: int, sentence: str) -> Change:
    return Change(DAMAGED, path, transaction, 0, 0, 0, sentence.encode())


def _counters(state: State) -> list[Change]:
    return [change for change in state.counters.values() if change.kind == COUNTER]


def _live(state: State) -> list[str]:
    return [path for path, change in state.nodes.items() if change.kind == NODE]


def _newer(merged: State, found: State) -> list[str]:
    """Return the paths whose newest change was not in the database."""
    return [
        path
        for path, change in merged.nodes.items()
        if (before := found.nodes.get(path)) is None or before.transaction < change.transaction
        if before is not None or change.kind not in GONE
    ]


def _with_root(state: State) -> State:
    if "/" not in state.nodes:
        state.nodes["/"] = root(0)
    return state


def _named(paths: list[str]) -> str:
    """Return a list of paths for a message, with at most NAMED_MAX names."""
    if len(paths) <= NAMED_MAX:
        return ", ".join(paths)
    return f"{', '.join(paths[:NAMED_MAX])} and {len(paths) - NAMED_MAX} more"
