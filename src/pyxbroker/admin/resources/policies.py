"""Shared parts of the policy endpoints of namespaces and topics.

The endpoints are created from the rows of admin/policy_table.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pyxbroker.admin.policy_checks import QUOTA_TYPES, CheckContext, check_fields
from pyxbroker.admin.policy_table import BACKLOG_QUOTA, PolicyEndpoint, Row, complete_quota
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import namespace_name_of, read_json, topic_of
from pyxbroker.auth.authorization import ADMINISTRATE, TENANT_ADMIN, Right, Scope
from pyxbroker.policies.shapes import Level, Path
from pyxbroker.web.coercion import is_null
from pyxbroker.web.endpoint import Answer, Content, Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}/"
TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/"
BODY_BYTES_MAX = 16 << 10  # many times the largest value
NOTHING = (b"", b"null")

APPLIED = Query("applied", "Returns the applied value, whichever level sets it.", False)
IS_GLOBAL = Query("isGlobal", "Uses the record that all clusters share.", False)
QUOTA_TYPE = Query("backlogQuotaType", "Either destination_storage (default) or message_age.")

Fields = dict[str, Any]
Handler = Callable[[Request], Awaitable[Any]]


# --- records --------------------------------------------------------------------------------------


def get_at(fields: Fields, path: Path) -> Any:
    """Return the value at a path of a record, or None."""
    value: Any = fields
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def set_at(fields: Fields, path: Path, value: Any) -> None:
    """Set the value at a path of a record; None removes it."""
    *parents, last = path
    for name in parents:
        found = fields.get(name)
        if not isinstance(found, dict):
            if value is None:
                return
            found = {}
        # Parents are copied: records that were read are shared.
        fields[name] = fields = dict(found)
    if value is None:
        fields.pop(last, None)
    else:
        fields[last] = value


def check_at(request: Request, level: Level, path: Path, value: Any) -> None:
    """Raise HttpError 400 if a policy cannot have a value, independent of the rest of
    the record.
    """
    alone: Fields = {}
    set_at(alone, path, value)
    check_fields(alone, level, request.app.broker.config.clusterName)


def setting(
    request: Request,
    row: Row,
    level: Level,
    path: Path,
    value: Any,
    quota_type: str = QUOTA_TYPES[0],
) -> Callable[[Fields], None]:
    """Return a function that checks a value against a record and sets it. It raises HttpError."""

    def change(fields: Fields) -> None:
        is_topic = level is Level.TOPIC
        row.check(value, CheckContext(request.app.broker.config, fields, is_topic, quota_type))
        check_at(request, level, path, value)
        # An empty list in a topic's record means "not set".
        set_at(fields, path, None if is_topic and value == [] else value)

    return change


async def requested_value(request: Request, row: Row, endpoint: PolicyEndpoint) -> Any:
    """Return the value of a request. Raises HttpError 400."""
    if row.body is None:
        return True
    if not endpoint.query:
        return row.body.read(await read_json(request))
    return row.body.read(request.argument(endpoint.query))


def quota_type_of(found: str | None) -> str:
    """Return the quota type of a request. Raises HttpError 400."""
    if not found:
        return QUOTA_TYPES[0]
    if found not in QUOTA_TYPES:
        raise HttpError(400, f"{QUOTA_TYPE.name} must be one of {', '.join(QUOTA_TYPES)}.")
    return found


# --- the rows -------------------------------------------------------------------------------------


def endpoints(
    row: Row,
    endpoint: PolicyEndpoint,
    prefix: str,
    handlers: tuple[Handler, Handler, Handler],
    *,
    read_segment: str = "",
    query: tuple[Query, ...] = (),
    is_applied: bool = False,
) -> list[Endpoint]:
    """Return the endpoints that read, set and remove a policy at one level.

    The handlers get distinct names, from which the OpenAPI document derives operation ids.
    """
    get, put, remove = handlers
    for verb, handler in zip(("get", "set", "remove"), handlers, strict=True):
        handler.__name__ = f"{verb}_{endpoint.segment.replace('{subName}/', 'subscription_')}"
    if endpoint.null_removes:
        put = _set_or_remove(row, endpoint, put, remove)
    is_topic = prefix == TOPIC
    resource = topic_of if is_topic else namespace_name_of
    read, write = _rights(row, is_topic)
    what = f"{row.about}, for {'a topic' if is_topic else 'the topics of a namespace'}"
    whose = "a topic's" if is_topic else "a namespace's"
    of_records = (IS_GLOBAL,) if is_topic else ()
    reads = (
        *((APPLIED,) if is_topic and (is_applied or row.applied is not None) else ()),
        *of_records,
    )
    sets = (
        (Query(endpoint.query, _about_value(endpoint), is_number=True),) if endpoint.query else ()
    )
    rows = [
        Endpoint(
            "GET",
            prefix + (read_segment or endpoint.segment),
            get,
            read,
            f"Returns {what}.",
            Answer("The value; 204 if it is not set.", _schema(row)),
            resource,
            reads,
        ),
        Endpoint(
            endpoint.method,
            prefix + endpoint.segment,
            put,
            write,
            f"Sets {what}.",
            resource=resource,
            query=(*sets, *query, *of_records),
            content=_content(row, endpoint),
        ),
    ]
    if endpoint.removes:
        rows.append(
            Endpoint(
                "DELETE",
                prefix + endpoint.segment,
                remove,
                write,
                f"Removes {whose} policy: {row.about}.",
                resource=resource,
                query=(*query, *of_records),
            )
        )
    return rows


def _set_or_remove(row: Row, endpoint: PolicyEndpoint, put: Handler, remove: Handler) -> Handler:
    """Return a handler that sets a policy, or removes it if the request has no value."""

    async def handle(request: Request) -> Any:
        if endpoint.query:
            is_nothing = request.argument(endpoint.query) is None
        else:
            text = (await request.read(BODY_BYTES_MAX)).strip()
            is_nothing = text in NOTHING
            # For numbers, booleans and names, some texts count as null.
            if row.body is not None and row.body.value is not None and text.startswith(b'"'):
                is_nothing = is_null(await read_json(request))
        return await (remove if is_nothing else put)(request)

    handle.__name__ = put.__name__
    return handle


def quota_endpoints(
    level: Level,
    endpoint: PolicyEndpoint | None,
    prefix: str,
    get: Handler,
    change: Callable[[Request, Callable[[Fields], None]], Awaitable[Response]],
) -> list[Endpoint]:
    """Return the endpoints of quotas, which are read together and set separately.

    `change` changes the record of a request.
    """
    assert endpoint is not None and BACKLOG_QUOTA.body is not None
    body, (field, *_) = BACKLOG_QUOTA.body, endpoint.path

    async def put(request: Request) -> Response:
        quota_type = quota_type_of(request.argument("backlogQuotaType"))
        value = complete_quota(body.read(await read_json(request)))
        path = (field, quota_type)
        return await change(
            request, setting(request, BACKLOG_QUOTA, level, path, value, quota_type)
        )

    async def remove(request: Request) -> Response:
        path = (field, quota_type_of(request.argument("backlogQuotaType")))
        return await change(request, lambda fields: set_at(fields, path, None))

    handlers = (get, put, remove)
    query = (QUOTA_TYPE,)
    return endpoints(
        BACKLOG_QUOTA, endpoint, prefix, handlers, read_segment="backlogQuotaMap", query=query
    )


def _rights(row: Row, is_topic: bool) -> tuple[Right, Right]:
    """Return the rights to read and to write a policy."""
    if row.right is None:
        return ADMINISTRATE, ADMINISTRATE
    scope = Scope.TOPIC_POLICY if is_topic else Scope.NAMESPACE_POLICY
    return (
        Right(scope, f"READ {row.right}", (TENANT_ADMIN,)),
        Right(scope, f"WRITE {row.right}", (TENANT_ADMIN,)),
    )


def _schema(row: Row) -> dict[str, Any]:
    return {"type": "boolean"} if row.body is None else row.body.schema


def _content(row: Row, endpoint: PolicyEndpoint) -> Content | None:
    """Return the body that carries the value, if there is one."""
    if row.body is None or endpoint.query:
        return None
    types = {"application/json": _schema(row)}
    return Content(
        _about_value(endpoint), types, required=not endpoint.null_removes, bytes_max=BODY_BYTES_MAX
    )


def _about_value(endpoint: PolicyEndpoint) -> str:
    return (
        "The value; without one the policy is removed." if endpoint.null_removes else "The value."
    )
