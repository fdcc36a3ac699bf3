"""Schemas on the binary protocol: GET_SCHEMA, GET_OR_CREATE_SCHEMA, and the schemas of PRODUCER and
SUBSCRIBE.

The schema modules are imported by the first such command: most clients have no schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyxbroker.base.errors import (
    IncompatibleSchema,
    PulsarError,
    TopicNotFound,
    UnknownError,
)
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.commands import replies

if TYPE_CHECKING:
    from pyxbroker.broker.broker import Broker
    from pyxbroker.broker.topics.topic import Topic
    from pyxbroker.connection import Connection
    from pyxbroker.schemas.registry import Rules
    from pyxbroker.schemas.values import Schema

NONE, AUTO_CONSUME = 0, 21  # types
VERSION_BYTES = 8
NO_SCHEMA = b""
"""The version of a producer without a schema."""


class SchemaCommands:
    """The handlers of these commands, and the schema checks of PRODUCER and SUBSCRIBE."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # --- commands -----------------------------------------------------------------------------

    async def handle_get_schema(self, connection: Connection, message: Any) -> None:
        """GET_SCHEMA: return the newest version, or the requested one."""
        from pyxbroker.schemas.values import version_bytes

        name = TopicName.get(message.topic)
        await self._broker.topics.policies.of_topic(name)
        schemas = self._broker.topics.schemas
        schema_id = name.schema_name
        if message.HasField("schema_version"):
            version = message.schema_version
            if not version:
                raise IncompatibleSchema("Empty schema version")
            if len(version) < VERSION_BYTES:
                raise UnknownError(f"A schema version has {VERSION_BYTES} bytes.")
            number = int.from_bytes(version[:VERSION_BYTES], "big", signed=True)
            found = await schemas.get(schema_id, number)
        else:
            found = await schemas.latest(schema_id)
        if found is None:
            raise TopicNotFound(f"Topic not found or no-schema {message.topic}")
        schema = found.schema
        connection.send_frame(
            replies.schema(
                message.request_id,
                schema_id,
                (int(schema.type), schema.data, schema.properties),
                version_bytes(found.version),
            )
        )

    async def handle_get_or_create_schema(self, connection: Connection, message: Any) -> None:
        """GET_OR_CREATE_SCHEMA: register a further schema of an open topic's producer."""
        name = TopicName.get(message.topic)
        try:
            topic = await self._broker.topics.loader.get(name, create=False)
        except TopicNotFound:
            raise TopicNotFound(f"Topic not found {message.topic}") from None
        sent = message.schema
        version = await self._version(topic, sent if sent.type != NONE else None)
        connection.send_frame(replies.schema_version(message.request_id, version))

    # --- for other commands -------------------------------------------------------------------

    async def of_producer(self, topic: Topic, message: Any) -> bytes:
        """Return the version of a PRODUCER's schema, which is registered if it is new."""
        return await self._version(topic, message.schema if message.HasField("schema") else None)

    async def check_consumer(self, topic: Topic, message: Any) -> None:
        """Raise IncompatibleSchema for a SUBSCRIBE whose schema the topic cannot have. The schema
        of the first user of a topic is registered.
        """
        if not message.HasField("schema") or message.schema.type == AUTO_CONSUME:
            return
        schema, schemas = _schema_of(message.schema), self._broker.topics.schemas
        schema_id = topic.name.schema_name
        rules = self._rules(topic)
        if await schemas.has_schema(schema_id) or _is_in_use(topic):
            await schemas.check_consumer(schema_id, schema, rules.strategy)
        else:
            await schemas.find_or_create(schema_id, schema, rules)

    async def _version(self, topic: Topic, sent: Any) -> bytes:
        schema_id = topic.name.schema_name
        if sent is None:
            if self._wants_schema(topic) and await self._broker.topics.schemas.has_schema(
                schema_id
            ):
                raise IncompatibleSchema(
                    "Producers cannot connect or send message without a schema to topics with a"
                    " schemawhen SchemaValidationEnforced is enabled"
                )
            return NO_SCHEMA
        from pyxbroker.schemas.values import version_bytes

        schemas, rules = self._broker.topics.schemas, self._rules(topic)
        topic.check_open()
        return version_bytes(await schemas.find_or_create(schema_id, _schema_of(sent), rules))

    def _wants_schema(self, topic: Topic) -> bool:
        """Return True if producers need a schema once the topic has one."""
        return topic.policies.schema_validation or self._broker.config.isSchemaValidationEnforced

    @staticmethod
    def _rules(topic: Topic) -> Rules:
        from pyxbroker.schemas.registry import Rules

        policies = topic.policies
        return Rules(
            policies.schema_strategy, policies.schema_auto_update, check_open=topic.check_open
        )


def _schema_of(sent: Any) -> Schema:
    """Convert the schema that a client sent."""
    from pyxbroker.schemas.values import Schema, SchemaType

    properties = {each.key: each.value for each in sent.properties}
    return Schema(SchemaType(sent.type), sent.schema_data, tuple(properties.items()))


def _is_in_use(topic: Topic) -> bool:
    """Return True if a topic has, or may have, messages without a schema."""
    if topic.producers or topic.storage_size:
        return True
    if not topic.name.is_persistent and topic.received()[0]:
        return True
    return topic.consumer_count > topic.auto_consumer_count


def get_schema_failed(message: Any, reported: PulsarError) -> bytes:
    """Return the GET_SCHEMA_RESPONSE with an error."""
    return replies.schema_failed(message.request_id, reported.code, str(reported))


def get_or_create_failed(message: Any, reported: PulsarError) -> bytes:
    """Return the GET_OR_CREATE_SCHEMA_RESPONSE with an error."""
    return replies.schema_version_failed(message.request_id, reported.code, str(reported))
