"""/admin/v2/schemas/...: the schemas of topics, as in Pulsar's SchemasResource."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from pyxbroker.admin.policy_bodies import Field
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import check_namespace, read_json, strings_of
from pyxbroker.auth.authorization import ADMINISTRATE, GET_METADATA, PRODUCE_TO_TOPIC
from pyxbroker.base.compact_json import to_json
from pyxbroker.base.errors import IncompatibleSchema, InvalidTopicName
from pyxbroker.base.json_weight import MANY_TOKENS_MAX, TOKENS_MAX, is_heavy, parse_light
from pyxbroker.base.slices import Slices
from pyxbroker.base.topic_name import PERSISTENT, NamespaceName, TopicName
from pyxbroker.policies.values import Policies
from pyxbroker.schemas.registry import Rules, SchemaRegistry
from pyxbroker.schemas.values import (
    SCHEMA_BYTES_MAX,
    IndexEntry,
    MalformedSchema,
    Schema,
    SchemaType,
    StoredSchema,
    halves,
    key_value_data,
)
from pyxbroker.web.endpoint import Answer, Content, Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import JSON, Response

TOPIC = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
BYTES = "BYTES"
# A definition is a text in JSON; in the worst case each byte is escaped.
BODY_BYTES_MAX = 6 * SCHEMA_BYTES_MAX + (1 << 20)

NUMBER = {"type": "integer"}
TEXT = {"type": "string"}
SCHEMA = {
    "type": "object",
    "properties": {
        "type": TEXT,
        "schema": TEXT,
        "properties": {"type": "object", "additionalProperties": TEXT},
    },
}
STORED = {
    "type": "object",
    "properties": {
        "version": NUMBER,
        "type": TEXT,
        "timestamp": NUMBER,
        "data": TEXT,
        "properties": {"type": "object", "additionalProperties": TEXT},
    },
}
VERSION = {"type": "object", "properties": {"version": NUMBER}}
CONTENT = Content(
    "Type, definition and properties.",
    {"application/json": SCHEMA},
    required=True,
    bytes_max=BODY_BYTES_MAX,
)


def topic_of(request: Request) -> TopicName:
    """Return the topic of a path. Both domains share schemas. Raises HttpError 412."""
    parts = request.parameters
    try:
        namespace = NamespaceName(parts["tenant"], parts["namespace"])
        name = TopicName(PERSISTENT, namespace, parts["topic"])
        if request.method != "DELETE":
            name.check_length()
    except InvalidTopicName:
        raise HttpError(412, "Topic name is not valid") from None
    return name


# --- reading ----------------------------------------------------------------------------------


async def get_schema(request: Request) -> Response:
    """Return the newest version."""
    name, schemas = await _topic_and_registry(request)
    return await _answer(await schemas.latest(name.schema_name))


async def get_version(request: Request) -> Response:
    """Return one version."""
    name, schemas = await _topic_and_registry(request)
    return await _answer(await schemas.get(name.schema_name, request.parameters["version"]))


async def get_all(request: Request) -> Response:
    """Return all versions since the last deletion."""
    name, schemas = await _topic_and_registry(request)
    # Errors of reading are raised before the answer begins.
    await schemas.has_schema(name.schema_name)
    return Response(_pieces(schemas, name.schema_name), JSON)


async def _pieces(schemas: SchemaRegistry, schema_id: str) -> AsyncIterator[bytes]:
    separator = b'{"getSchemaResponses":['
    async for each in schemas.every(schema_id):
        yield separator + to_json(await _json_of(each))
        separator = b","
    yield separator + b"]}" if separator != b"," else b"]}"


async def get_metadata(request: Request) -> Response:
    """Return the positions at which the versions are stored."""
    name, schemas = await _topic_and_registry(request)
    entries = await schemas.index(name.schema_name)
    if not entries:
        raise HttpError(404, "Schema metadata not found")
    return Response.json(
        {"info": _place_of(entries[-1]), "index": [_place_of(each) for each in entries]}
    )


async def find_version(request: Request) -> Response:
    """Return the version that has a definition."""
    name, schemas = await _topic_and_registry(request)
    schema = await _schema_of(await read_json(request))
    return Response.json({"version": await schemas.find(name.schema_name, schema)})


# --- changing ---------------------------------------------------------------------------------


async def upload(request: Request) -> Response:
    """Register a schema, even if clients may not."""
    name, schemas = await _topic_and_registry(request)
    schema = await _schema_of(await read_json(request))
    policies = await _policies(request, name)
    rules = Rules(policies.schema_strategy, user=request.principal.role or "")
    version = await schemas.find_or_create(name.schema_name, schema, rules)
    return Response.json({"version": {"version": version}})


async def compatibility(request: Request) -> Response:
    """Check whether a schema is compatible with those of a topic."""
    name, schemas = await _topic_and_registry(request)
    schema = await _schema_of(await read_json(request))
    strategy = (await _policies(request, name)).schema_strategy
    try:
        await schemas.check(name.schema_name, schema, strategy)
    except IncompatibleSchema as error:
        raise HttpError(500, str(error)) from None
    return Response.json(
        {"compatibility": True, "schemaCompatibilityStrategy": strategy}, status=202
    )


async def delete(request: Request) -> Response:
    """Delete a schema by adding a tombstone version; with force, delete all stored versions."""
    name, schemas = await _topic_and_registry(request)
    if request.argument("force"):
        await schemas.delete_storage(name.schema_name)
        return Response.json({"version": -1})
    version = await schemas.delete(name.schema_name, request.principal.role or "")
    return Response.json({"version": version})


# --- helpers ----------------------------------------------------------------------------------


async def _topic_and_registry(request: Request) -> tuple[TopicName, SchemaRegistry]:
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    return name, request.app.broker.topics.schemas


async def _policies(request: Request, name: TopicName) -> Policies:
    policies: Policies = await request.app.broker.topics.policies.of_topic(name)
    return policies


_TEXT = Field("string")


async def _schema_of(value: object) -> Schema:
    """Return the schema of a body. Raises HttpError."""
    if not isinstance(value, dict):
        raise HttpError(400, f"The body must be a JSON object, not {value!r:.100}.")
    kind, text = (_TEXT.read(value.get(name), name) for name in ("type", "schema"))
    text = text or ""
    if kind != BYTES and kind not in SchemaType.__members__:
        raise HttpError(422, f"type must be a type of a schema, not {kind!r:.100}.")
    found = SchemaType.NONE if kind == BYTES else SchemaType[kind]
    properties = tuple(strings_of(value.get("properties"), "properties").items())
    try:
        data = text.encode()
        if found is SchemaType.KEY_VALUE:
            data = await _key_value_data(text)
    except (ValueError, RecursionError) as error:
        raise HttpError(422, f"Invalid schema definition data for {kind} schema: {error}") from None
    return Schema(found, data, properties)


async def _key_value_data(text: str) -> bytes:
    """Return the definition of a KEY_VALUE schema from {"key": ..., "value": ...}.

    Raises ValueError.
    """
    value = await parse_light(text, MANY_TOKENS_MAX)
    if not isinstance(value, dict) or not {"key", "value"} <= value.keys():
        raise ValueError("it has no key and value")
    key, of_value = (
        each.encode() if isinstance(each, str) else to_json(each)
        for each in (value["key"], value["value"])
    )
    return key_value_data(key, of_value)


async def _answer(found: StoredSchema | None) -> Response:
    if found is None or found.deleted:
        raise HttpError(404, "Schema not found")
    return Response.json(await _json_of(found))


async def _json_of(stored: StoredSchema) -> dict[str, Any]:
    schema = stored.schema
    return {
        "version": stored.version,
        "type": schema.type.name,
        "timestamp": stored.timestamp_ms,
        "data": await _text_of(schema),
        "properties": dict(schema.properties),
    }


async def _text_of(schema: Schema) -> str:
    """Return a definition as Pulsar's clients parse it.

    Key and value definitions that are not JSON, or have more tokens than an Avro schema may have,
    are returned as text.
    """
    if schema.type is not SchemaType.KEY_VALUE:
        return schema.data.decode(errors="replace")
    slices = Slices()
    try:
        of_key, of_value = halves(schema)
    except MalformedSchema:
        return schema.data.decode(errors="replace")
    key = await _definition_json(of_key)
    await slices.pause()
    value = await _definition_json(of_value)
    await slices.pause()
    return to_json({"key": key, "value": value}).decode()


async def _definition_json(schema: Schema) -> Any:
    text = schema.data.decode(errors="replace")
    if await is_heavy(schema.data, TOKENS_MAX):
        return text
    try:
        return json.loads(text) if text else ""
    except (ValueError, RecursionError):
        return text


def _place_of(entry: IndexEntry) -> dict[str, int]:
    return {"ledgerId": entry.ledger_id, "entryId": entry.entry_id, "version": entry.version}


ENDPOINTS = (
    Endpoint(
        "GET",
        TOPIC + "/schema",
        get_schema,
        GET_METADATA,
        "Returns the newest schema of a topic.",
        Answer("The schema.", STORED),
        topic_of,
    ),
    Endpoint(
        "GET",
        TOPIC + "/schema/{version:long}",
        get_version,
        GET_METADATA,
        "Returns one version of a topic's schema.",
        Answer("The schema.", STORED),
        topic_of,
    ),
    Endpoint(
        "GET",
        TOPIC + "/schemas",
        get_all,
        GET_METADATA,
        "Returns all versions of a topic's schema since its last deletion.",
        Answer(
            "The schemas.",
            {
                "type": "object",
                "properties": {"getSchemaResponses": {"type": "array", "items": STORED}},
            },
        ),
        topic_of,
    ),
    Endpoint(
        "GET",
        TOPIC + "/metadata",
        get_metadata,
        GET_METADATA,
        "Returns the positions at which the versions of a topic's schema are stored.",
        Answer("Pulsar's SchemaMetadata.", {"type": "object"}),
        topic_of,
    ),
    Endpoint(
        "POST",
        TOPIC + "/version",
        find_version,
        GET_METADATA,
        "Returns the version of a topic's schema that has a definition.",
        Answer("The version, or -1.", VERSION),
        topic_of,
        content=CONTENT,
    ),
    Endpoint(
        "POST",
        TOPIC + "/schema",
        upload,
        PRODUCE_TO_TOPIC,
        "Registers a schema for a topic.",
        Answer("Its version.", {"type": "object", "properties": {"version": VERSION}}),
        topic_of,
        content=CONTENT,
    ),
    Endpoint(
        "POST",
        TOPIC + "/compatibility",
        compatibility,
        ADMINISTRATE,
        "Checks whether a schema is compatible with those of a topic.",
        Answer(
            "It is compatible.",
            {
                "type": "object",
                "properties": {
                    "compatibility": {"type": "boolean"},
                    "schemaCompatibilityStrategy": TEXT,
                },
            },
            status=202,
        ),
        topic_of,
        content=CONTENT,
    ),
    Endpoint(
        "DELETE",
        TOPIC + "/schema",
        delete,
        ADMINISTRATE,
        "Deletes a topic's schema.",
        Answer("The tombstone version; -1 with force.", VERSION),
        topic_of,
        query=(Query("force", "Deletes all stored versions; numbering starts again.", False),),
    ),
)
