"""Positions in topics, and their format in offsets.

A position is the last message that was read; the next message is the one after it. Batch index -1
is the whole entry; entry -1 is before the first entry of a ledger. So a range of messages is
(begin, end], and the end of a range is the begin of the next one, whatever is published in between.

An offset in JSON is an object of topics, with each partition as a topic, with `ledger:entry` or
`ledger:entry:batch`. Users may also write `earliest`, `latest`, and the bytes of a message id as
clients serialize it (MessageIdData), as a list of numbers: so does the JVM connector.

The offset that ends a batch may have suffixes, so that a batch that is planned again is the same,
whatever was published or deleted in the meantime:

- `2:49~100`: the bytes per entry of the ledger, which was open then;
- `2:49@1:-1`: where the topic begins, if the previous offset does not have it;
- `6:9^6:-1`: where the topic continues, if that is not at the previous offset;
- `6:9<2:-1`: where the topic began when the query started to read it from its beginning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyxbroker.spark.errors import WrongOption

EARLIEST = "earliest"
LATEST = "latest"
_WHOLE = (1 << 31) - 1
_ID = re.compile(r"(-?\d+):(-?\d+)(?::(-?\d+))?")
_OF_TOPIC = re.compile(r"([^~@^<]*)(?:~(\d+))?(?:@([^~@^<]*))?(?:\^([^~@^<]*))?(?:<([^~@^<]*))?")


class Position(NamedTuple):
    """A message, or with batch index -1 a whole entry. Compare by `key`."""

    ledger: int
    entry: int
    batch: int = -1

    @property
    def key(self) -> tuple[int, int, int]:
        """A key in the order of messages: a whole entry comes after its last message."""
        return self.ledger, self.entry, self.batch if self.batch >= 0 else _WHOLE

    def __str__(self) -> str:
        text = f"{self.ledger}:{self.entry}"
        return text if self.batch < 0 else f"{text}:{self.batch}"

    def before(self) -> Position:
        """Return the position of a reader whose next message is this one."""
        if self.batch > 0:
            return Position(self.ledger, self.entry, self.batch - 1)
        return Position(self.ledger, max(self.entry - 1, -1))

    def entry_behind(self) -> Position:
        """Return the entry with the next message: this entry if it may have more messages."""
        if self.ledger < 0 or self.batch >= 0:
            return self._replace(batch=-1)
        return Position(self.ledger, self.entry + 1)


BEGINNING = Position(-1, -1)
"""The position before all messages of a topic."""

OffsetRequest = str | Position
"""A requested offset: EARLIEST, LATEST, or a message."""


def position_of(message_id: Any) -> Position:
    """Return the whole entry of a MessageIdData, in which -1 is the largest 64-bit number."""
    ids = [
        each - (1 << 64) if each >> 63 else each
        for each in (message_id.ledgerId, message_id.entryId)
    ]
    return Position(*ids)


def parse(text: str) -> Position:
    """Parse the text of a position. Raises ValueError."""
    found = _ID.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not ledger:entry or ledger:entry:batch")
    ledger, entry, batch = found.groups()
    return Position(int(ledger), int(entry), -1 if batch is None else int(batch))


def parse_offsets(option: str, value: str) -> OffsetRequest | dict[str, OffsetRequest]:
    """Parse the value of startingOffsets or endingOffsets. Topic names are not normalized.
    Raises WrongOption.
    """
    if value.strip().lower() in (EARLIEST, LATEST):
        return value.strip().lower()
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not found:
        raise WrongOption(
            f"{option} is {value!r}: it has to be earliest, latest, or a JSON object of topics with"
            ' message ids, such as {"persistent://public/default/orders": "12:0"}.'
        )
    return {topic: _parse_offset(option, topic, each) for topic, each in found.items()}


def _parse_offset(option: str, topic: str, value: object) -> OffsetRequest:
    try:
        if isinstance(value, str):
            word = value.strip().lower()
            return word if word in (EARLIEST, LATEST) else parse(word)
        if isinstance(value, list):
            return of_bytes(bytes(each & 0xFF for each in value))
        raise ValueError(f"{value!r} is neither a string nor a list of bytes")
    except (TypeError, ValueError) as error:
        raise WrongOption(
            f"{option} has an invalid message id for {topic}: {error}; write ledger:entry,"
            " ledger:entry:batch, earliest, latest, or the bytes of a serialized message id."
        ) from error


def of_bytes(data: bytes) -> Position:
    """Return the position of a serialized message id. Raises ValueError."""
    from google.protobuf.message import DecodeError

    from pyxbroker.proto import PulsarApi as pb

    try:
        found = pb.MessageIdData.FromString(data)
    except DecodeError as error:
        raise ValueError(f"these bytes are not a serialized message id ({error})") from error
    return position_of(found)._replace(batch=found.batch_index)


def write_offset(
    positions: Mapping[str, Position],
    bytes_per_entry: Mapping[str, int] | None = None,
    begins: Mapping[str, Position] | None = None,
    moved: Mapping[str, Position] | None = None,
    origins: Mapping[str, Position] | None = None,
) -> dict[str, str]:
    """Return an offset as Spark stores it.

    bytes_per_entry: averages of open ledgers, which may change. begins: first positions of topics
    that may be new in this offset. moved: positions at which topics of the previous offset
    continue. origins: first positions of topics that the query reads completely.
    """

    def part(sign: str, given: Mapping[str, object] | None, topic: str) -> str:
        return f"{sign}{given[topic]}" if given and topic in given else ""

    return {
        topic: f"{position}{part('~', bytes_per_entry, topic)}"
        f"{part('@', begins, topic)}{part('^', moved, topic)}{part('<', origins, topic)}"
        for topic, position in sorted(positions.items())
    }


def read_offset(offset: Mapping[str, str]) -> dict[str, Position]:
    """Return the positions in an offset."""
    return {topic: parse(_part(text, 1)) for topic, text in offset.items()}


def read_sizes(offset: Mapping[str, str]) -> dict[str, int]:
    """Return the bytes per entry in an offset."""
    return {topic: int(size) for topic, text in offset.items() if (size := _part(text, 2))}


def read_begins(offset: Mapping[str, str]) -> dict[str, Position]:
    """Return the begins in an offset."""
    return {topic: parse(begin) for topic, text in offset.items() if (begin := _part(text, 3))}


def read_moved(offset: Mapping[str, str]) -> dict[str, Position]:
    """Return where topics continue, from an offset."""
    return {topic: parse(at) for topic, text in offset.items() if (at := _part(text, 4))}


def read_origins(offset: Mapping[str, str]) -> dict[str, Position]:
    """Return where topics began that a query reads from their beginning.

    Offsets of queries that began elsewhere, and of older versions, do not have it.
    """
    return {topic: parse(at) for topic, text in offset.items() if (at := _part(text, 5))}


def _part(text: str, number: int) -> str:
    found = _OF_TOPIC.fullmatch(text)
    return (found.group(number) or "") if found is not None else text
