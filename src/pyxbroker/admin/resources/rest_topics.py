"""/topics: publishes messages by REST, as Pulsar's Topics does.

Each message becomes one entry, which is durable before the answer. The result of a message that
cannot be published has its error; the other messages are published.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from pyxbroker.admin.fan_out import ask, elsewhere
from pyxbroker.admin.owners import redirection
from pyxbroker.admin.policy_bodies import Field
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import (
    check_length,
    check_not_system,
    read_json,
    strings_of,
    texts_of,
    topic_of,
)
from pyxbroker.auth.authorization import PRODUCE_TO_TOPIC
from pyxbroker.base import limits
from pyxbroker.base.clock import wall_s
from pyxbroker.base.errors import IncompatibleSchema, NamespaceNotFound, PulsarError, TopicNotFound
from pyxbroker.base.java_hash import java_hash
from pyxbroker.base.json_weight import TOKENS_MAX, parse_light
from pyxbroker.base.sliced_json import to_json_in_slices
from pyxbroker.base.slices import Slices, in_slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.lookup import Redirect
from pyxbroker.broker.peers import topic_path
from pyxbroker.broker.topics.messages import write_message
from pyxbroker.broker.topics.partition_nodes import for_each
from pyxbroker.broker.topics.system_messages import Publication
from pyxbroker.policies.shapes import LONG_MAX
from pyxbroker.schemas.registry import Rules
from pyxbroker.schemas.texts import ENCODERS, encode_json
from pyxbroker.schemas.values import SCHEMA_BYTES_MAX, Schema, SchemaType, version_bytes
from pyxbroker.web.coercion import is_null, to_boolean, to_integer, to_text
from pyxbroker.web.endpoint import Answer, Content, Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

if TYPE_CHECKING:
    from pyxbroker.broker.topics.topic import Topic

ONE = "/topics/{domain}/{tenant}/{namespace}/{topic}"
MESSAGES_MAX = 1_000
BODY_BYTES_MAX = 6 << 20  # the largest message with its metadata
CLUSTERS_MAX = 100
KEY_PIECE = 4 << 10  # characters of a key that are hashed in one step
DEFINITION_CHARACTERS_MAX = -(-SCHEMA_BYTES_MAX // 3) * 4  # of base64
FAILED = 2  # Pulsar's PersistenceError, used for all reasons
NOT_REPLICATED = "__local__"
PRODUCER = "RestProducer"
STRING = Schema(SchemaType.STRING, b"", (("__charset", "UTF-8"),))

Json = dict[str, Any]


class Refused(Exception):
    """The reason why one message cannot be published."""


Others = dict[int, Redirect]  # the owners of partitions that this broker does not own
Part = list[tuple[Json, Json]]  # the messages of such a partition, each with its result
Encode = Callable[[str], Awaitable[bytes]]  # raises ValueError


class Encoder(NamedTuple):
    """The encoding of a request's payloads."""

    version: int  # of their schema
    encode: Encode


async def publish_messages(request: Request) -> Response:
    """Publish to a topic; to partitions in rotation, or by the key of a message.

    The owners of other partitions publish their messages. A broker without a partition redirects.
    """
    name = _topic_name(request)
    count = await _partitions(request, name)
    others: Others = {}
    may_be_elsewhere = range(count) if request.app.broker.peers is not None else ()
    async for index in in_slices(may_be_elsewhere):
        to = await elsewhere(request, name.partition(index))
        if to is not None:
            others[index] = to
    if count and len(others) == count:
        raise redirection(request, others[0], [])
    return await _publish(request, name, count, others)


async def publish_to_partition(request: Request) -> Response:
    """Publish to one partition of a topic."""
    name, number = _topic_name(request), request.parameters["partition"]
    count = await _partitions(request, name)
    if number >= count:
        raise _missing(name.partition(number) if count else name)
    return await _publish(request, name.partition(number), 0, {})


def _topic_name(request: Request) -> TopicName:
    name = topic_of(request)
    check_not_system(name, "Publishing by REST")
    return name


