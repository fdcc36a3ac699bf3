"""/admin/v2/{domain}/.../offload...: the offload policies of topics, which have no effect, and the
status of the last offload, which never ran.
"""

from __future__ import annotations

from pyxbroker.admin import offload_policies
from pyxbroker.admin.offload_policies import BODY, OF_TOPIC
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import has_body, read_json, topic_of
from pyxbroker.admin.resources.policies import APPLIED, BODY_BYTES_MAX, IS_GLOBAL, TOPIC, set_at
from pyxbroker.admin.resources.topic_policies import change_topic, checked_topic, topic_fields
from pyxbroker.admin.resources.topic_work import REFUSE_AS_MISSING, load_persistent_topic
from pyxbroker.auth.authorization import OFFLOAD, TENANT_ADMIN, Right, Scope
from pyxbroker.web.endpoint import Answer, Content, Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

PATH = TOPIC + OF_TOPIC
READ = Right(Scope.TOPIC_POLICY, "READ OFFLOAD", (TENANT_ADMIN,))
WRITE = Right(Scope.TOPIC_POLICY, "WRITE OFFLOAD", (TENANT_ADMIN,))
NOT_RUN = {
    "status": "NOT_RUN",
    "lastError": "",
    "firstUnoffloadedMessage": {
        "ledgerId": -1,
        "entryId": -1,
        "partitionIndex": -1,
        "batchIndex": -1,
        "batchSize": 0,
    },
}


async def get_offload_status(request: Request) -> Response:
    """Return the status of a topic's last offload: this broker has not run any."""
    await load_persistent_topic(request, "Offload", partitioned=REFUSE_AS_MISSING)
    return Response.json(NOT_RUN)


async def get_topic_offload(request: Request) -> Response:
    """Return the policies of a topic; with `applied`, merged with those of its namespace."""
    name = await checked_topic(request)
    found = (await topic_fields(request, name)).get(OF_TOPIC)
    if request.argument("applied"):
        namespace = await request.app.broker.topics.policies.namespace_fields(name.namespace)
        own = {key: value for key, value in (found or {}).items() if value is not None}
        found = (offload_policies.of_namespace(namespace) or {}) | own
    return Response.json(offload_policies.with_driver_flags(found)) if found else Response.empty()


async def set_topic_offload(request: Request) -> Response:
    """Store the policies of a topic."""
    if not await has_body(request):
        await checked_topic(request)
    body = await read_json(request)
    if body is None:
        await checked_topic(request)
        raise HttpError(412, offload_policies.NO_POLICIES)
    policies = offload_policies.read(body)
    offload_policies.check(policies)
    return await change_topic(request, lambda fields: set_at(fields, (OF_TOPIC,), policies))


async def remove_topic_offload(request: Request) -> Response:
    """Remove the policies of a topic."""
    return await change_topic(request, lambda fields: set_at(fields, (OF_TOPIC,), None))


ENDPOINTS = (
    Endpoint(
        "GET",
        TOPIC + "offload",
        get_offload_status,
        OFFLOAD,
        "The status of a topic's last offload.",
        Answer("Pulsar's OffloadProcessStatus: NOT_RUN.", {"type": "object"}),
        topic_of,
    ),
    Endpoint(
        "GET",
        PATH,
        get_topic_offload,
        READ,
        "The offload policies of a topic.",
        Answer("Pulsar's OffloadPolicies; 204 if they are not set.", BODY.schema),
        topic_of,
        (APPLIED, IS_GLOBAL),
    ),
    Endpoint(
        "POST",
        PATH,
        set_topic_offload,
        WRITE,
        "Sets the offload policies of a topic; stored without effect: this broker does not "
        "offload.",
        resource=topic_of,
        query=(IS_GLOBAL,),
        content=Content(
            "Pulsar's OffloadPolicies.",
            {"application/json": BODY.schema},
            bytes_max=BODY_BYTES_MAX,
        ),
    ),
    Endpoint(
        "DELETE",
        PATH,
        remove_topic_offload,
        WRITE,
        "Removes the offload policies of a topic.",
        resource=topic_of,
        query=(IS_GLOBAL,),
    ),
)
