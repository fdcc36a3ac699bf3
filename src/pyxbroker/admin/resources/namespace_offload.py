"""/admin/v2/namespaces/.../offload...: the offload policies of namespaces, which have no effect."""

from __future__ import annotations

from pyxbroker.admin import offload_policies
from pyxbroker.admin.offload_policies import BODY, DEFAULTS, LEGACY_FIELDS
from pyxbroker.admin.policy_bodies import Body, Field
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import namespace_name_of, read_json
from pyxbroker.admin.resources.namespaces import ONE, change_record, record_of
from pyxbroker.auth.authorization import READ_OFFLOAD_POLICIES, WRITE_OFFLOAD_POLICIES
from pyxbroker.policies.records import Fields
from pyxbroker.policies.shapes import LONG_MAX
from pyxbroker.web.endpoint import DONE, Answer, Content, Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

NUMBER = Body(Field("integer", maximum=LONG_MAX))
BODY_BYTES_MAX = 16 << 10
STORED_ONLY = "stored without effect: this broker does not offload"


async def get_policies(request: Request) -> Response:
    """Return Pulsar's OffloadPolicies."""
    found = (await record_of(request)).get(offload_policies.OF_NAMESPACE)
    return Response.empty() if not isinstance(found, dict) else Response.json(found)


async def set_policies(request: Request) -> Response:
    """Store the policies."""
    body = await read_json(request)
    if body is None:
        raise HttpError(412, offload_policies.NO_POLICIES)
    policies = offload_policies.read(body)
    offload_policies.check(policies)
    await change_record(request, lambda fields: offload_policies.set_of_namespace(fields, policies))
    return Response.empty()


async def remove_policies(request: Request) -> Response:
    """Remove the policies."""
    await change_record(request, lambda fields: offload_policies.set_of_namespace(fields, None))
    return Response.empty()


async def _set_number(request: Request, name: str, value: int | None) -> None:
    """Set one field of the policies; None removes it."""

    def change(fields: Fields) -> None:
        policies = dict(offload_policies.of_namespace(fields) or DEFAULTS)
        if value is not None:
            policies[name] = value
        elif policies.pop(name, None) is None:
            return
        offload_policies.set_of_namespace(fields, policies)

    await change_record(request, change)


def _of_number(segment: str, name: str, about: str, set_status: int = 204) -> list[Endpoint]:
    """Return the endpoints of one number of the policies."""
    older, unset = LEGACY_FIELDS[name]

    async def get(request: Request) -> Response:
        record = await record_of(request)
        found = (offload_policies.of_namespace(record) or {}).get(name)
        value = record.get(older, unset) if found is None else found
        return Response.empty() if value is None else Response.json(value)

    async def put(request: Request) -> Response:
        await _set_number(request, name, NUMBER.read(await read_json(request)))
        return Response.empty(set_status)

    async def remove(request: Request) -> Response:
        await _set_number(request, name, None)
        return Response.empty()

    # The OpenAPI document derives operation ids from these names.
    for verb, handler in (("get", get), ("set", put), ("remove", remove)):
        handler.__name__ = f"{verb}_{segment}"
    rows = [
        Endpoint(
            "GET",
            f"{ONE}/{segment}",
            get,
            READ_OFFLOAD_POLICIES,
            f"Returns {about}, for the topics of a namespace.",
            Answer("The number; 204 if it is not set.", NUMBER.schema),
            namespace_name_of,
        ),
        Endpoint(
            "PUT",
            f"{ONE}/{segment}",
            put,
            WRITE_OFFLOAD_POLICIES,
            f"Sets {about}, for the topics of a namespace; {STORED_ONLY}.",
            DONE._replace(status=set_status),
            namespace_name_of,
            content=Content(
                "The number.",
                {"application/json": NUMBER.schema},
                required=True,
                bytes_max=BODY_BYTES_MAX,
            ),
        ),
    ]
    if unset is None:
        rows.append(
            Endpoint(
                "DELETE",
                f"{ONE}/{segment}",
                remove,
                WRITE_OFFLOAD_POLICIES,
                f"Removes a namespace's policy: {about}.",
                resource=namespace_name_of,
            )
        )
    return rows


ENDPOINTS = (
    *_of_number(
        "offloadThreshold",
        offload_policies.THRESHOLD_BYTES,
        "the size above which ledgers may be offloaded",
    ),
    *_of_number(
        "offloadThresholdInSeconds",
        offload_policies.THRESHOLD_SECONDS,
        "the seconds after which ledgers may be offloaded",
        set_status=200,
    ),
    *_of_number(
        "offloadDeletionLagMs",
        offload_policies.DELETION_LAG,
        "the milliseconds after which bookies delete offloaded ledgers",
    ),
    Endpoint(
        "GET",
        ONE + "/offloadPolicies",
        get_policies,
        READ_OFFLOAD_POLICIES,
        "The offload policies of a namespace.",
        Answer("Pulsar's OffloadPolicies; 204 if they are not set.", BODY.schema),
        namespace_name_of,
    ),
    Endpoint(
        "POST",
        ONE + "/offloadPolicies",
        set_policies,
        WRITE_OFFLOAD_POLICIES,
        f"Sets the offload policies of a namespace; {STORED_ONLY}.",
        resource=namespace_name_of,
        content=Content(
            "Pulsar's OffloadPolicies.",
            {"application/json": BODY.schema},
            bytes_max=BODY_BYTES_MAX,
        ),
    ),
    Endpoint(
        "DELETE",
        ONE + "/removeOffloadPolicies",
        remove_policies,
        WRITE_OFFLOAD_POLICIES,
        "Removes the offload policies of a namespace.",
        resource=namespace_name_of,
    ),
)