async def _partitions(request: Request, name: TopicName) -> int:
    """Return the number of partitions of a topic. Raises HttpError 404 if it does not exist."""
    topics = request.app.broker.topics
    try:
        await topics.policies.of_topic(name)
    except NamespaceNotFound:
        raise HttpError(404, "Fail to publish message: Namespace not found") from None
    count: int = (await topics.partitions.read(name)).partitions
    if not count and not await topics.registry.exists(name):
        raise _missing(name)
    return count


def _missing(name: TopicName) -> HttpError:
    return HttpError(404, f"Fail to publish message: Topic {name} not found")


_TEXT = Field("string")


async def _publish(
    request: Request, partitioned: TopicName, count: int, others: Others
) -> Response:
    """Publish to `count` partitions of a topic; 0 means to the topic itself."""
    body = await read_json(request)
    if not isinstance(body, dict):
        raise HttpError(400, f"The body must be a JSON object, not {body!r:.100}.")
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise HttpError(400, "messages must be a list of objects.")
    if len(messages) > MESSAGES_MAX:
        raise HttpError(400, f"{len(messages)} messages are more than the {MESSAGES_MAX} allowed.")
    producer = _TEXT.read(body.get("producerName"), "producerName") or PRODUCER
    check_length("producerName", producer, limits.PRODUCER_BYTES_MAX, 400)
    own = next((index for index in range(count) if index not in others), 0)
    first = _partition_of(partitioned, count, own)
    opened: dict[TopicName, Topic] = {first: await _load(request, first)}
    encoder = await _encoder(request, opened[first], body)
    bytes_max = request.app.broker.config.maxMessageSize
    results: list[Json] = []
    slices = Slices()
    waiting: list[tuple[Publication, TopicName, Json]] = []
    parts: dict[int, Part] = {}
    async for number, message in in_slices(enumerate(messages), slices):
        name = _partition_of(partitioned, count, number)
        result: Json = {}
        results.append(result)
        try:
            name = await _target_of(partitioned, count, message, number, slices)
            if name.partition_index in others:
                parts.setdefault(name.partition_index, []).append((message, result))
                continue
            if name not in opened:
                opened[name] = await _load(request, name)
            entry = await _entry(message, producer, encoder)
            if len(entry) > bytes_max:
                raise Refused("Exceed maximum message size")
            waiting.append((Publication(opened[name], entry), name, result))
        except (Refused, PulsarError, HttpError) as error:
            result.update(_failure(error, name, encoder.version))
    async for publication, name, result in in_slices(waiting, slices):
        result.update(await _result(publication, name, encoder.version))

    async def send(index: int) -> None:
        name = partitioned.partition(index)
        await _send(request, body, name, others[index], parts[index], encoder.version)

    await for_each(parts, send)
    return await Response.long_json(
        {"messagePublishResults": results, "schemaVersion": encoder.version}
    )


async def _send(
    request: Request, body: Json, name: TopicName, to: Redirect, part: Part, version: int
) -> None:
    """Let the owner of a partition publish messages, and take over their results."""
    asked = await to_json_in_slices(body | {"messages": [message for message, _ in part]})
    topic = topic_path(TopicName.get(name.partitioned_topic_name))
    target = f"/topics{topic.removeprefix('/admin/v2')}/partitions/{name.partition_index}"
    try:
        answer = await ask(request, to, target, body=asked)
        for (_, result), published in zip(part, answer["messagePublishResults"], strict=True):
            result.update(published)
    except (PulsarError, HttpError) as error:
        for _, result in part:
            result.update(_failure(error, name, version))


async def _load(request: Request, name: TopicName) -> Topic:
    """Open a topic for publishing.

    Raises HttpError 404, and PulsarError if producers are refused.
    """
    try:
        # A partition within its topic's count exists, or is created now.
        topics = request.app.broker.topics
        topic: Topic = await (
            topics.loader.ensure(name)
            if name.is_partitioned
            else topics.loader.get(name, create=False)
        )
    except TopicNotFound:
        raise _missing(name) from None
    await topic.check_quotas()
    return topic


def _partition_of(partitioned: TopicName, count: int, number: int) -> TopicName:
    """Return the partition for a number; the topic itself if it has no partitions."""
    return partitioned.partition(number % count) if count else partitioned


