"""The assembly of chunked messages, which are stored as several entries.

A message belongs to the task whose range contains its last chunk, wherever the other chunks are.
Chunks wait in memory, which is limited. If chunks were evicted, or precede the range, the first
chunk is located and all chunks are read again from there once the last one arrives. The entries
before a range are scanned at most once.
"""

from __future__ import annotations

from contextlib import closing
from hashlib import blake2b
from typing import Any, NamedTuple

from pyxbroker.entry_columns import UNPACKED_BYTES_MAX, Damaged
from pyxbroker.spark.broker_connection import Cluster
from pyxbroker.spark.entry_scan import EntryScan, is_encrypted
from pyxbroker.spark.positions import BEGINNING, Position

WAITING_BYTES_MAX = 256 << 20
"""The limit of all chunks that wait for their last one."""
CHUNK_BYTES = 200
"""The approximate memory of a chunk in addition to its payload."""
KNOWN_MAX = 100_000
"""The limit of messages whose first chunk, or whose end, is remembered."""


class Whole(NamedTuple):
    """A complete chunked message."""

    payload: bytes
    """Empty for an encrypted message, whose chunks are encrypted separately."""
    first: Position
    """The position of its first chunk."""


class MissingChunks(Exception):
    """Raised when the last chunk of a message arrives and other chunks do not exist."""


class ChunkedMessages:
    """The chunked messages of a range."""

    def __init__(self, cluster: Cluster, topic: str, begin: Position) -> None:
        self._waiting = Chunks()
        self._beginnings = Beginnings(cluster, topic, begin)

    def add(self, position: Position, metadata: Any, payload: bytes | memoryview) -> Whole | None:
        """Add the next chunk. Return the message if this was its last chunk.

                A chunk whose message could not be looked up may be added again.
        Raises Damaged, MissingChunks, NotReachable.
        """
        if not 0 <= metadata.chunk_id < metadata.num_chunks_from_msg:
            raise Damaged(f"it is chunk {metadata.chunk_id} of {metadata.num_chunks_from_msg}")
        self._beginnings.see(position, metadata)
        found = self._waiting.add(metadata, kept_of(metadata, payload))
        if not is_last(metadata):
            return None
        begun = self._beginnings.of(metadata)
        if begun is _ENDED:
            return None  # a producer without a receipt has sent it twice
        if found is None and begun is not None and begun.next != _HOLE:
            found = self._beginnings.read(metadata, begun.first, position)
        self._beginnings.end(metadata)
        if found is None or begun is None:
            raise MissingChunks
        return Whole(found, begun.first)


class Chunks:
    """The chunks of incomplete messages. The oldest message is evicted first."""

    def __init__(self) -> None:
        self._parts: dict[bytes, list[bytes]] = {}
        self._bytes = 0

    def add(self, metadata: Any, payload: bytes) -> bytes | None:
        """Add a chunk. Return the whole payload if this was the last one and all are in memory."""
        name = name_of(metadata)
        if metadata.chunk_id == 0:
            self._drop(name)  # a producer of that name has started the message again
            self._parts[name] = []
        parts = self._parts.get(name)
        if parts is None or metadata.chunk_id < len(parts):
            return None  # earlier chunks are not in memory, or the chunk is a duplicate
        if metadata.chunk_id > len(parts):
            self._drop(name)
            return None
        parts.append(payload)
        self._bytes += len(payload) + CHUNK_BYTES
        if not is_last(metadata):
            while self._bytes > WAITING_BYTES_MAX:
                self._drop(next(iter(self._parts)))
            return None
        whole = b"".join(parts)
        self._drop(name)
        return whole

    def _drop(self, name: bytes) -> None:
        if (parts := self._parts.pop(name, None)) is not None:
            self._bytes -= sum(map(len, parts)) + CHUNK_BYTES * len(parts)


class _Begun(NamedTuple):
    """A message whose first chunk was seen, and the number of the next chunk that is expected."""

    first: Position
    next: int


_UNKNOWN, _HOLE = -1, -2
"""Instead of the next chunk: not all entries were inspected; a chunk is missing."""
_ENDED = _Begun(BEGINNING, _UNKNOWN)
"""A message whose last chunk was seen."""


