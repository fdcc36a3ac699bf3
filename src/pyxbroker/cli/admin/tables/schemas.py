"""Commands about schemas."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from pyxbroker.cli.admin.rows import (
    Encoded,
    delete,
    flag,
    function,
    get,
    json_file,
    option,
    post,
    topic,
)
from pyxbroker.cli.admin.tables.policies import TOPIC
from pyxbroker.client.admin import AdminClient

PATH = "/admin/v2/schemas/{topic}"


def _local(text: str) -> Encoded:
    """Return a topic without its domain, which schemas do not have."""
    return Encoded(topic(text).partition("/")[2])


SCHEMA_TOPIC = TOPIC._replace(convert=_local)


def _schema(text: str) -> dict[str, Any]:
    """Return the content of a file with type, schema and properties."""
    found = json_file(text)
    return {
        "type": found.get("type"),
        "schema": found.get("schema", ""),
        "properties": found.get("properties") or {},
    }


FILE = option(
    "-f --filename",
    'A file with {"type": "AVRO", "schema": "...", "properties": {}}.',
    "=",
    _schema,
    required=True,
)


async def _get(client: AdminClient, values: Namespace) -> Any:
    path = f"/admin/v2/schemas/{values.topic}"
    if values.all_version:
        found = await client.get(f"{path}/schemas")
        return [_info(values.topic, each) for each in found["getSchemaResponses"]]
    if values.version is not None:
        return _info(values.topic, await client.get(f"{path}/schema/{values.version}"))
    found = await client.get(f"{path}/schema")
    return {"version": found["version"], "schemaInfo": _info(values.topic, found)}


def _info(topic: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in the form of pulsar-admin."""
    text = found["data"]
    try:
        schema = json.loads(text) if text else ""
    except ValueError:
        schema = text
    return {
        "name": topic.rpartition("/")[2],
        "schema": schema,
        "type": found["type"],
        "timestamp": found["timestamp"],
        "properties": found["properties"],
    }


COMMANDS = {
    "get": function(
        "Print the schema of a topic.",
        _get,
        SCHEMA_TOPIC,
        option("-v --version", "One version.", "", int),
        flag("-a --all-version", "All versions."),
    )._replace(method="GET"),
    "metadata": get("Print which schemas are stored.", f"{PATH}/metadata", SCHEMA_TOPIC),
    "upload": post("Set the schema of a topic.", f"{PATH}/schema", SCHEMA_TOPIC, FILE)._replace(
        printed=lambda answer: ""
    ),
    "compatibility": post(
        "Check that a schema is compatible.", f"{PATH}/compatibility", SCHEMA_TOPIC, FILE
    ),
    "delete": delete(
        "Delete the schemas of a topic.",
        f"{PATH}/schema",
        SCHEMA_TOPIC,
        flag(
            "-f --force",
            "Delete the stored schemas, too, instead of marking them as deleted.",
            "?force",
        ),
        printed=lambda answer: "",
        destroys="deletes the schemas of {topic}",
    ),
}
