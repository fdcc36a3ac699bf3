"""Pulsar's official client as the options want it: what the sink sends by.

It comes with the extra `spark`, and is imported when it is used.
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
    """A client. Close it."""
    import pulsar

    return pulsar.Client(
        options["service.url"],
        operation_timeout_seconds=max(1, round(options["pulsar.client.operationTimeoutMs"])),
        connection_timeout_ms=round(options["pulsar.client.connectionTimeoutMs"] * 1000),
        **Security(options).official(),
        # What goes wrong is told by what fails; lines of the client would be told once more.
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


def schema_of(described: tuple[str, str] | None) -> Any:
    """A schema of the client, for payloads that are encoded already: (type, definition)."""
    import _pulsar
    from pulsar import schema

    class Encoded(schema.BytesSchema):
        """Payloads as they are, under another schema's name."""

        def schema_info(self) -> Any:
            assert described is not None
            kind, definition = described
            return _pulsar.SchemaInfo(getattr(_pulsar.SchemaType, kind), kind, definition)

    is_told = described is not None and described[0] not in NUMBERS
    return Encoded() if is_told else schema.BytesSchema()


def tell_schema(
    options: Options, client: Any, topic: str, described: tuple[str, str] | None
) -> None:
    """Register a schema of numbers, of which the client's producers do not tell a broker."""
    if described is None or described[0] not in NUMBERS:
        return
    kind, _ = described
    # A topic with partitions is none itself.
    name = tell_trouble(options, topic, lambda: client.get_topic_partitions(topic))[0]
    with cluster_of(options) as cluster:
        cluster.ask(name, lambda broker: broker.tell_schema(name, kind, NUMBERS[kind]))


def tell_trouble(
    options: Options,
    topic: str,
    do: Callable[[], T],
    described: tuple[str, str] | None = None,
) -> T:
    """What `do` returns; its PulsarException becomes a PulsarSparkError.

    described: the schema of the producer that `do` opens.
    """
    import pulsar

    try:
        return do()
    except pulsar.PulsarException as error:
        reason = reason_of(options, topic, error, described)
        raise PulsarSparkError(f"{topic} cannot be written: {reason}.") from error


def close_client(client: Any, is_done: bool) -> None:
    """Close a client, by which nothing is sent or read any more. It may be closed already.

    is_done: all it sent was acknowledged, so it takes its leave of brokers; else nothing is waited
    for.
    """
    import pulsar

    if is_done:
        try:
            client.close()
        except pulsar.PulsarException as error:
            _log.warning("a broker was not told that its producer is gone: %s", sentence_of(error))
    client.shutdown()


def reason_of(
    options: Options, topic: str, error: object, described: tuple[str, str] | None = None
) -> str:
    """Why the client says no, an exception or a Result.

    A broker that refused a producer is asked for its words, which the client only logs.

    Where it says that nobody answered in time, brokers are asked anew: it says so of a token that
    expired, and of a right that was taken away, too, as it tries on until the time is over.
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
"""Of a producer, for reasons that differ from case to case."""


def word_of(error: object) -> str:
    """What the client calls an error, in small letters: its results are names such as
    `Pulsar error: TimeOut`.
    """
    return _name_of(error).replace("_", "").lower()


def sentence_of(error: object) -> str:
    """The same in words."""
    return MEANINGS.get(word_of(error), _name_of(error))


def _name_of(error: object) -> str:
    return str(error).removeprefix("Pulsar error: ").removeprefix("Result.")


MEANINGS = {
    SILENCE: "the broker did not answer in time",
    "connecterror": "no broker answers",
    "authenticationerror": "the broker does not take what says who this is"
    " (pulsar.client.authPluginClassName, pulsar.client.authParams)",
    "authorizationerror": "there is no right to write it",
    "messagetoobig": "a message is larger than the broker takes;"
    " pulsar.producer.chunkingEnabled=true sends it in parts",
    "incompatibleschema": "its schema does not go with what is written",
    "topicterminated": "it was terminated",
    "topicnotfound": "there is no such topic",
    "producerbusy": "a producer of this name is connected; is another query running with this"
    " checkpoint?",
    "producerblockedquotaexceedederror": "the quota of its backlog is used up",
    "producerblockedquotaexceededexception": "the quota of its backlog is used up",
}
