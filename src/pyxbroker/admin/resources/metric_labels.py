"""/admin/v2/namespaces/.../allowedTopicPropertyKeysForMetrics: kept for Pulsar's brokers.

The properties become labels of a topic's series only where a broker's setting says so, which this
one does not have; without it Pulsar keeps the names, too, and does nothing with them.
"""

from __future__ import annotations

from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import (
    NO_NAMESPACE,
    STRINGS,
    check_namespace,
    has_body,
    namespace_name_of,
    namespace_of,
    read_json,
    texts_of,
)
from pyxbroker.admin.resources.namespaces import ONE, change_record, record_of
from pyxbroker.auth.authorization import READ_METRIC_LABELS, WRITE_METRIC_LABELS
from pyxbroker.policies.records import Fields
from pyxbroker.web.endpoint import Answer, Content, Endpoint
from pyxbroker.web.response import Response

PATH = ONE + "/allowedTopicPropertyKeysForMetrics"
FIELD = "allowed_topic_property_keys_for_metrics"
KEYS_MAX = 100
KEY_BYTES_MAX = 256


async def get_keys(request: Request) -> Response:
    """The names of the properties."""
    found = (await record_of(request)).get(FIELD)
    return Response.empty() if found is None else Response.json(found)


async def set_keys(request: Request) -> Response:
    """Says which properties may become labels."""
    if not await has_body(request):
        await check_namespace(request, namespace_of(request), NO_NAMESPACE)
    keys = texts_of(await read_json(request), "The body", KEYS_MAX, KEY_BYTES_MAX)

    def change(fields: Fields) -> None:
        fields[FIELD] = keys

    await change_record(request, change)
    return Response.empty()


async def remove_keys(request: Request) -> Response:
    """No property may."""
    await change_record(request, lambda fields: fields.pop(FIELD, None))
    return Response.empty()


ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_keys,
        READ_METRIC_LABELS,
        "Which properties of topics may become labels of their metrics.",
        Answer("Their names; 204 when they are not set.", STRINGS),
        namespace_name_of,
    ),
    Endpoint(
        "POST",
        PATH,
        set_keys,
        WRITE_METRIC_LABELS,
        "Says which properties of topics may become labels of their metrics; it is kept only.",
        resource=namespace_name_of,
        content=Content("The names.", {"application/json": STRINGS}, required=True),
    ),
    Endpoint(
        "DELETE",
        PATH,
        remove_keys,
        WRITE_METRIC_LABELS,
        "No property of topics may become a label of their metrics.",
        resource=namespace_name_of,
    ),
)
