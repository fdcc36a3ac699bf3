"""A reader that returns the entries of a topic one by one, with their metadata.

Payloads are not decoded, so encrypted entries can be inspected. It is slower than
entry_columns.pyx, and used for rare cases: chunks before a range, and entries that the official
client has to decrypt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pyxbroker.client.entries import split_section
from pyxbroker.client.errors import DamagedEntry as DamagedSection
from pyxbroker.entry_columns import Damaged
from pyxbroker.spark.broker_connection import Cluster, NoAnswer, closed_on_error
from pyxbroker.spark.positions import Position

PERMITS_MAX = 1_000
"""The limit of messages that a broker may send in advance."""


class Entry(NamedTuple):
    """An entry: its MessageMetadata, its payload as it is stored, and the section with both."""

    position: Position
    metadata: Any
    payload: memoryview
    section: bytes

    @property
    def is_chunk(self) -> bool:
        return bool(self.metadata.num_chunks_from_msg > 1)

    @property
    def is_encrypted(self) -> bool:
        return is_encrypted(self.metadata)


class EntryScan:
    """A scan of a topic on its own connection. The caller closes it."""

    def __init__(self, cluster: Cluster, topic: str, at: Position) -> None:
        """Open the scan at an entry. Raises PulsarSparkError."""
        self._permits = 0
        self._connection = cluster.connect(topic)
        with closed_on_error(self._connection):
            self._connection.open(topic, at)

    def close(self) -> None:
        self._connection.close()

    def next(self, timeout_s: float | None = None) -> Entry | None:
        """Return the next entry; None: it did not arrive in time, if a timeout is given.

        Raises NotReachable, DamagedEntry.
        """
        if self._permits <= PERMITS_MAX // 2:
            self._connection.flow(PERMITS_MAX - self._permits)
            self._permits = PERMITS_MAX
        try:
            position, section = self._connection.entry(timeout_s)
        except NoAnswer:
            if timeout_s is None:
                raise
            return None
        try:
            metadata, payload = split_section(section)
        except DamagedSection as error:
            self._permits -= 1
            raise DamagedEntry(position, error) from error
        self._permits -= max(metadata.num_messages_in_batch, 1)
        return Entry(position, metadata, payload, section)

    def until(self, last: Position) -> Iterator[Entry]:
        """Return the entries up to and including a position, without damaged ones.

        That entry or a later one has to exist. Raises NotReachable.
        """
        while True:
            try:
                entry = self.next()
            except DamagedEntry as error:
                if error.position.key >= last.key:
                    return
                continue
            if entry is None or entry.position.key > last.key:
                return
            yield entry
            if entry.position.key == last.key:
                return


class DamagedEntry(Damaged):
    """A damaged entry and its position."""

    def __init__(self, position: Position, error: Exception) -> None:
        super().__init__(str(error))
        self.position = position


def is_encrypted(metadata: Any) -> bool:
    return len(metadata.encryption_keys) > 0
