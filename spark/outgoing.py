"""The conversion of rows to messages.

`value` is the payload; null is a tombstone. `__key`, `__orderingKey`, `__topic`, `__eventTime`,
`__deliverAt` and `__messageProperties` set those of the message. Columns that a new message gets
from the broker, such as `__messageId`, are ignored, so that rows that were read can be written
unchanged. Other columns are the fields of a record, which becomes the payload (records.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyxbroker.spark.errors import PulsarSparkError, WrongOption
from pyxbroker.spark.options import Options
from pyxbroker.spark.records import PRIMITIVES, Payloads, Primitive, Record
from pyxbroker.spark.topics import name_of

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql.types import StructType

KEY, VALUE = "key", "value"
_PAIRS = (
    " KEY_VALUE schemas cannot be written; to copy such a topic, read it as bytes with"
    " allowDifferentTopicSchemas=true."
)
TYPES = {
    VALUE: ("binary", "string", *PRIMITIVES),
    "__key": ("binary", "string"),
    "__topic": ("string",),
    "__eventTime": ("timestamp",),
    "__deliverAt": ("timestamp",),
    "__messageProperties": ("map<string,string>",),
    "__orderingKey": ("binary", "string"),
    "__messageId": ("binary",),
    "__publishTime": ("timestamp",),
    "__producerName": ("string",),
    "__sequenceId": ("bigint",),
    "__schemaVersion": ("bigint",),
    "__ledgerId": ("bigint",),
    "__entryId": ("bigint",),
    "__batchIndex": ("int",),
}


class Outgoing(NamedTuple):
    """A message to send. Times are in ms since 1970, or 0. Value None is a tombstone.

    Keys of the type bytes are not valid UTF-8.
    """

    topic: str
    key: str | bytes | None
    value: bytes | None
    properties: dict[str, str]
    event_time: int = 0
    deliver_at: int = 0
    ordering_key: str | bytes | None = None


class Messages:
    """A converter of rows to messages. Can be pickled."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check the columns. Raises PulsarSparkError if they cannot be written."""
        self._topic: str | None = options["topic"]
        self.payloads = _payloads_of(options, schema)
        found = {field.name: field.dataType.simpleString() for field in schema.fields}
        for name in found.keys() & TYPES.keys():
            if found[name] not in TYPES[name]:
                raise PulsarSparkError(
                    f"the column {name} is {found[name]}: it has to be {_either(TYPES[name])}."
                )
        if self._topic is None and "__topic" not in found:
            raise PulsarSparkError("give the option topic, or a column __topic.")
        if self._topic is not None:
            name_of(self._topic)

    def of(self, row: dict[str, Any]) -> Outgoing:
        """Convert a row. Raises PulsarSparkError."""
        topic = row.get("__topic") if self._topic is None else self._topic
        if not topic:
            raise PulsarSparkError("a row has no __topic, and the option topic is not given.")
        return Outgoing(
            topic,
            _key(row.get("__key")),
            self.payloads.encode(row),
            {key: text or "" for key, text in row.get("__messageProperties") or ()},
            _milliseconds(row.get("__eventTime")),
            _milliseconds(row.get("__deliverAt")),
            _key(row.get("__orderingKey")),
        )


def _payloads_of(options: Options, schema: StructType) -> Payloads:
    own = [field for field in schema.fields if field.name not in TYPES]
    columns = {field.name: field.dataType.simpleString() for field in schema.fields}
    if VALUE in columns and own:
        raise PulsarSparkError(
            f"the column {own[0].name} cannot be written next to value: either value is the"
            " payload, or other columns are the fields of a record."
            + (_PAIRS if [each.name for each in own] == [KEY] else "")
        )
    if own:
        return Record(own, options["schemaType"] or "avro")
    if VALUE not in columns:
        raise PulsarSparkError(
            "there is nothing to write: give a column value, or columns that are the fields of a"
            " record."
        )
    if options["schemaType"] is not None:
        raise WrongOption(
            "schemaType is for columns that are the fields of a record; the column value is"
            " written as it is."
        )
    return Primitive(columns[VALUE])


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


def _milliseconds(moment: datetime | None) -> int:
    return 0 if moment is None else round(moment.timestamp() * 1000)


def _key(key: bytes | str | None) -> str | bytes | None:
    """Return a key as text if it is UTF-8."""
    if key is None or isinstance(key, str):
        return key
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key
