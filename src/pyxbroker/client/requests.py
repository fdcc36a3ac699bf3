"""Requests that need no producer and no consumer of the client: metadata, names, schemas."""

from __future__ import annotations

from typing import Any

from pyxbroker.client.connection import Connection
from pyxbroker.client.entries import MessageId
from pyxbroker.client.errors import BrokerRefused, code_name
from pyxbroker.proto import PulsarApi as pb


async def partitions(connection: Connection, topic: str, may_create: bool = False) -> int:
    """Return how many partitions a topic has; 0: it is not partitioned. Raises BrokerRefused."""
    command = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA)
    command.partitionMetadata.topic = topic
    command.partitionMetadata.metadata_auto_creation_enabled = may_create
    answer = await connection.ask(command)
    if answer.response == answer.Failed:
        raise BrokerRefused(code_name(answer.error), answer.message, connection.url)
    return int(answer.partitions)


async def topics_of(
    connection: Connection, namespace: str, mode: int = pb.CommandGetTopicsOfNamespace.PERSISTENT
) -> list[str]:
    """Return the topics of a namespace, each partition by itself, sorted."""
    command = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE)
    command.getTopicsOfNamespace.namespace = namespace
    command.getTopicsOfNamespace.mode = mode
    return sorted((await connection.ask(command)).topics)


async def schema_of(connection: Connection, topic: str, version: bytes = b"") -> Any:
    """Return the Schema of a topic: a version of it or the newest; None: it does not exist.

    Raises BrokerRefused.
    """
    command = pb.BaseCommand(type=pb.BaseCommand.GET_SCHEMA)
    command.getSchema.topic = topic
    if version:
        command.getSchema.schema_version = version
    answer = await connection.ask(command)
    if answer.HasField("schema"):
        return answer.schema
    if code_name(answer.error_code) == "TopicNotFound":
        return None
    raise BrokerRefused(code_name(answer.error_code), answer.error_message, connection.url)


async def register_schema(connection: Connection, topic: str, schema: Any) -> bytes:
    """Give a topic a schema and return its version. Raises BrokerRefused."""
    command = pb.BaseCommand(type=pb.BaseCommand.GET_OR_CREATE_SCHEMA)
    command.getOrCreateSchema.topic = topic
    command.getOrCreateSchema.schema.CopyFrom(schema)
    answer = await connection.ask(command)
    if answer.HasField("error_code"):
        raise BrokerRefused(code_name(answer.error_code), answer.error_message, connection.url)
    return bytes(answer.schema_version)


def subscribe_command(topic: str, subscription: str, consumer_id: int) -> Any:
    """Return a SUBSCRIBE for an exclusive consumer that creates no topic."""
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    command.subscribe.topic = topic
    command.subscribe.subscription = subscription
    command.subscribe.subType = pb.CommandSubscribe.Exclusive
    command.subscribe.consumer_id = consumer_id
    command.subscribe.force_topic_creation = False
    command.subscribe.initialPosition = pb.CommandSubscribe.Earliest
    return command


def flow_command(consumer_id: int, permits: int) -> Any:
    """Return a FLOW, which lets the broker send so many messages more."""
    command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
    command.flow.consumer_id = consumer_id
    command.flow.messagePermits = permits
    return command


def ack_command(consumer_id: int, is_cumulative: bool = False) -> Any:
    """Return an ACK without its message ids."""
    command = pb.BaseCommand(type=pb.BaseCommand.ACK)
    command.ack.consumer_id = consumer_id
    command.ack.ack_type = pb.CommandAck.Cumulative if is_cumulative else pb.CommandAck.Individual
    return command


async def acknowledge(connection: Connection, command: Any) -> None:
    """Send an ACK and wait until the broker has stored it. Raises BrokerRefused."""
    answer = await connection.ask(command)
    if answer.HasField("error"):
        raise BrokerRefused(code_name(answer.error), answer.message, connection.url)


async def seek(
    connection: Connection, consumer_id: int, to: MessageId | None, time_ms: int = 0
) -> None:
    """Move a subscription to a message, or to the first one published at a time (ms since 1970).

    The broker closes the subscription's consumers.
    """
    command = pb.BaseCommand(type=pb.BaseCommand.SEEK)
    command.seek.consumer_id = consumer_id
    if to is None:
        command.seek.message_publish_time = time_ms
    else:
        to.write(command.seek.message_id)
    await connection.ask(command)


async def last_message_id(
    connection: Connection, consumer_id: int
) -> tuple[MessageId | None, MessageId]:
    """Return (the consumer's mark-delete position, the last message) of a topic.

    The position is None if the broker does not send it. An empty topic's last message is -1:-1.
    """
    command = pb.BaseCommand(type=pb.BaseCommand.GET_LAST_MESSAGE_ID)
    command.getLastMessageId.consumer_id = consumer_id
    answer = await connection.ask(command)
    mark = None
    if answer.HasField("consumer_mark_delete_position"):
        mark = MessageId.read(answer.consumer_mark_delete_position)
    return mark, MessageId.read(answer.last_message_id)


async def close_consumer(connection: Connection, consumer_id: int) -> None:
    command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = consumer_id
    await connection.ask(command)