class Beginnings:
    """The first chunks of the messages that end in a range."""

    def __init__(self, cluster: Cluster, topic: str, begin: Position) -> None:
        self._cluster = cluster
        self._topic = topic
        self._known: dict[bytes, _Begun] = {}
        self._reached = begin  # all entries after it are known

    def see(self, position: Position, metadata: Any) -> None:
        """Note a chunk of the range."""
        name = name_of(metadata)
        if metadata.chunk_id == 0:
            _note(self._known, name, _Begun(position, 1))
        elif (begun := self._known.get(name)) is not None and 0 < begun.next <= metadata.chunk_id:
            is_next = metadata.chunk_id == begun.next
            self._known[name] = begun._replace(next=begun.next + 1 if is_next else _HOLE)

    def end(self, metadata: Any) -> None:
        """Note that the last chunk of a message was handled."""
        _note(self._known, name_of(metadata), _ENDED)

    def of(self, metadata: Any) -> _Begun | None:
        """Return the first chunk of the message whose last chunk has this metadata.

        _ENDED: the message was complete before. None: it has no first chunk. Raises NotReachable,
        Damaged.
        """
        name = name_of(metadata)
        if name not in self._known and self._reached != BEGINNING:
            # All chunks of a message have one publish time, which a broker finds by bisection.
            self._look_back(
                self._cluster.ask(
                    self._topic,
                    lambda broker: broker.before_time(self._topic, metadata.publish_time),
                )
            )
        if name not in self._known:
            self._look_back(BEGINNING)
        return self._known.get(name)

    def _look_back(self, to: Position) -> None:
        """Scan the entries between a position and those that are known."""
        if to.key >= self._reached.key:
            return
        found: dict[bytes, _Begun] = {}
        with closing(EntryScan(self._cluster, self._topic, to.entry_behind())) as scan:
            for entry in scan.until(self._reached):
                if entry.is_chunk and entry.metadata.chunk_id == 0:
                    _note(found, name_of(entry.metadata), _Begun(entry.position, _UNKNOWN))
                elif entry.is_chunk and is_last(entry.metadata):
                    _note(found, name_of(entry.metadata), _ENDED)
        # Uuids can be reused: the newer message wins.
        for name, begun in self._known.items():
            _note(found, name, begun)
        self._known, self._reached = found, to

    def read(self, metadata: Any, first: Position, last: Position) -> bytes | None:
        """Read the chunks of a message again. Return its payload, or None if a chunk is missing.
        Raises Damaged, NotReachable.
        """
        name = name_of(metadata)
        parts: list[bytes] = []
        size = 0
        with closing(EntryScan(self._cluster, self._topic, first)) as scan:
            for entry in scan.until(last):
                is_one = entry.is_chunk and name_of(entry.metadata) == name
                if not is_one or entry.metadata.chunk_id < len(parts):
                    continue
                if entry.metadata.chunk_id > len(parts):
                    return None
                parts.append(kept_of(entry.metadata, entry.payload))
                size += len(parts[-1])
                if size > UNPACKED_BYTES_MAX:
                    raise Damaged(f"the chunks of its message have more than {size} bytes")
                if entry.position == last:
                    return b"".join(parts)
        return None


def name_of(metadata: Any) -> bytes:
    """Return a digest of a chunked message's uuid, which may be of any length."""
    kind = b"encrypted" if is_encrypted(metadata) else b"plain"
    uuid = metadata.uuid  # bytes if it is not UTF-8
    data = uuid if isinstance(uuid, bytes) else uuid.encode()
    return blake2b(data, digest_size=16, person=kind).digest()


def kept_of(metadata: Any, payload: bytes | memoryview) -> bytes:
    """Return the part of a chunk's payload that is kept; see Whole."""
    return b"" if is_encrypted(metadata) else bytes(payload)


def is_last(metadata: Any) -> bool:
    return bool(metadata.chunk_id == metadata.num_chunks_from_msg - 1)


def _note(known: dict[bytes, _Begun], name: bytes, begun: _Begun) -> None:
    """Remember a message as the newest one, and evict the oldest if there are too many."""
    known.pop(name, None)
    known[name] = begun
    if len(known) > KNOWN_MAX:
        del known[next(iter(known))]
