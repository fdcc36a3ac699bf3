"""Messages that came in several entries, put together again.

The message is where its last chunk is. So a task that begins in the midst of one reads back for the
chunks before, and one that ends there leaves those that it has to whoever has the last.
"""

from __future__ import annotations

from typing import Any

from pyxbroker.entry_columns import UNPACKED_BYTES_MAX, Damaged

UNFINISHED_BYTES_MAX = 256 << 20
"""Of all chunks that wait for their last one."""


class Chunks:
    """The chunks of messages that are not whole yet, by the message's uuid."""

    def __init__(self) -> None:
        self._parts: dict[str, list[bytes]] = {}
        self._bytes = 0

    def add(self, metadata: Any, payload: bytes) -> bytes | None:
        """Takes a chunk and its MessageMetadata; the whole payload, when it was the last one.

        Raises Damaged, MissingChunks.
        """
        parts = self._parts.setdefault(metadata.uuid, [])
        if metadata.chunk_id < len(parts):
            return None  # sent again by a producer that had no answer
        if metadata.chunk_id > len(parts):
            self._drop(metadata.uuid)
            raise MissingChunks(metadata)
        parts.append(payload)
        self._bytes += len(payload)
        if len(parts) < metadata.num_chunks_from_msg:
            self._bound()
            return None
        size = sum(map(len, parts))
        if size > UNPACKED_BYTES_MAX:
            raise Damaged(f"{metadata.num_chunks_from_msg} chunks have {size} bytes")
        whole = b"".join(parts)
        self._drop(metadata.uuid)
        return whole

    def forget(self) -> None:
        self._parts.clear()
        self._bytes = 0

    def _drop(self, uuid: str) -> None:
        self._bytes -= sum(map(len, self._parts.pop(uuid)))

    def _bound(self) -> None:
        """Those whose producers went away leave in time, the oldest first."""
        while self._bytes > UNFINISHED_BYTES_MAX and len(self._parts) > 1:
            self._drop(next(iter(self._parts)))


class MissingChunks(Exception):
    """A chunk came whose predecessors were not read."""

    def __init__(self, metadata: Any) -> None:
        super().__init__(metadata.uuid)
        self.chunk_id: int = metadata.chunk_id
