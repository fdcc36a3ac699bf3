""".../entryFilters of namespaces and topics: answers like a Pulsar without installed filters.

Entry filters are Java programs, so that this broker has none.
"""

from __future__ import annotations

from typing import Any

from pyxbroker.admin.policy_bodies import Field
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import (
    NO_NAMESPACE,
    check_namespace,
    namespace_name_of,
    namespace_of,
    read_json,
    topic_of,
)
from pyxbroker.admin.resources.policies import APPLIED, IS_GLOBAL, NAMESPACE, TOPIC
from pyxbroker.admin.resources.topic_work import check_topic
from pyxbroker.auth.authorization import TENANT_ADMIN, Right, Scope
from pyxbroker.web.endpoint import Answer, Content, Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

SEGMENT = "entryFilters"
NAMES = "entryFilterNames"
NONE: dict[str, Any] = {NAMES: ""}
BODY_BYTES_MAX = 16 << 10
FILTERS = {"type": "object", "properties": {NAMES: {"type": "string"}}}


async def get_of_namespace(request: Request) -> Response:
    """Answer that a namespace has no filters."""
    await check_namespace(request, namespace_of(request), NO_NAMESPACE)
    return Response.empty()


async def set_of_namespace(request: Request) -> Response:
    """Refuse all filters, since none is installed."""
    await _refuse_names(request)
    await check_namespace(request, namespace_of(request), NO_NAMESPACE)
    return Response.empty()


async def remove_of_namespace(request: Request) -> Response:
    """Do nothing: a namespace has no filters."""
    await check_namespace(request, namespace_of(request), NO_NAMESPACE)
    return Response.empty()


async def get_of_topic(request: Request) -> Response:
    """Answer that a topic has no filters."""
    await check_topic(request, topic_of(request))
    return Response.json(NONE) if request.argument("applied") else Response.empty()


async def set_of_topic(request: Request) -> Response:
    """Refuse all filters, since none is installed."""
    await check_topic(request, topic_of(request))
    await _refuse_names(request)
    return Response.empty()


async def remove_of_topic(request: Request) -> Response:
    """Do nothing: a topic has no filters."""
    await check_topic(request, topic_of(request))
    return Response.empty()


async def _refuse_names(request: Request) -> None:
    """Raise HttpError 400 for a body with or without names; accept an empty body."""
    body = await read_json(request)
    if body is None:
        return
    if not isinstance(body, dict):
        raise HttpError(400, f"The body must be a JSON object, not {body!r:.100}.")
    names = Field("string").read(body.get(NAMES), NAMES)
    if not names or not names.strip():
        raise HttpError(
            400, f"{NAMES} can't be empty. To remove entry filters use the remove method."
        )
    raise HttpError(400, f"Entry filter '{names.split(',')[0].strip():.100}' not found")


def _rows(prefix: str) -> tuple[Endpoint, ...]:
    is_topic = prefix == TOPIC
    scope = Scope.TOPIC_POLICY if is_topic else Scope.NAMESPACE_POLICY
    resource = topic_of if is_topic else namespace_name_of
    get, put, remove = (
        (get_of_topic, set_of_topic, remove_of_topic)
        if is_topic
        else (get_of_namespace, set_of_namespace, remove_of_namespace)
    )
    read = Right(scope, "READ ENTRY_FILTERS", (TENANT_ADMIN,))
    write = Right(scope, "WRITE ENTRY_FILTERS", (TENANT_ADMIN,))
    query = (IS_GLOBAL,) if is_topic else ()
    content = Content("Names of filters.", {"application/json": FILTERS}, bytes_max=BODY_BYTES_MAX)
    path, whose = prefix + SEGMENT, "a topic" if is_topic else "a namespace"
    return (
        Endpoint(
            *("GET", path, get, read, f"Returns which entry filters {whose} has."),
            Answer("The filters; 204 if they are not set.", FILTERS),
            resource,
            (APPLIED, *query) if is_topic else (),
        ),
        Endpoint(
            *(
                "POST",
                path,
                put,
                write,
                f"Sets which entry filters {whose} has; a broker without filters refuses all.",
            ),
            resource=resource,
            query=query,
            content=content,
        ),
        Endpoint(
            *(
                "DELETE",
                path,
                remove,
                write,
                f"Removes {whose}'s policy: which entry filters it has.",
            ),
            resource=resource,
            query=query,
        ),
    )


OF_NAMESPACES = _rows(NAMESPACE)
OF_TOPICS = _rows(TOPIC)
