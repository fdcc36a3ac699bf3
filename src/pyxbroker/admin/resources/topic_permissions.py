"""/admin/v2/{domain}/.../permissions: who may do what with a topic."""

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
from pyxbroker.admin.resources.topic_work import check_there
from pyxbroker.auth.authorization import ADMINISTRATE
from pyxbroker.base.topic_name import NamespaceName, TopicName
from pyxbroker.policies.grants import ROLES, TOPICS
from pyxbroker.web.endpoint import Answer, Content, Endpoint
from pyxbroker.web.response import Response

PATH = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/permissions"


async def get_topic_permissions(request: Request) -> Response:
    """What each role may do with a topic: what it may in its namespace, too."""
    name = await _topic_there(request)
    record = await record_of(request)
    told = {role: list(actions) for role, actions in auth_of(record, ROLES).items()}
    for role, actions in (auth_of(record, TOPICS).get(str(name)) or {}).items():
        told[role] = list(dict.fromkeys([*told.get(role, ()), *actions]))
    return Response.json(told)


async def grant_of_topic(request: Request) -> Response:
    """Says what a role may do with one topic; what it was granted for it before does not count."""
    if not await has_body(request):
        await _topic_there(request)
    role, actions = request.parameters["role"], await actions_of(request)
    name = await _topic_there(request)
    return await change_topics(request, [Grant(name, role, actions)])


async def revoke_of_topic(request: Request) -> Response:
    """A role may do no more with a topic than it may in its namespace."""
    name = await _topic_there(request)
    return await change_topics(request, [Grant(name, request.parameters["role"], None)])


async def _topic_there(request: Request) -> TopicName:
    name = topic_of(request)
    await check_tenant(request)
    await check_there(request, name)
    return name


def _namespace_of(request: Request) -> NamespaceName:
    """Where it is decided who may; the name of the topic may be wrong. Raises HttpError 412."""
    return topic_of(request).namespace_name


ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_topic_permissions,
        ADMINISTRATE,
        "What each role may do with a topic.",
        Answer("The actions by role.", GRANTS),
        _namespace_of,
    ),
    Endpoint(
        "POST",
        PATH + "/{role}",
        grant_of_topic,
        ADMINISTRATE,
        "Says what a role may do with a topic.",
        resource=_namespace_of,
        content=Content("The actions.", {"application/json": STRINGS}, bytes_max=NAMES_BYTES_MAX),
    ),
    Endpoint(
        "DELETE",
        PATH + "/{role}",
        revoke_of_topic,
        ADMINISTRATE,
        "A role may do no more with a topic than it may in its namespace.",
        resource=_namespace_of,
    ),
)
