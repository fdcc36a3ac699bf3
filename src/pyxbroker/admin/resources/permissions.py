"""/admin/v2/namespaces/.../permissions: grants of roles on a namespace and on its topics."""

from __future__ import annotations

from typing import Any

from pyxbroker.admin.grant_checks import ENTRIES_MAX, NAME_BYTES_MAX, checked_actions
from pyxbroker.admin.policy_bodies import Field
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.grants import (
    BYTES_MAX,
    GRANTS,
    NO_NAMESPACE_OF_TOPIC,
    Grant,
    actions_of,
    auth_of,
    change_part_of,
    change_topics,
    texts_of_body,
)
from pyxbroker.admin.resources.names import (
    NO_NAMESPACE,
    STRINGS,
    check_length,
    namespace_name_of,
    read_json,
)
from pyxbroker.admin.resources.namespaces import NAMES_BYTES_MAX, ONE, record_of
from pyxbroker.admin.resources.topic_work import check_exists
from pyxbroker.auth.authorization import (
    GET_PERMISSION,
    GRANT_PERMISSION,
    GRANT_PERMISSIONS_ON_TOPICS,
    REVOKE_PERMISSION,
)
from pyxbroker.base.errors import InvalidTopicName
from pyxbroker.base.json_weight import MANY_TOKENS_MAX
from pyxbroker.base.topic_name import TopicName
from pyxbroker.policies.grants import ROLES, SUBSCRIPTIONS
from pyxbroker.web.endpoint import Answer, Content, Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

PATH = ONE + "/permissions"


async def get_permissions(request: Request) -> Response:
    """Return the actions granted to each role."""
    return Response.json(auth_of(await record_of(request), ROLES))


async def get_subscription_permissions(request: Request) -> Response:
    """Return the roles of each restricted subscription."""
    return Response.json(auth_of(await record_of(request), SUBSCRIPTIONS))


async def grant(request: Request) -> Response:
    """Set the actions of a role; they replace its previous ones."""
    role = request.parameters["role"]
    actions = await actions_of(request)

    def change(roles: dict[str, Any]) -> None:
        roles[role] = actions

    return await change_part_of(request, ROLES, change, NO_NAMESPACE_OF_TOPIC)


async def revoke(request: Request) -> Response:
    """Remove the grants of a role on the namespace."""
    role = request.parameters["role"]
    return await change_part_of(request, ROLES, lambda roles: roles.pop(role, None), NO_NAMESPACE)


async def grant_subscription(request: Request) -> Response:
    """Restrict a subscription to the given roles."""
    subscription = request.parameters["subscription"]
    roles = await texts_of_body(request, "Roles should not be null")

    def change(subscriptions: dict[str, Any]) -> None:
        subscriptions[subscription] = roles

    return await change_part_of(request, SUBSCRIPTIONS, change, NO_NAMESPACE_OF_TOPIC)


async def revoke_subscription(request: Request) -> Response:
    """Remove a role from those of a subscription."""
    parts = request.parameters

    def change(subscriptions: dict[str, Any]) -> None:
        roles = subscriptions.get(parts["subscription"])
        if roles is None:
            raise HttpError(404, "couldn't find subscription")
        subscriptions[parts["subscription"]] = [each for each in roles if each != parts["role"]]

    return await change_part_of(request, SUBSCRIPTIONS, change, NO_NAMESPACE)


async def grant_of_topics(request: Request) -> Response:
    """Grant actions on several topics of one namespace, atomically."""
    return await change_topics(request, await _grants(request, is_grant=True))


async def revoke_of_topics(request: Request) -> Response:
    """Revoke grants on several topics of one namespace, atomically."""
    return await change_topics(request, await _grants(request, is_grant=False))


async def _grants(request: Request, is_grant: bool) -> list[Grant]:
    """Return the grants of a body; their topics must exist. Raises HttpError."""
    body = await read_json(request)
    if not isinstance(body, list) or not all(isinstance(each, dict) for each in body):
        raise HttpError(400, f"The body must be a list of objects, not {body!r:.100}.")
    if len(body) > ENTRIES_MAX:
        raise HttpError(400, f"{len(body)} grants are more than the {ENTRIES_MAX} allowed.")
    found = [_grant(each, is_grant) for each in body]
    if len({each.topic.namespace for each in found}) != 1:
        raise HttpError(400, "The namespace should be the same")
    for name in dict.fromkeys(each.topic for each in found):
        await check_exists(request, name)
    return found


_NAME = Field("string")


def _grant(entry: dict[str, Any], is_grant: bool) -> Grant:
    """Return one grant of a body. Raises HttpError 400."""
    topic, role = (_NAME.read(entry.get(name), name) for name in ("topic", "role"))
    if topic is None or role is None:
        raise HttpError(400, "Each entry needs a topic and a role.")
    check_length("name", role, NAME_BYTES_MAX, 400)
    actions = checked_actions(entry.get("actions")) if is_grant else None
    try:
        return Grant(TopicName.get(topic), role, actions)
    except InvalidTopicName as error:
        raise HttpError(400, f"{topic!r:.100} is not the name of a topic: {error}") from None


ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_permissions,
        GET_PERMISSION,
        "The actions granted to each role on a namespace.",
        Answer("The actions by role.", GRANTS),
        namespace_name_of,
    ),
    Endpoint(
        "POST",
        PATH + "/{role}",
        grant,
        GRANT_PERMISSION,
        "Sets the actions granted to a role on a namespace.",
        resource=namespace_name_of,
        content=Content("The actions.", {"application/json": STRINGS}, bytes_max=NAMES_BYTES_MAX),
    ),
    Endpoint(
        "DELETE",
        PATH + "/{role}",
        revoke,
        REVOKE_PERMISSION,
        "Removes the grants of a role on a namespace.",
        resource=namespace_name_of,
    ),
    Endpoint(
        "GET",
        PATH + "/subscription",
        get_subscription_permissions,
        GET_PERMISSION,
        "The roles of subscriptions that are restricted to some roles.",
        Answer("The roles by subscription.", GRANTS),
        namespace_name_of,
    ),
    Endpoint(
        "POST",
        PATH + "/subscription/{subscription}",
        grant_subscription,
        GRANT_PERMISSION,
        "Restricts a subscription to the given roles.",
        resource=namespace_name_of,
        content=Content("The roles.", {"application/json": STRINGS}, bytes_max=NAMES_BYTES_MAX),
    ),
    Endpoint(
        "DELETE",
        PATH + "/{subscription}/{role}",
        revoke_subscription,
        REVOKE_PERMISSION,
        "Removes a role from those of a subscription.",
        resource=namespace_name_of,
    ),
    *(
        Endpoint(
            "POST",
            f"/admin/v2/namespaces/{verb}PermissionsOnTopics",
            handler,
            GRANT_PERMISSIONS_ON_TOPICS,
            summary,
            content=Content(
                "The grants.",
                {"application/json": {"type": "array", "items": {"type": "object"}}},
                required=True,
                bytes_max=BYTES_MAX,
                tokens_max=MANY_TOKENS_MAX,
            ),
        )
        for verb, handler, summary in (
            ("grant", grant_of_topics, "Grants actions on topics of one namespace to roles."),
            (
                *("revoke", revoke_of_topics),
                "Revokes the grants of roles on topics; those on the namespace remain.",
            ),
        )
    ),
)
