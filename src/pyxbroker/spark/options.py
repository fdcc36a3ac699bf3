"""The options of the source and the sink: one table, and what is said of a wrong one.

Spark hands options on with names in lower case, so names are compared that way, and shown as the
table writes them. A name that is known elsewhere (in the JVM connector, in Spark's source for
Kafka) but not here is an error that says what to do: an option that is ignored would be worse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyxbroker.base.near_names import did_you_mean
from pyxbroker.spark.errors import WrongOption
from pyxbroker.spark.positions import EARLIEST, LATEST, Wish, wish_of

BATCH, STREAM, SINK = "batch source", "streaming source", "sink"

_SERVICE_URL = re.compile(r"pulsar://(\[[0-9a-fA-F:.]+\]|[^\s/:,\[\]]+)(:\d{1,5})?/?", re.ASCII)
_WEB_URL = re.compile(r"http://(\[[0-9a-fA-F:.]+\]|[^\s/:,\[\]]+)(:\d{1,5})?/?", re.ASCII)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class Option(NamedTuple):
    """A row of the table: who knows the option, and what reads its value (name, text)."""

    name: str
    known_to: tuple[str, ...]
    read: Callable[[str, str], Any]
    default: Any = None


# --- values -------------------------------------------------------------------------------------


def _service_url(name: str, value: str) -> str:
    if value.startswith("pulsar+ssl://"):
        raise WrongOption(f"{name} is {value!r}: TLS is not built yet, only pulsar:// is.")
    if "," in value:
        raise WrongOption(f"{name} is {value!r}: several brokers are not built yet, name one.")
    if not _SERVICE_URL.fullmatch(value):
        raise WrongOption(f"{name} is {value!r}: it has the form pulsar://host:port.")
    return value.rstrip("/")


def _web_url(name: str, value: str) -> str:
    if value.startswith("https://"):
        raise WrongOption(f"{name} is {value!r}: TLS is not built yet, only http:// is.")
    if not _WEB_URL.fullmatch(value):
        raise WrongOption(f"{name} is {value!r}: it has the form http://host:port.")
    return value.rstrip("/")


def _text(name: str, value: str) -> str:
    if not value.strip():
        raise WrongOption(f"{name} is empty.")
    return value.strip()


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise WrongOption(f"{name} is {value!r}: it has to be true or false.")
    return value.lower() == "true"


def _bytes(name: str, value: str) -> int:
    """A number of bytes, or one with k, m or g."""
    found = re.fullmatch(r"(\d+)\s*([kmg]?)b?", value.strip().lower(), re.ASCII)
    if found is None or int(found[1]) == 0:
        raise WrongOption(f"{name} is {value!r}: it has to be a number of bytes, such as 64m.")
    return int(found[1]) * _UNITS[found[2]]


def _milliseconds(name: str, value: str) -> float:
    """In seconds."""
    if not re.fullmatch(r"\d+", value.strip(), re.ASCII) or int(value) == 0:
        raise WrongOption(f"{name} is {value!r}: it has to be a number of milliseconds.")
    return int(value) / 1000


def _offsets(name: str, value: str) -> Wish | dict[str, Wish]:
    return wish_of(name, value)


_READS = (BATCH, STREAM)
_ALL = (BATCH, STREAM, SINK)

TABLE = (
    Option("service.url", _ALL, _service_url),
    Option("admin.url", _READS, _web_url),
    Option("topic", _ALL, _text),
    Option("topics", _READS, _text),
    Option("topicsPattern", _READS, _text),
    Option("startingOffsets", _READS, _offsets),
    Option("endingOffsets", (BATCH,), _offsets, LATEST),
    Option("failOnDataLoss", _READS, _flag, True),
    Option("maxBytesPerTrigger", (STREAM,), _bytes),
    Option("bytesPerTask", _READS, _bytes, 64 << 20),
    Option("pollTimeoutMs", _READS, _milliseconds, 120.0),
    Option("pulsar.client.operationTimeoutMs", _ALL, _milliseconds, 30.0),
)
START = {BATCH: EARLIEST, STREAM: LATEST}
"""Of startingOffsets, where nothing else is said: as in the JVM connector."""

NOT_BUILT = (
    *("startingTime", "endingTime", "predefinedSubscription", "subscriptionPrefix", "reader"),
    *("allowDifferentTopicSchemas", "waitingForNonExistedTopic"),
)
NOT_BUILT_PREFIXES = ("pulsar.client.", "pulsar.reader.", "pulsar.producer.", "pulsar.admin.")

INSTEAD = {
    "topic.schema.class": "there are no Java classes here; the topic's schema is read from the"
    " registry, and bytes are decoded with Spark's own from_avro or from_json",
    "kafka.bootstrap.servers": "give service.url, as in pulsar://host:6650",
    "subscribe": "give topic, or topics for several",
    "subscribepattern": "give topicsPattern",
    "assign": "give topics; a partition is named as topic-partition-0",
    "maxoffsetspertrigger": "give maxBytesPerTrigger",
    "minpartitions": "give bytesPerTask together with admin.url",
    "includeheaders": "the column __messageProperties is always there",
    "path": "give topic, topics or topicsPattern instead of a path",
}
LIKENESS_OF_PREFIXED_MIN = 0.9
"""All names with one prefix are like each other."""
SPARKS_OWN = frozenset(("checkpointlocation", "queryname"))
"""What Spark says of the query itself; it comes with the options of a streaming sink."""


_ONE_TOPIC = "one of topic, topics and topicsPattern has to be given"
_NO_TOPIC = f"{_ONE_TOPIC}: none is."


class Options:
    """The options of one source or sink, read and checked. Pickles."""

    def __init__(self, role: str, given: Mapping[str, str]) -> None:
        """Raises WrongOption."""
        self.role = role
        rows = {row.name.lower(): row for row in TABLE}
        values = {name.lower(): value for name, value in given.items() if value is not None}
        for name in values:
            _check_name((role,), name)
        self._values = {
            row.name: row.read(row.name, values[key]) if key in values else row.default
            for key, row in rows.items()
        }
        if self["service.url"] is None:
            raise WrongOption("service.url is missing; it has the form pulsar://host:port.")
        if role in START:
            self._check_source()

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def _check_source(self) -> None:
        named = [name for name in ("topic", "topics", "topicsPattern") if self[name] is not None]
        if len(named) != 1:
            given = f"{' and '.join(named)} are."
            raise WrongOption(f"{_ONE_TOPIC}: {given}" if named else _NO_TOPIC)
        if self["startingOffsets"] is None:
            self._values["startingOffsets"] = START[self.role]
        if self.role == BATCH and self["startingOffsets"] == LATEST:
            raise WrongOption("startingOffsets is latest: behind that a batch has nothing to read.")
        if self["endingOffsets"] == EARLIEST:
            raise WrongOption("endingOffsets is earliest: before that there is nothing to read.")


def check_names(given: Mapping[str, str]) -> None:
    """What can be told of a source's options before it is known which one it is. WrongOption."""
    for name in given:
        _check_name(_READS, name.lower())
    if not {"topic", "topics", "topicspattern"} & {name.lower() for name in given}:
        raise WrongOption(_NO_TOPIC)


def _check_name(roles: tuple[str, ...], name: str) -> None:
    rows = {row.name.lower(): row for row in TABLE}
    row = rows.get(name)
    if row is not None:
        if not set(roles) & set(row.known_to):
            raise WrongOption(
                f"{row.name} is no option of the {' or the '.join(roles)}, only of the"
                f" {' and the '.join(row.known_to)}."
            )
    elif name in INSTEAD:
        raise WrongOption(f"{name} is no option of this connector: {INSTEAD[name]}.")
    elif name not in SPARKS_OWN:
        raise WrongOption(_unknown(roles[0], name))


def _unknown(role: str, name: str) -> str:
    for each in NOT_BUILT:
        if each.lower() == name:
            return f"{each} is not built yet."
    known = [row.name for row in TABLE if role in row.known_to]
    if name.startswith(NOT_BUILT_PREFIXES):
        hint = did_you_mean(name, known, LIKENESS_OF_PREFIXED_MIN)
        return f"{name} is not built yet{', ' if hint else '.'}{hint}"
    hint = did_you_mean(name, [*known, *NOT_BUILT])
    if hint:
        return f"there is no option {name}: {hint}"
    return f"there is no option {name}; there are {', '.join(known)}."
