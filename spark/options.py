"""The options of the source and the sink: one table, and what is said of a wrong one.

Spark hands options on with names in lower case, so names are compared that way, and shown as the
table writes them. A name that is known elsewhere (in the JVM connector, in Spark's source for
Kafka) but not here is an error that says what to do: an option that is ignored would be worse.

Some values are secrets: no error and no representation has one of those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, NamedTuple

from pyxbroker.base.suggestions import did_you_mean
from pyxbroker.spark import option_values as read
from pyxbroker.spark.errors import WrongOption
from pyxbroker.spark.option_names import INSTEAD, INSTEAD_OF_PREFIXES, SPARKS_OWN
from pyxbroker.spark.positions import EARLIEST, LATEST

BATCH, STREAM, SINK = "batch source", "streaming source", "sink"


class Option(NamedTuple):
    """A row of the table: who knows the option, and what reads its value (name, text)."""

    name: str
    known_to: tuple[str, ...]
    read: Callable[[str, str], Any]
    default: Any = None


_READS = (BATCH, STREAM)
_ALL = (BATCH, STREAM, SINK)
_SINK = (SINK,)

SECURITY = (
    ("authPluginClassName", read.text),
    ("authParams", read.secret),
    ("tlsTrustCertsFilePath", read.text),
    ("tlsCertificateFilePath", read.text),
    ("tlsKeyFilePath", read.text),
    ("tlsAllowInsecureConnection", read.flag),
    ("tlsHostnameVerificationEnable", read.flag),
)
"""Of pulsar.client. and of pulsar.admin. alike; of both None is: nothing is said."""

TABLE = (
    Option("service.url", _ALL, read.service_url),
    Option("admin.url", _READS, read.web_url),
    Option("topic", _ALL, read.text),
    Option("topics", _READS, read.text),
    Option("topicsPattern", _READS, read.text),
    Option("startingOffsets", _READS, read.offsets),
    Option("endingOffsets", (BATCH,), read.offsets, LATEST),
    Option("startingTime", _READS, read.moment),
    Option("endingTime", (BATCH,), read.moment),
    Option("columns", _READS, read.names, ["*"]),
    Option("publishTimeSkewMs", (BATCH,), read.milliseconds, 300.0),
    Option("failOnDataLoss", _READS, read.flag, True),
    Option("allowDifferentTopicSchemas", _READS, read.flag, False),
    Option("waitingForNonExistedTopic", (STREAM,), read.flag, False),
    Option("predefinedSubscription", (STREAM,), read.text),
    Option("subscriptionPrefix", _READS, read.text, "pyxbroker-spark"),
    Option("maxBytesPerTrigger", (STREAM,), read.size),
    Option("maxRowsPerTrigger", (STREAM,), read.count),
    Option("bytesPerTask", _READS, read.size, 64 << 20),
    Option("pollTimeoutMs", _READS, read.milliseconds, 120.0),
    Option("reader", _READS, read.one_of("auto", "fast", "client"), "auto"),
    Option("exactlyOnce", _SINK, read.one_of("auto", "true", "false"), "auto"),
    Option("schemaType", _SINK, read.one_of("avro", "json")),
    Option("pulsar.client.operationTimeoutMs", _ALL, read.milliseconds, 30.0),
    Option("pulsar.client.connectionTimeoutMs", _ALL, read.milliseconds, 10.0),
    Option("pulsar.client.useTls", _ALL, read.flag),
    *(Option(f"pulsar.client.{name}", _ALL, how) for name, how in SECURITY),
    *(Option(f"pulsar.admin.{name}", _READS, how) for name, how in SECURITY),
    Option("pulsar.reader.receiverQueueSize", _READS, read.count, 20_000),
    Option("pulsar.reader.defaultCryptoKeyReader", _READS, read.file),
    Option("pulsar.producer.sendTimeoutMs", _SINK, read.milliseconds),
    Option("pulsar.producer.maxPendingMessages", _SINK, read.count, 1_000),
    Option("pulsar.producer.compressionType", _SINK, read.compression, "LZ4"),
    Option("pulsar.producer.batchingEnabled", _SINK, read.flag, True),
    Option("pulsar.producer.batchingMaxMessages", _SINK, read.count, 1_000),
    Option("pulsar.producer.batchingMaxBytes", _SINK, read.size, 128 << 10),
    Option("pulsar.producer.batchingMaxPublishDelayMicros", _SINK, read.count, 10_000),
    Option("pulsar.producer.chunkingEnabled", _SINK, read.flag, False),
    Option("pulsar.producer.properties", _SINK, read.properties),
    Option("pulsar.producer.hashingScheme", _SINK, read.hashing, "JavaStringHash"),
    Option("pulsar.producer.messageRoutingMode", _SINK, read.routing, "RoundRobinPartition"),
    Option("pulsar.producer.encryptionKeys", _SINK, read.text),
    Option("pulsar.producer.defaultCryptoKeyReader", _SINK, read.file),
)
ALIASES = {
    **{
        f"{prefix}.enabletlshostnameverification": f"{prefix}.tlshostnameverificationenable"
        for prefix in ("pulsar.client", "pulsar.admin")
    },
    "maxoffsetspertrigger": "maxrowspertrigger",
}
"""Names of Java's builder for what its configuration calls otherwise, and of Spark's source for
Kafka, where an offset is a message."""
START = {BATCH: EARLIEST, STREAM: LATEST}
"""Of startingOffsets, where nothing else is said: as in the JVM connector."""

LIKENESS_OF_PREFIXED_MIN = 0.9
"""All names with one prefix are like each other."""


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
        for name, other in ALIASES.items():
            if name in values and other in values:
                raise WrongOption(f"{name} and {other} are one option: leave one out.")
        values = {ALIASES.get(name, name): value for name, value in values.items()}
        self._values = {
            row.name: row.read(row.name, values[key]) if key in values else row.default
            for key, row in rows.items()
        }
        self._given = frozenset(rows[name].name for name in values if name in rows)
        if self["service.url"] is None:
            raise WrongOption("service.url is missing; it has the form pulsar://host:port.")
        self._check_tls()
        if role in START:
            self._check_source()

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __repr__(self) -> str:
        return f"<Options of a {self.role}: {', '.join(sorted(self._given))}>"

    def replaced(self, values: Mapping[str, Any]) -> Options:
        """The same with other values, as they were read."""
        made = copy(self)
        made._values = self._values | dict(values)
        return made

    def is_given(self, name: str) -> bool:
        """Whether it was said, and is no default."""
        return name in self._given

    def _check_tls(self) -> None:
        """useTls=true is what pulsar+ssl:// says; Java's client has both."""
        url, wanted = self["service.url"], self["pulsar.client.useTls"]
        if wanted and not url.startswith("pulsar+ssl://"):
            self._values["service.url"] = url.replace("pulsar://", "pulsar+ssl://", 1)
        if wanted is False and url.startswith("pulsar+ssl://"):
            raise WrongOption(
                f"pulsar.client.useTls is false, and service.url is {url}: leave one out."
            )

    def _check_source(self) -> None:
        named = [name for name in ("topic", "topics", "topicsPattern") if self[name] is not None]
        if len(named) != 1:
            given = f"{' and '.join(named)} are."
            raise WrongOption(f"{_ONE_TOPIC}: {given}" if named else _NO_TOPIC)
        for offsets, moment in (
            ("startingOffsets", "startingTime"),
            ("endingOffsets", "endingTime"),
        ):
            if self.is_given(offsets) and self.is_given(moment):
                raise WrongOption(f"{offsets} and {moment} are both given: leave one out.")
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
    row = rows.get(ALIASES.get(name, name))
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
    known = [row.name for row in TABLE if role in row.known_to]
    for prefix, advice in INSTEAD_OF_PREFIXES.items():
        if name.startswith(prefix):
            hint = did_you_mean(name, known, LIKENESS_OF_PREFIXED_MIN)
            return f"there is no option {name}: {hint or advice}"
    hint = did_you_mean(name, known)
    if hint:
        return f"there is no option {name}: {hint}"
    short = [each for each in known if not each.startswith("pulsar.")]
    return f"there is no option {name}; there are {', '.join(short)}, and more with pulsar. before."
