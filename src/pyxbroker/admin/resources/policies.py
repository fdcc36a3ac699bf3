"""What the policies of namespaces and of topics have in common in REST.

Their endpoints are made of the rows of admin/policy_table.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pyxbroker.admin.policy_checks import QUOTA_TYPES, Asked, check_fields
from pyxbroker.admin.policy_table import BACKLOG_QUOTA, Face, Row, whole_quota
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

APPLIED = Query("applied", "What holds is told, whichever level says it.", False)
IS_GLOBAL = Query("isGlobal", "Of the record that all clusters share.", False)
QUOTA_TYPE = Query(
    "backlogQuotaType", "Either destination_storage, which it is without, or message_age."
)

Fields = dict[str, Any]
Handler = Callable[[Request], Awaitable[Any]]


# --- records --------------------------------------------------------------------------------------


def get_at(fields: Fields, path: Path) -> Any:
    """What a record has at a path; None when it is nothing, or is not there."""
    value: Any = fields
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def set_at(fields: Fields, path: Path, value: Any) -> None:
    """Changes a record; None removes what is there."""
    *parents, last = path
    for name in parents:
        found = fields.get(name)
        if not isinstance(found, dict):
            if value is None:
                return
            found = {}
        # A record that is read is not changed itself.
        fields[name] = fields = dict(found)
    if value is None:
        fields.pop(last, None)
    else:
        fields[last] = value


def check_at(request: Request, level: Level, path: Path, value: Any) -> None:
    """Whether a policy can be what a value says at a path of a record, whatever else that says.
    Raises HttpError 400.
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
    """What checks a value against a record of a level, and sets it there. It raises HttpError."""

    def change(fields: Fields) -> None:
        is_topic = level is Level.TOPIC
        row.check(value, Asked(request.app.broker.config, fields, is_topic, quota_type))
        check_at(request, level, path, value)
        # A topic whose list is empty says nothing.
        set_at(fields, path, None if is_topic and value == [] else value)

    return change


async def asked_for(request: Request, row: Row, face: Face) -> Any:
    """The value that a request brings. Raises HttpError 400."""
    if row.body is None:
        return True
    if not face.query:
        return row.body.read(await read_json(request))
    return row.body.read(request.argument(face.query))


def quota_type_of(found: str | None) -> str:
    """Which of the two quotas a request is about. Raises HttpError 400."""
    if not found:
        return QUOTA_TYPES[0]
    if found not in QUOTA_TYPES:
        raise HttpError(400, f"{QUOTA_TYPE.name} must be one of {', '.join(QUOTA_TYPES)}.")
    return found


# --- the rows -------------------------------------------------------------------------------------


def endpoints(
    row: Row,
    face: Face,
    prefix: str,
    handlers: tuple[Handler, Handler, Handler],
    *,
    read_segment: str = "",
    query: tuple[Query, ...] = (),
    is_applied: bool = False,
) -> list[Endpoint]:
    """To read, to set and to remove a policy at one level.

    The handlers get names of their own: the OpenAPI document tells operations apart by them.
    """
    get, put, remove = handlers
    for verb, handler in zip(("get", "set", "remove"), handlers, strict=True):
        handler.__name__ = f"{verb}_{face.segment.replace('{subName}/', 'subscription_')}"
    if face.nothing_removes:
        put = _set_or_remove(row, face, put, remove)
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
    sets = (Query(face.query, _about_value(face), is_number=True),) if face.query else ()
    rows = [
        Endpoint(
            "GET",
            prefix + (read_segment or face.segment),
            get,
            read,
            f"Tells {what}.",
            Answer("The value; 204 when it is not set.", _schema(row)),
            resource,
            reads,
        ),
        Endpoint(
            face.method,
            prefix + face.segment,
            put,
            write,
            f"Sets {what}.",
            resource=resource,
            query=(*sets, *query, *of_records),
            content=_content(row, face),
        ),
    ]
    if face.removes:
        rows.append(
            Endpoint(
                "DELETE",
                prefix + face.segment,
                remove,
                write,
                f"Removes {whose} policy that says {row.about}.",
                resource=resource,
                query=(*query, *of_records),
            )
        )
    return rows


def _set_or_remove(row: Row, face: Face, put: Handler, remove: Handler) -> Handler:
    """Sets a policy, or removes it where there is no value."""

    async def handle(request: Request) -> Any:
        if face.query:
            is_nothing = request.argument(face.query) is None
        else:
            text = (await request.read(BODY_BYTES_MAX)).strip()
            is_nothing = text in NOTHING
            # Where a number, a truth value or a name is wanted, some texts stand for nothing.
            if row.body is not None and row.body.value is not None and text.startswith(b'"'):
                is_nothing = is_null(await read_json(request))
        return await (remove if is_nothing else put)(request)

    handle.__name__ = put.__name__
    return handle


def quota_endpoints(
    level: Level,
    face: Face | None,
    prefix: str,
    get: Handler,
    change: Callable[[Request, Callable[[Fields], None]], Awaitable[Response]],
) -> list[Endpoint]:
    """The same for the quotas, which are read together and set one by one; `change` changes the
    record of a request.
    """
    assert face is not None and BACKLOG_QUOTA.body is not None
    body, (field, *_) = BACKLOG_QUOTA.body, face.path

    async def put(request: Request) -> Response:
        quota_type = quota_type_of(request.argument("backlogQuotaType"))
        value = whole_quota(body.read(await read_json(request)))
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
        BACKLOG_QUOTA, face, prefix, handlers, read_segment="backlogQuotaMap", query=query
    )


def _rights(row: Row, is_topic: bool) -> tuple[Right, Right]:
    """To read a policy, and to write it."""
    if row.right is None:
        return ADMINISTRATE, ADMINISTRATE
    scope = Scope.TOPIC_POLICY if is_topic else Scope.NAMESPACE_POLICY
    return (
        Right(scope, f"READ {row.right}", (TENANT_ADMIN,)),
        Right(scope, f"WRITE {row.right}", (TENANT_ADMIN,)),
    )


def _schema(row: Row) -> dict[str, Any]:
    return {"type": "boolean"} if row.body is None else row.body.schema


def _content(row: Row, face: Face) -> Content | None:
    """The body that brings the value, where one does."""
    if row.body is None or face.query:
        return None
    types = {"application/json": _schema(row)}
    return Content(
        _about_value(face), types, required=not face.nothing_removes, bytes_max=BODY_BYTES_MAX
    )


def _about_value(face: Face) -> str:
    return "The value; without one the policy is removed." if face.nothing_removes else "The value."
