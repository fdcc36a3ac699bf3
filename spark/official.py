"""The configuration of Pulsar's official client, with which the sink sends.

The client is part of the extra `spark`, and is imported when it is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.options import Options
from pyxbroker.spark.plan import cluster_of
from pyxbroker.spark.records import NUMBERS
from pyxbroker.spark.security import Security

T = TypeVar("T")

_log = logging.getLogger(__name__)


def client_of(options: Options) -> Any:
    """Return a client. The caller closes it."""
    import pulsar

    return pulsar.Client(
        options["service.url"],
        operation_timeout_seconds=max(1, round(options["pulsar.client.operationTimeoutMs"])),
        connection_timeout_ms=round(options["pulsar.client.connectionTimeoutMs"] * 1000),
        **Security(options).official(),
        # Errors are raised; lines in the client's log would repeat them.
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


def schema_of(described: tuple[str, str] | None) -> Any:
    """Return a schema object for encoded payloads. described: (type, definition)."""
    import _pulsar
    from pulsar import schema

    class Encoded(schema.BytesSchema):
        """A schema that passes payloads unchanged and reports another schema to brokers."""

        def schema_info(self) -> Any:
            assert described is not None
            kind, definition = described
            return _pulsar.SchemaInfo(getattr(_pulsar.SchemaType, kind), kind, definition)

    is_described = described is not None and described[0] not in NUMBERS
    return Encoded() if is_described else schema.BytesSchema()


def register_schema(
    options: Options, client: Any, topic: str, described: tuple[str, str] | None
) -> None:
    """Register a schema of a number type, which the client's producers do not register."""
    if described is None or described[0] not in NUMBERS:
        return
    kind, _ = described
    # A partitioned topic is not a topic itself, so its first partition is used.
    name = translate_errors(options, topic, lambda: client.get_topic_partitions(topic))[0]
    with cluster_of(options) as cluster:
        cluster.ask(name, lambda broker: broker.register_schema(name, kind, NUMBERS[kind]))


def translate_errors(
    options: Options,
    topic: str,
    do: Callable[[], T],
    described: tuple[str, str] | None = None,
) -> T:
    """Call a function, and raise its PulsarException as a PulsarSparkError.
    described: the schema of the producer that `do` opens.
    """
    import pulsar

    try:
        return do()
    except pulsar.PulsarException as error:
        reason = reason_of(options, topic, error, described)
        raise PulsarSparkError(f"{topic} cannot be written: {reason}.") from error


def close_client(client: Any, is_done: bool) -> None:
    """Close a client, which may be closed already.

    is_done: all messages were acknowledged, so producers are closed at the broker first. Without
    it, the connections are closed immediately.
    """
    import pulsar

    if is_done:
        try:
            client.close()
        except pulsar.PulsarException as error:
            _log.warning("a producer could not be closed at its broker: %s", sentence_of(error))
    client.shutdown()


def reason_of(
    options: Options, topic: str, error: object, described: tuple[str, str] | None = None
) -> str:
    """Return the reason for an error of the client, an exception or a Result.

    The client only logs the message of a broker that refuses a producer, so the broker is asked
    again.

    The client reports a timeout also for an expired token and a revoked permission, because it
    retries until the time is over. So a timeout is checked with a new connection and producer.
    """
    if word_of(error) in REFUSALS:
        from pyxbroker.spark.entry_producer import refusal_of

        words = refusal_of(options, topic, described).rstrip(".")
        return f"{sentence_of(error)}: {words}" if words else sentence_of(error)
    if word_of(error) != SILENCE:
        return sentence_of(error)
    import pulsar

    try:
        with cluster_of(options) as cluster:
            cluster.any_broker()
        client = client_of(options)
        try:
            client.create_producer(topic).close()
        finally:
            close_client(client, is_done=False)
    except PulsarSparkError as found:
        return str(found).removesuffix(".")
    except pulsar.PulsarException as found:
        return sentence_of(found)
    return MEANINGS[SILENCE]


SILENCE = "timeout"
REFUSALS = ("incompatibleschema", "topicnotfound")
"""Refusals of a producer whose reasons are only in the broker's message."""


def word_of(error: object) -> str:
    """Return the client's name of an error in lower case, such as `timeout`."""
    return _name_of(error).replace("_", "").lower()


def sentence_of(error: object) -> str:
    """Return the description of an error."""
    return MEANINGS.get(word_of(error), _name_of(error))


def _name_of(error: object) -> str:
    return str(error).removeprefix("Pulsar error: ").removeprefix("Result.")


MEANINGS = {
    SILENCE: "the broker did not answer in time",
    "connecterror": "no broker answers",
    "authenticationerror": "the broker refuses the credentials"
    " (pulsar.client.authPluginClassName, pulsar.client.authParams)",
    "authorizationerror": "there is no right to write it",
    "messagetoobig": "a message is larger than the broker accepts;"
    " pulsar.producer.chunkingEnabled=true sends it in chunks",
    "incompatibleschema": "its schema is not compatible with what is written",
    "topicterminated": "it was terminated",
    "topicnotfound": "there is no such topic",
    "producerbusy": "a producer of this name is connected; is another query running with this"
    " checkpoint?",
    "producerblockedquotaexceedederror": "its backlog quota is exceeded",
    "producerblockedquotaexceededexception": "its backlog quota is exceeded",
}
