"""/admin/v2/namespaces/.../allowedTopicPropertyKeysForMetrics: stored for Pulsar's brokers.

In Pulsar, these properties become labels of a topic's series if a setting enables that. This broker
does not have the setting; a Pulsar without it stores the names without effect, too.
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
    """Return the names of the properties."""
    found = (await record_of(request)).get(FIELD)
    return Response.empty() if found is None else Response.json(found)


async def set_keys(request: Request) -> Response:
    """Set the properties that may become labels."""
    if not await has_body(request):
        await check_namespace(request, namespace_of(request), NO_NAMESPACE)
    keys = texts_of(await read_json(request), "The body", KEYS_MAX, KEY_BYTES_MAX)

    def change(fields: Fields) -> None:
        fields[FIELD] = keys

    await change_record(request, change)
    return Response.empty()


async def remove_keys(request: Request) -> Response:
    """Remove the names of the properties."""
    await change_record(request, lambda fields: fields.pop(FIELD, None))
    return Response.empty()


ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_keys,
        READ_METRIC_LABELS,
        "The properties of topics that may become labels of their metrics.",
        Answer("The names; 204 if they are not set.", STRINGS),
        namespace_name_of,
    ),
    Endpoint(
        "POST",
        PATH,
        set_keys,
        WRITE_METRIC_LABELS,
        "Sets the properties of topics that may become labels of their metrics; stored without "
        "effect.",
        resource=namespace_name_of,
        content=Content("The names.", {"application/json": STRINGS}, required=True),
    ),
    Endpoint(
        "DELETE",
        PATH,
        remove_keys,
        WRITE_METRIC_LABELS,
        "Removes the properties of topics that may become labels of their metrics.",
        resource=namespace_name_of,
    ),
)
