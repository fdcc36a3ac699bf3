"""Pulsar's official client as the options want it: what the sink sends by.

It comes with the extra `spark`, and is imported when it is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.options import Options
from pyxbroker.spark.plan import cluster_of
from pyxbroker.spark.records import NUMBERS
from pyxbroker.spark.security import Security
from pyxbroker.spark.topics import name_of

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


def close_client(client: Any) -> None:
    """What was not acknowledged was told before; that its end is not, says nothing more."""
    import pulsar

    try:
        client.close()
    except pulsar.PulsarException as error:
        _log.warning("the client's end was not acknowledged: %s.", sentence_of(error))


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
    """Registers a schema of numbers, of which the client's producers do not tell a broker."""
    if described is None or described[0] not in NUMBERS:
        return
    kind, _ = described
    name = client.get_topic_partitions(topic)[0]  # a topic with partitions is none itself
    with cluster_of(options) as cluster:
        cluster.ask(name, lambda broker: broker.tell_schema(name, kind, NUMBERS[kind]))


def tell_trouble(topic: str, do: Callable[[], T]) -> T:
    """What `do` returns; its PulsarException becomes a PulsarSparkError."""
    import pulsar

    try:
        return do()
    except pulsar.PulsarException as error:
        raise PulsarSparkError(f"{topic} cannot be written: {sentence_of(error)}.") from error


def reason_of_silence(options: Options, topics: Iterable[str]) -> str:
    """Why a broker does not answer, who is asked anew: the client tries on until its time is over,
    and says of a token that expired, or of a right that was taken away, that nobody answered.
    """
    try:
        with cluster_of(options) as cluster:
            cluster.any_broker()
        client = client_of(options)
        try:
            for topic in topics:
                made = tell_trouble(topic, partial(client.create_producer, str(name_of(topic))))
                made.close()
        finally:
            close_client(client)
    except PulsarSparkError as error:
        return str(error).removesuffix(".")
    return MEANINGS[SILENCE]


SILENCE = "timeout"


def sentence_of(error: object) -> str:
    """What the client says, in words: its results are names such as `Pulsar error: TimeOut`."""
    text = str(error).removeprefix("Pulsar error: ").removeprefix("Result.")
    return MEANINGS.get(text.replace("_", "").lower(), text)


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
