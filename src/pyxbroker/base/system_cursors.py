"""Names of the broker's own cursors, which have no consumers."""

from __future__ import annotations

COMPACTION = "__compaction"
DEDUPLICATION_CURSOR = "pulsar.dedup"
SYSTEM_CURSORS = frozenset({COMPACTION, DEDUPLICATION_CURSOR})
REPLICATOR_PREFIX = "pulsar.repl"


def is_system_cursor(name: str) -> bool:
    """Return True if a cursor belongs to the broker itself."""
    return name in SYSTEM_CURSORS or name.startswith(REPLICATOR_PREFIX)
