"""The cursors that are the broker's own, by their names: nobody consumes with them."""

from __future__ import annotations

COMPACTION = "__compaction"
DEDUPLICATION_CURSOR = "pulsar.dedup"
SYSTEM_CURSORS = frozenset({COMPACTION, DEDUPLICATION_CURSOR})
REPLICATOR_PREFIX = "pulsar.repl"


def is_system_cursor(name: str) -> bool:
    """Whether a cursor is one of the broker's own."""
    return name in SYSTEM_CURSORS or name.startswith(REPLICATOR_PREFIX)
