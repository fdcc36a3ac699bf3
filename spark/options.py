"""The options of the source and the sink: one table, and the errors for wrong options.

Spark passes names of options on in lower case. So names are compared in lower case, and shown as
the table writes them. A name of the JVM connector or of Spark's source for Kafka that is not
supported is an error with advice, because an ignored option would be worse.

Some values are secrets: errors and representations never contain them.
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
    """A row of the table: the roles that have the option, and the parser of its value."""

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
"""Options with the prefix pulsar.client. as well as pulsar.admin. None: not given."""

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
"""Names of Java's builder that differ from its configuration, and a name of Spark's source for
Kafka, where an offset is a message."""
START = {BATCH: EARLIEST, STREAM: LATEST}
"""The default of startingOffsets, as in the JVM connector."""

LIKENESS_OF_PREFIXED_MIN = 0.9
"""The threshold for suggestions within a prefix, which makes all names similar."""


_ONE_TOPIC = "give one of topic, topics and topicsPattern"
_NO_TOPIC = f"{_ONE_TOPIC}: none is given."


class Options:
    """The parsed and checked options of one source or sink. Can be pickled."""

    def __init__(self, role: str, given: Mapping[str, str]) -> None:
        """Parse options. Raises WrongOption."""
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
        """Return a copy with other parsed values."""
        made = copy(self)
        made._values = self._values | dict(values)
        return made

    def is_given(self, name: str) -> bool:
        """Return True if the user gave the option."""
        return name in self._given

    def _check_tls(self) -> None:
        """Combine useTls=true and pulsar+ssl://, which Java's client both has."""
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
            given = f"{' and '.join(named)} are given."
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
            raise WrongOption("startingOffsets is latest: a batch would have nothing to read.")
        if self["endingOffsets"] == EARLIEST:
            raise WrongOption("endingOffsets is earliest: a batch would have nothing to read.")


def check_names(given: Mapping[str, str]) -> None:
    """Check the names of a source's options while its role is unknown. Raises WrongOption."""
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
                f"{row.name} is not an option of the {' or the '.join(roles)}, only of the"
                f" {' and the '.join(row.known_to)}."
            )
    elif name in INSTEAD:
        raise WrongOption(f"{name} is not an option of this connector: {INSTEAD[name]}.")
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
    return (
        f"there is no option {name}; there are {', '.join(short)}, and more with the prefix pulsar."
    )