async def _target_of(
    partitioned: TopicName, count: int, message: Json, number: int, slices: Slices
) -> TopicName:
    """Return the partition of a message, chosen as Pulsar's clients do: by key, or in rotation.

    Raises HttpError for a key that is too long, also without partitions.
    """
    key = message.get("key")
    if not isinstance(key, str) or not key:
        return _partition_of(partitioned, count, number)
    check_length("key", key, limits.TEXT_BYTES_MAX, 400)
    if not count:
        return partitioned
    found = 0
    async for at in in_slices(range(0, len(key), KEY_PIECE), slices):
        found = java_hash(key[at : at + KEY_PIECE], found)
    return _partition_of(partitioned, count, found)


async def _result(publication: Publication, name: TopicName, version: int) -> Json:
    try:
        ledger_id, entry_id = await publication.position()
    except PulsarError as error:
        return _failure(error, name, version)
    return {
        "messageId": f"{ledger_id}:{entry_id}:{name.partition_index}",
        "errorCode": 0,
        "schemaVersion": version,
    }


def _failure(error: Exception, name: TopicName, version: int) -> Json:
    return {
        "errorMsg": str(error),
        "messageId": str(name.partition_index),
        "errorCode": FAILED,
        "schemaVersion": version,
    }


# --- schemas ----------------------------------------------------------------------------------


_LONG = Field("integer", 0, maximum=LONG_MAX)


async def _encoder(request: Request, topic: Topic, body: Json) -> Encoder:
    """Return the encoder for the schema version or schema of a body; texts by default.

    Raises HttpError for an unknown version, and 409 for an incompatible schema.
    """
    schemas = request.app.broker.topics.schemas
    schema_id = topic.name.schema_name
    version = -1
    if "schemaVersion" in body:
        version = _LONG.read(body["schemaVersion"], "schemaVersion")
    if body.get("keySchema"):
        raise HttpError(400, "Messages with a keySchema cannot be published by REST.")
    if version >= 0:
        found = await schemas.get(schema_id, version)
        if found is None or found.deleted:
            raise HttpError(404, f"Fail to publish message: there is no schema {version}")
        schema = found.schema
    else:
        schema = await _value_schema(body.get("valueSchema"))
        policies = topic.policies
        rules = Rules(
            policies.schema_strategy, policies.schema_auto_update, check_open=topic.check_open
        )
        _encoder_of(schema)
        try:
            version = await schemas.find_or_create(schema_id, schema, rules)
        except IncompatibleSchema as error:
            raise HttpError(409, f"Fail to publish message: {error}") from None
    return Encoder(version, _encoder_of(schema))


def _encoder_of(schema: Schema) -> Encode:
    if schema.type is SchemaType.JSON:
        return encode_json
    encode = ENCODERS.get(schema.type)
    if encode is None:
        kind = schema.type.name
        raise HttpError(400, f"Messages of a schema of type {kind} cannot be published by REST.")

    async def encoded(text: str) -> bytes:
        return encode(text)

    return encoded


async def _value_schema(text: object) -> Schema:
    """Return the schema in the JSON text of a SchemaInfo, whose definition is base64.

    Raises HttpError 400.
    """
    if text is None or text == "":
        return STRING
    try:
        if not isinstance(text, str):
            raise ValueError("it is not a string")
        found = await parse_light(text, TOKENS_MAX)
        if not isinstance(found, dict):
            raise ValueError("it is not an object")
        kind, data = found.get("type"), found.get("schema") or ""
        if not isinstance(data, str):
            raise ValueError("schema is not a string")
        if kind == "BYTES":
            kind = "NONE"
        if not isinstance(kind, str) or kind not in SchemaType.__members__:
            raise ValueError(f"{kind!r:.50} is not a type of a schema")
        if len(data) > DEFINITION_CHARACTERS_MAX:  # decoding blocks the event loop
            raise ValueError(f"schema has more than {SCHEMA_BYTES_MAX} bytes in base64")
        definition = base64.b64decode(data, validate=True)
    except (ValueError, RecursionError, binascii.Error) as error:
        raise HttpError(400, f"valueSchema must be the JSON of a SchemaInfo: {error}.") from None
    properties = tuple(strings_of(found.get("properties"), "properties").items())
    return Schema(SchemaType[kind], definition, properties)


