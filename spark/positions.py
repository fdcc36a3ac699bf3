"""Where a reader stands in a topic, and how offsets write that.

A position is the last message that was read: what comes next is what lies behind it. Batch -1 is
the whole entry; entry -1 stands before the first entry of a ledger. So a range of messages is
(begin, end], and the end of one is the begin of the next, whatever is published meanwhile.

As JSON an offset is an object of topics, each partition by itself, with `ledger:entry` or
`ledger:entry:batch`. Users may also write `earliest`, `latest`, and the bytes of a message id as
clients serialize it (MessageIdData), as a list of numbers: so does the JVM connector.

The offset that ends a batch may say more of a topic, so that a batch that is planned again is the
one it was, whatever was published or deleted meanwhile:

- `2:49~100`: how many bytes an entry of the ledger had that was written then;
- `2:49@1:-1`: where the topic begins, if the offset before does not have it;
- `6:9^6:-1`: where the topic goes on, if it is not where the offset before stands;
- `6:9<2:-1`: where the topic began when the query began there, and had read nothing of it.
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
    """A message, or with batch -1 a whole entry. Compare by `key`."""

    ledger: int
    entry: int
    batch: int = -1

    @property
    def key(self) -> tuple[int, int, int]:
        """Ordered as messages are: a whole entry stands behind its last message."""
        return self.ledger, self.entry, self.batch if self.batch >= 0 else _WHOLE

    def __str__(self) -> str:
        text = f"{self.ledger}:{self.entry}"
        return text if self.batch < 0 else f"{text}:{self.batch}"

    def before(self) -> Position:
        """Where a reader stands for which this message is the next one."""
        if self.batch > 0:
            return Position(self.ledger, self.entry, self.batch - 1)
        return Position(self.ledger, max(self.entry - 1, -1))

    def entry_behind(self) -> Position:
        """Where a reader has to begin to get what lies behind: this entry, if it may have more."""
        if self.ledger < 0 or self.batch >= 0:
            return self._replace(batch=-1)
        return Position(self.ledger, self.entry + 1)


BEGINNING = Position(-1, -1)
"""Before all messages of a topic."""

Wish = str | Position
"""What a user asks for: EARLIEST, LATEST, or a message."""


def position_of(message_id: Any) -> Position:
    """The whole entry of a MessageIdData, on whose wire -1 is the largest number of 64 bits."""
    ids = [
        each - (1 << 64) if each >> 63 else each
        for each in (message_id.ledgerId, message_id.entryId)
    ]
    return Position(*ids)


def parse(text: str) -> Position:
    """Read what `str` wrote. Raises ValueError."""
    found = _ID.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not ledger:entry or ledger:entry:batch")
    ledger, entry, batch = found.groups()
    return Position(int(ledger), int(entry), -1 if batch is None else int(batch))


def wish_of(option: str, value: str) -> Wish | dict[str, Wish]:
    """The value of startingOffsets or endingOffsets; topics are as the user wrote them.

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
    return {topic: _wish_of_topic(option, topic, each) for topic, each in found.items()}


def _wish_of_topic(option: str, topic: str, value: object) -> Wish:
    try:
        if isinstance(value, str):
            word = value.strip().lower()
            return word if word in (EARLIEST, LATEST) else parse(word)
        if isinstance(value, list):
            return of_bytes(bytes(each & 0xFF for each in value))
        raise ValueError(f"{value!r} is neither a text nor a list of bytes")
    except (TypeError, ValueError) as error:
        raise WrongOption(
            f"{option} has for {topic} what is no message id: {error}; write ledger:entry,"
            " ledger:entry:batch, earliest, latest, or the bytes of a serialized message id."
        ) from error


def of_bytes(data: bytes) -> Position:
    """The message of an id as clients serialize it. Raises ValueError."""
    from google.protobuf.message import DecodeError

    from pyxbroker.proto import PulsarApi as pb

    try:
        found = pb.MessageIdData.FromString(data)
    except DecodeError as error:
        raise ValueError(f"these bytes are no serialized message id ({error})") from error
    return position_of(found)._replace(batch=found.batch_index)


def write_offset(
    positions: Mapping[str, Position],
    bytes_per_entry: Mapping[str, int] | None = None,
    begins: Mapping[str, Position] | None = None,
    moved: Mapping[str, Position] | None = None,
    origins: Mapping[str, Position] | None = None,
) -> dict[str, str]:
    """What Spark keeps of an offset.

    bytes_per_entry: of ledgers that are still written, and may grow by entries of other sizes.
    begins: of topics that the offset before may not have. moved: where topics go on that it has.
    origins: where topics began when the query began there.
    """

    def part(sign: str, given: Mapping[str, object] | None, topic: str) -> str:
        return f"{sign}{given[topic]}" if given and topic in given else ""

    return {
        topic: f"{position}{part('~', bytes_per_entry, topic)}"
        f"{part('@', begins, topic)}{part('^', moved, topic)}{part('<', origins, topic)}"
        for topic, position in sorted(positions.items())
    }


def read_offset(offset: Mapping[str, str]) -> dict[str, Position]:
    """The positions of what `write_offset` wrote."""
    return {topic: parse(_part(text, 1)) for topic, text in offset.items()}


def read_sizes(offset: Mapping[str, str]) -> dict[str, int]:
    """The bytes per entry of what `write_offset` wrote."""
    return {topic: int(size) for topic, text in offset.items() if (size := _part(text, 2))}


def read_begins(offset: Mapping[str, str]) -> dict[str, Position]:
    """The begins of what `write_offset` wrote."""
    return {topic: parse(begin) for topic, text in offset.items() if (begin := _part(text, 3))}


def read_moved(offset: Mapping[str, str]) -> dict[str, Position]:
    """Where topics go on, of what `write_offset` wrote."""
    return {topic: parse(at) for topic, text in offset.items() if (at := _part(text, 4))}


def read_origins(offset: Mapping[str, str]) -> dict[str, Position]:
    """Where topics began when the query began there, of what `write_offset` wrote. Offsets of
    queries that began elsewhere, and older ones, do not say it.
    """
    return {topic: parse(at) for topic, text in offset.items() if (at := _part(text, 5))}


def _part(text: str, number: int) -> str:
    found = _OF_TOPIC.fullmatch(text)
    return (found.group(number) or "") if found is not None else text
