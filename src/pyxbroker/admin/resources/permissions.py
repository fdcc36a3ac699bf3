"""/admin/v2/namespaces/.../permissions: who may do what in a namespace.

Grants are kept in the namespace's record, as Pulsar's AuthPolicies, whether they are looked at yet
or not: who switches authorization on has made them before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyxbroker.admin.endpoints import Answer, Content, Endpoint
from pyxbroker.admin.errors import HttpError
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import STRINGS, check_length, namespace_name_of, read_json
from pyxbroker.admin.resources.namespaces import (
    NAMES_BYTES_MAX,
    NOT_FOUND,
    ONE,
    change_record,
    record_of,
)
from pyxbroker.admin.response import Response
from pyxbroker.auth.authorization import GET_PERMISSION, GRANT_PERMISSION, REVOKE_PERMISSION
from pyxbroker.base.compact_json import to_json
from pyxbroker.policies.records import Fields

PATH = ONE + "/permissions"
AUTH = "auth_policies"
ROLES = "namespace_auth"
SUBSCRIPTIONS = "subscription_auth_roles"
ACTIONS = ("produce", "consume", "functions", "sources", "sinks", "packages")
ENTRIES_MAX = 1_000  # roles, or subscriptions, of one namespace, and roles of one subscription
BYTES_MAX = 512 << 10  # of all grants of a namespace: its record is one node
NAME_BYTES_MAX = 1_024
NO_NAMESPACE = "Topic's namespace does not exist"


async def get_permissions(request: Request) -> Response:
    """What each role may do."""
    return Response.json(_auth(await record_of(request), ROLES))


async def get_subscription_permissions(request: Request) -> Response:
    """The roles of each subscription that not everybody may use who may consume."""
    return Response.json(_auth(await record_of(request), SUBSCRIPTIONS))


async def grant(request: Request) -> Response:
    """Says what a role may do; what it was granted before does not count any more."""
    role = request.parameters["role"]
    actions = await _texts(request, "Actions should not be null")
    for each in actions:
        if each not in ACTIONS:
            raise HttpError(400, f"An action is one of {', '.join(ACTIONS)}, not {each!r:.100}.")

    def change(roles: dict[str, Any]) -> None:
        roles[role] = actions

    return await _change(request, ROLES, change, NO_NAMESPACE)


async def revoke(request: Request) -> Response:
    """A role may do nothing in the namespace any more."""
    role = request.parameters["role"]
    return await _change(request, ROLES, lambda roles: roles.pop(role, None), NOT_FOUND)


async def grant_subscription(request: Request) -> Response:
    """Says which roles may use a subscription; no others may."""
    subscription = request.parameters["subscription"]
    roles = await _texts(request, "Roles should not be null")

    def change(subscriptions: dict[str, Any]) -> None:
        subscriptions[subscription] = roles

    return await _change(request, SUBSCRIPTIONS, change, NO_NAMESPACE)


async def revoke_subscription(request: Request) -> Response:
    """A role is not one of those of a subscription any more."""
    parts = request.parameters

    def change(subscriptions: dict[str, Any]) -> None:
        roles = subscriptions.get(parts["subscription"])
        if roles is None:
            raise HttpError(404, "couldn't find subscription")
        subscriptions[parts["subscription"]] = [each for each in roles if each != parts["role"]]

    return await _change(request, SUBSCRIPTIONS, change, NOT_FOUND)


def _auth(record: Fields, part: str) -> dict[str, Any]:
    return dict((record.get(AUTH) or {}).get(part) or {})


async def _change(
    request: Request, part: str, change: Callable[[dict[str, Any]], object], missing: str
) -> Response:
    """Changes a part of the grants. Raises HttpError 404 when there is no such namespace."""

    def change_part(record: Fields) -> None:
        entries = _auth(record, part)
        change(entries)
        if len(entries) > ENTRIES_MAX:
            raise HttpError(400, f"A namespace has at most {ENTRIES_MAX} such grants.")
        record[AUTH] = (record.get(AUTH) or {}) | {part: entries}
        if len(to_json(record[AUTH])) > BYTES_MAX:
            raise HttpError(400, f"The grants of a namespace have at most {BYTES_MAX} bytes.")

    await change_record(request, change_part, missing)
    return Response.empty()


async def _texts(request: Request, missing: str) -> list[str]:
    """The list of a body, without what comes twice; the names in the path are looked at, too."""
    body = await read_json(request)
    if body is None:
        raise HttpError(400, missing)
    if not isinstance(body, list) or not all(isinstance(each, str) for each in body):
        raise HttpError(400, f"A list of texts is needed, not {body!r:.100}.")
    if len(body) > ENTRIES_MAX:
        raise HttpError(400, f"{len(body)} names are more than the {ENTRIES_MAX} allowed.")
    parts = (request.parameters.get(each, "") for each in ("role", "subscription"))
    for text in (*body, *parts):
        check_length("name", text, NAME_BYTES_MAX, 400)
    return list(dict.fromkeys(body))


GRANTS = {"type": "object", "additionalProperties": STRINGS}

ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_permissions,
        GET_PERMISSION,
        "What each role may do in a namespace.",
        Answer("The actions by role.", GRANTS),
        namespace_name_of,
    ),
    Endpoint(
        "POST",
        PATH + "/{role}",
        grant,
        GRANT_PERMISSION,
        "Says what a role may do in a namespace.",
        resource=namespace_name_of,
        content=Content("The actions.", {"application/json": STRINGS}, bytes_max=NAMES_BYTES_MAX),
    ),
    Endpoint(
        "DELETE",
        PATH + "/{role}",
        revoke,
        REVOKE_PERMISSION,
        "A role may do nothing in a namespace any more.",
        resource=namespace_name_of,
    ),
    Endpoint(
        "GET",
        PATH + "/subscription",
        get_subscription_permissions,
        GET_PERMISSION,
        "The roles of subscriptions that not everybody may use who may consume.",
        Answer("The roles by subscription.", GRANTS),
        namespace_name_of,
    ),
    Endpoint(
        "POST",
        PATH + "/subscription/{subscription}",
        grant_subscription,
        GRANT_PERMISSION,
        "Says which roles alone may use a subscription.",
        resource=namespace_name_of,
        content=Content("The roles.", {"application/json": STRINGS}, bytes_max=NAMES_BYTES_MAX),
    ),
    Endpoint(
        "DELETE",
        PATH + "/{subscription}/{role}",
        revoke_subscription,
        REVOKE_PERMISSION,
        "A role is not one of those of a subscription any more.",
        resource=namespace_name_of,
    ),
)
