"""A row as it becomes a message: which column of a DataFrame is what of it.

`value` is the payload (null is a tombstone), and if there are `__key`, `__orderingKey`, `__topic`,
`__eventTime`, `__deliverAt` and `__messageProperties` they are that of the message. What a message
gets anew, such as `__messageId`, is left out, so that what was read can be written as it is. Other
columns are the fields of a record, which is the payload then (records.py).
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
    " Keys with values (KEY_VALUE) are not written; who copies such a topic reads it as bytes, with"
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
    """A message that is to be sent. Times are in ms since 1970, 0 for none; value None: a null.
    Keys that are bytes are no UTF-8.
    """

    topic: str
    key: str | bytes | None
    value: bytes | None
    properties: dict[str, str]
    event_time: int = 0
    deliver_at: int = 0
    ordering_key: str | bytes | None = None


class Messages:
    """Makes messages of rows. Pickles."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Raises PulsarSparkError unless these columns can be written."""
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
        """Raises PulsarSparkError."""
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
            f"the column {own[0].name} is none that can be written beside value: either value is"
            " what is written, or other columns are the fields of a record."
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
    """Text where it can be."""
    if key is None or isinstance(key, str):
        return key
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key
