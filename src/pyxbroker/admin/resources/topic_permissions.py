"""/admin/v2/{domain}/.../permissions: grants of roles on a topic."""

from __future__ import annotations

from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.grants import (
    GRANTS,
    Grant,
    actions_of,
    auth_of,
    change_topics,
)
from pyxbroker.admin.resources.names import STRINGS, check_tenant, has_body, topic_of
from pyxbroker.admin.resources.namespaces import NAMES_BYTES_MAX, record_of
from pyxbroker.admin.resources.topic_work import check_exists
from pyxbroker.auth.authorization import ADMINISTRATE
from pyxbroker.base.topic_name import NamespaceName, TopicName
from pyxbroker.policies.grants import ROLES, TOPICS
from pyxbroker.web.endpoint import Answer, Content, Endpoint
from pyxbroker.web.response import Response

PATH = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/permissions"


async def get_topic_permissions(request: Request) -> Response:
    """Return the actions of each role on a topic, including those on its namespace."""
    name = await _existing_topic(request)
    record = await record_of(request)
    answer = {role: list(actions) for role, actions in auth_of(record, ROLES).items()}
    for role, actions in (auth_of(record, TOPICS).get(str(name)) or {}).items():
        answer[role] = list(dict.fromkeys([*answer.get(role, ()), *actions]))
    return Response.json(answer)


async def grant_of_topic(request: Request) -> Response:
    """Set the actions of a role on one topic; they replace its previous ones."""
    if not await has_body(request):
        await _existing_topic(request)
    role, actions = request.parameters["role"], await actions_of(request)
    name = await _existing_topic(request)
    return await change_topics(request, [Grant(name, role, actions)])


async def revoke_of_topic(request: Request) -> Response:
    """Remove the grants of a role on a topic; those on the namespace remain."""
    name = await _existing_topic(request)
    return await change_topics(request, [Grant(name, request.parameters["role"], None)])


async def _existing_topic(request: Request) -> TopicName:
    name = topic_of(request)
    await check_tenant(request)
    await check_exists(request, name)
    return name


def _namespace_of(request: Request) -> NamespaceName:
    """Return the namespace whose administrators may decide. Raises HttpError 412."""
    return topic_of(request).namespace_name


ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_topic_permissions,
        ADMINISTRATE,
        "The actions of each role on a topic.",
        Answer("The actions by role.", GRANTS),
        _namespace_of,
    ),
    Endpoint(
        "POST",
        PATH + "/{role}",
        grant_of_topic,
        ADMINISTRATE,
        "Sets the actions granted to a role on a topic.",
        resource=_namespace_of,
        content=Content("The actions.", {"application/json": STRINGS}, bytes_max=NAMES_BYTES_MAX),
    ),
    Endpoint(
        "DELETE",
        PATH + "/{role}",
        revoke_of_topic,
        ADMINISTRATE,
        "Removes the grants of a role on a topic; those on the namespace remain.",
        resource=_namespace_of,
    ),
)