# --- messages ---------------------------------------------------------------------------------


async def _entry(message: Json, producer: str, encoder: Encoder) -> bytes:
    """Return a message as a stored entry. Raises Refused."""
    from pyxbroker.proto import PulsarApi as pb

    now_ms = int(wall_s() * 1000)
    metadata = pb.MessageMetadata(
        producer_name=producer,
        sequence_id=_number(message, "sequenceId", 0),
        publish_time=now_ms,
    )
    if encoder.version >= 0:
        metadata.schema_version = version_bytes(encoder.version)
    key = message.get("key")
    if key is not None:
        metadata.partition_key = _text(key, "key")
    try:
        for name, value in strings_of(message.get("properties"), "properties").items():
            metadata.properties.add(key=name, value=value)
        clusters = message.get("replicationClusters") or []
        clusters = texts_of(clusters, "replicationClusters", CLUSTERS_MAX, limits.CLUSTER_BYTES_MAX)
    except HttpError as error:
        raise Refused(error.reason) from None
    metadata.replicate_to.extend([NOT_REPLICATED] if _is_not_replicated(message) else clusters)
    event_time = _number(message, "eventTime", 0)
    if event_time > 0:
        metadata.event_time = event_time
    deliver_at = _number(message, "deliverAt", 0)
    delay = _number(message, "deliverAfterMs", 0)
    if deliver_at > 0 or delay > 0:
        metadata.deliver_at_time = min(deliver_at if deliver_at > 0 else now_ms + delay, LONG_MAX)
    payload = message.get("payload")
    if payload is None:
        raise Refused("payload is missing.")
    try:
        return write_message(metadata, await encoder.encode(_text(payload, "payload")))
    except ValueError as error:
        raise Refused(f"The payload does not fit the schema: {error}.") from None


def _is_not_replicated(message: Json) -> bool:
    """Return the flag disableReplication. Raises Refused."""
    value = message.get("disableReplication")
    try:
        return not is_null(value) and to_boolean(value)
    except ValueError:
        raise Refused("disableReplication must be true or false.") from None


def _text(value: object, what: str) -> str:
    """Return a string; numbers and booleans as JSON formats them. Raises Refused."""
    try:
        return to_text(value)
    except ValueError:
        raise Refused(f"{what} must be a string.") from None


def _number(message: Json, what: str, default: int) -> int:
    """Return a whole number of 0 or more. Raises Refused."""
    value = message.get(what)
    if is_null(value):
        return default
    try:
        number = to_integer(value, LONG_MAX)
    except ValueError:
        number = -1
    if number < 0:
        raise Refused(f"{what} must be a whole number of 0 or more.")
    return number


MESSAGES = {
    "type": "object",
    "properties": {
        "schemaVersion": {"type": "integer"},
        "valueSchema": {"type": "string"},
        "producerName": {"type": "string"},
        "messages": {"type": "array", "items": {"type": "object"}},
    },
}
RESULTS = {
    "type": "object",
    "properties": {
        "messagePublishResults": {"type": "array", "items": {"type": "object"}},
        "schemaVersion": {"type": "integer"},
    },
}
CONTENT = Content(
    "Pulsar's ProducerMessages.",
    {"application/json": MESSAGES},
    required=True,
    bytes_max=BODY_BYTES_MAX,
)

ENDPOINTS = (
    Endpoint(
        "POST",
        ONE,
        publish_messages,
        PRODUCE_TO_TOPIC,
        "Publishes messages to a topic.",
        Answer("The id of each message, or the reason why it is not published.", RESULTS),
        topic_of,
        content=CONTENT,
    ),
    Endpoint(
        "POST",
        ONE + "/partitions/{partition:int}",
        publish_to_partition,
        PRODUCE_TO_TOPIC,
        "Publishes messages to one partition of a topic.",
        Answer("The id of each message, or the reason why it is not published.", RESULTS),
        topic_of,
        content=CONTENT,
    ),
)
