"""Messages that came in several entries, put together again.

The message is where its last chunk is: the task whose range has that one gives it, wherever the
others are. Chunks wait in memory, which is bounded; of what has no place there, and of what lies
before the range, it is known or looked up where the message begins, and its chunks are read from
there when the last one came. All that is before a range is looked through once, at the most.
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
"""Of all chunks that wait for their last one."""
CHUNK_BYTES = 200
"""What a chunk takes beside its payload, about."""
KNOWN_MAX = 100_000
"""Messages of which it is known where they begin, or that they ended."""


class Whole(NamedTuple):
    """A message of which all chunks are there."""

    payload: bytes
    """Nothing, where it is encrypted: each chunk is by itself."""
    first: Position
    """Where its first chunk is."""


class MissingChunks(Exception):
    """The last chunk of a message came, and others are nowhere."""


class ChunkedMessages:
    """The messages in chunks of a range."""

    def __init__(self, cluster: Cluster, topic: str, begin: Position) -> None:
        self._waiting = Chunks()
        self._beginnings = Beginnings(cluster, topic, begin)

    def add(self, position: Position, metadata: Any, payload: bytes | memoryview) -> Whole | None:
        """Takes the next chunk; the message, when it was the last one of it. One that could not be
        looked up may come again.

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
            return None  # sent again by a producer that had no answer
        if found is None and begun is not None and begun.next != _HOLE:
            found = self._beginnings.read(metadata, begun.first, position)
        self._beginnings.end(metadata)
        if found is None or begun is None:
            raise MissingChunks
        return Whole(found, begun.first)


class Chunks:
    """The chunks of messages that are not whole yet. Those whose producers went away leave in time,
    the oldest first.
    """

    def __init__(self) -> None:
        self._parts: dict[bytes, list[bytes]] = {}
        self._bytes = 0

    def add(self, metadata: Any, payload: bytes) -> bytes | None:
        """Takes a chunk; the whole payload, when it was the last one and the others are here."""
        name = name_of(metadata)
        if metadata.chunk_id == 0:
            self._drop(name)  # its producer, or another one of that name, began anew
            self._parts[name] = []
        parts = self._parts.get(name)
        if parts is None or metadata.chunk_id < len(parts):
            return None  # the ones before are not here, or it was sent again
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
    """A message whose first chunk was seen, and the number of the chunk that comes next, if all
    were seen.
    """

    first: Position
    next: int


_UNKNOWN, _HOLE = -1, -2
"""Of the next chunk: not all were looked at; one is missing."""
_ENDED = _Begun(BEGINNING, _UNKNOWN)
"""One whose last chunk was seen."""


class Beginnings:
    """Where messages in chunks begin that end in a range."""

    def __init__(self, cluster: Cluster, topic: str, begin: Position) -> None:
        self._cluster = cluster
        self._topic = topic
        self._known: dict[bytes, _Begun] = {}
        self._reached = begin  # what lies behind it is known

    def see(self, position: Position, metadata: Any) -> None:
        """A chunk of the range came."""
        name = name_of(metadata)
        if metadata.chunk_id == 0:
            _note(self._known, name, _Begun(position, 1))
        elif (begun := self._known.get(name)) is not None and 0 < begun.next <= metadata.chunk_id:
            is_next = metadata.chunk_id == begun.next
            self._known[name] = begun._replace(next=begun.next + 1 if is_next else _HOLE)

    def end(self, metadata: Any) -> None:
        """The last one came."""
        _note(self._known, name_of(metadata), _ENDED)

    def of(self, metadata: Any) -> _Begun | None:
        """Where the message begins whose last chunk that is; _ENDED: it was whole before. None: its
        first chunk is nowhere. Raises NotReachable, Damaged.
        """
        name = name_of(metadata)
        if name not in self._known and self._reached != BEGINNING:
            # Clients give all chunks of a message one time, and a broker finds it by bisection.
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
        """Looks through what is between there and what is known."""
        if to.key >= self._reached.key:
            return
        found: dict[bytes, _Begun] = {}
        with closing(EntryScan(self._cluster, self._topic, to.entry_behind())) as scan:
            for entry in scan.until(self._reached):
                if entry.is_chunk and entry.metadata.chunk_id == 0:
                    _note(found, name_of(entry.metadata), _Begun(entry.position, _UNKNOWN))
                elif entry.is_chunk and is_last(entry.metadata):
                    _note(found, name_of(entry.metadata), _ENDED)
        # What is nearer counts: names are used again.
        for name, begun in self._known.items():
            _note(found, name, begun)
        self._known, self._reached = found, to

    def read(self, metadata: Any, first: Position, last: Position) -> bytes | None:
        """The payload of the message between its first and its last chunk, if it is whole.

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
    """Of a message in chunks, however long its uuid is."""
    kind = b"encrypted" if is_encrypted(metadata) else b"plain"
    uuid = metadata.uuid  # bytes, where it is no UTF-8
    data = uuid if isinstance(uuid, bytes) else uuid.encode()
    return blake2b(data, digest_size=16, person=kind).digest()


def kept_of(metadata: Any, payload: bytes | memoryview) -> bytes:
    """What is kept of a chunk's payload; see Whole."""
    return b"" if is_encrypted(metadata) else bytes(payload)


def is_last(metadata: Any) -> bool:
    return bool(metadata.chunk_id == metadata.num_chunks_from_msg - 1)


def _note(known: dict[bytes, _Begun], name: bytes, begun: _Begun) -> None:
    """The newest last; the oldest leave where there are too many."""
    known.pop(name, None)
    known[name] = begun
    if len(known) > KNOWN_MAX:
        del known[next(iter(known))]
