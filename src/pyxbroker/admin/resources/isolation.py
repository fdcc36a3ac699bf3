"""/admin/v2/clusters/.../namespaceIsolationPolicies: the brokers that may serve namespaces, as in
Pulsar's Clusters.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.clusters import ONE as CLUSTER
from pyxbroker.admin.resources.clusters import check_cluster
from pyxbroker.admin.resources.names import (
    STRINGS,
    check_length,
    cluster_of,
    has_body,
    read_json,
    strings_of,
    texts_of,
)
from pyxbroker.auth.authorization import READ_ISOLATION_POLICIES, WRITE_ISOLATION_POLICIES
from pyxbroker.base.compact_json import to_json
from pyxbroker.base.errors import ClusterNotFound, NamespaceNotFound
from pyxbroker.base.expressions import ExpressionError, compile_expression
from pyxbroker.cluster.isolation import (
    NAMESPACES,
    PRIMARY,
    SECONDARY,
    matches_any,
    policies_of_broker,
)
from pyxbroker.web.endpoint import Answer, Content, Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

PATH = CLUSTER + "/namespaceIsolationPolicies"
BROKERS = PATH + "/brokers"
ONE_BROKER = BROKERS + "/{broker}"
ONE = PATH + "/{policyName}"

FAILOVER = "auto_failover_policy"
SCOPE = "unload_scope"
SCOPES = ("all_matching", "none", "changed")
TYPE = "min_available"
LIMITS = ("min_limit", "usage_threshold")  # of TYPE, whole numbers as texts
EXPRESSIONS_MAX = 100
EXPRESSION_BYTES_MAX = 256
NAME_BYTES_MAX = 256
PARAMETERS_MAX = 10
BODY_BYTES_MAX = 64 << 10

Policies = dict[str, Any]


async def get_policies(request: Request) -> Response:
    """Return all isolation policies of a cluster."""
    return Response.json(await _policies(request, 404))


async def get_policy(request: Request) -> Response:
    """Return Pulsar's NamespaceIsolationData."""
    policies = await _policies(request)
    name, cluster = request.parameters["policyName"], request.parameters["cluster"]
    if name not in policies:
        raise HttpError(404, f"Cannot find NamespaceIsolationPolicy {name} for cluster {cluster}")
    return Response.json(policies[name])


async def get_brokers(request: Request) -> Response:
    """Return the policies' result for each broker."""
    policies, broker = await _policies(request), request.app.broker
    brokers = [broker.broker_id] if broker.cluster is None else sorted(broker.cluster.brokers())
    return Response.json([await _of_broker(policies, each) for each in brokers])


async def get_broker(request: Request) -> Response:
    """Return the policies' result for a broker, which need not exist."""
    policies = await _policies(request)
    broker_id = request.parameters["broker"]
    check_length("name of the broker", broker_id, NAME_BYTES_MAX)
    return Response.json(await _of_broker(policies, broker_id))


async def set_policy(request: Request) -> Response:
    """Replace an isolation policy, and unload its namespaces if it requests that.

    Without a request, Pulsar unloads only namespaces that move to another broker; here none moves.
    """
    request.argument("unloadBundles")
    name = request.parameters["policyName"]
    check_length("name of the policy", name, NAME_BYTES_MAX)
    if not await has_body(request):
        await check_cluster(request)
    body = await read_json(request)
    cluster = await check_cluster(request)
    fields = _data(name, body)
    broker = request.app.broker
    await broker.clusters.set_isolation_policy(cluster, name, fields)
    if (
        fields.get(SCOPE) == "all_matching"
        and cluster == broker.config.clusterName
        and request.argument("unloadBundles")
    ):
        await _unload(request, fields[NAMESPACES])
    return Response.empty()


async def delete_policy(request: Request) -> Response:
    """Delete an isolation policy. Deleting a policy that does not exist succeeds."""
    cluster = await check_cluster(request)
    policy = request.parameters["policyName"]
    await request.app.broker.clusters.set_isolation_policy(cluster, policy, None)
    return Response.empty()


async def _policies(request: Request, missing: int = 412) -> Policies:
    """Return the isolation policies of the cluster of a path. Raises HttpError."""
    name = request.parameters["cluster"]
    try:
        found = await request.app.broker.clusters.isolation_policies(name)
    except ClusterNotFound as error:
        raise HttpError(missing, str(error)) from None
    if found is None:
        raise HttpError(404, f"NamespaceIsolationPolicies for cluster {name} does not exist")
    return found


async def _of_broker(policies: Policies, broker_id: str) -> dict[str, Any]:
    """Return Pulsar's BrokerNamespaceIsolationData."""
    answer = await policies_of_broker(policies, broker_id)
    named = {} if answer.policy is None else {"policyName": answer.policy}
    rest = {"namespaceRegex": answer.namespaces, "primary": answer.is_primary}
    return {"brokerName": broker_id, **named, **rest}


async def _unload(request: Request, expressions: list[str]) -> None:
    """Unload all namespaces that match an expression."""
    # Late: it needs topics, which a start does not.
    from pyxbroker.admin.resources.namespace_topics import unload_everywhere

    broker = request.app.broker
    for tenant in await broker.tenants.names():
        for name in await broker.namespaces.names(tenant):
            if await matches_any(expressions, name):
                # A namespace that is deleted meanwhile has no topics to unload.
                with contextlib.suppress(NamespaceNotFound):
                    await unload_everywhere(request, name)


# --- the body ---------------------------------------------------------------------------------


def _data(name: str, body: object) -> dict[str, Any]:
    """Return the NamespaceIsolationData of a body without unknown fields. Raises HttpError."""
    if not isinstance(body, dict):
        raise HttpError(400, f"A NamespaceIsolationData is a JSON object, not {body!r:.100}.")
    fields: dict[str, Any] = {}
    for field in (NAMESPACES, PRIMARY, SECONDARY):
        given = body.get(field)
        if not given and (given is None or field != SECONDARY):
            raise _invalid(name, body, f"{field} must be given")
        texts = texts_of(given, field, EXPRESSIONS_MAX, EXPRESSION_BYTES_MAX)
        for each in texts:
            # Pulsar accepts empty names of brokers, which match no broker.
            if field == NAMESPACES and not each.strip():
                raise _invalid(name, body, f"{field} must not be empty")
            _check_expression(name, body, each)
        fields[field] = texts
    fields[FAILOVER] = _failover(name, body)
    if body.get(SCOPE) in SCOPES:
        fields[SCOPE] = body[SCOPE]
    return fields


def _check_expression(name: str, body: dict[str, Any], text: str) -> None:
    try:
        compile_expression(text)
    except ExpressionError as error:
        what = "is not evaluated by this broker" if error.may_be_java else "is not valid"
        raise _invalid(name, body, f"the expression {text!r} {what}: {error}") from None


def _failover(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the AutoFailoverPolicyData of a body. Raises HttpError."""
    given = body.get(FAILOVER)
    if not isinstance(given, dict) or given.get("policy_type") != TYPE:
        raise _invalid(name, body, f"{FAILOVER} must be of the type {TYPE}")
    parameters = given.get("parameters")
    if not isinstance(parameters, dict) or len(parameters) > PARAMETERS_MAX:
        raise _invalid(name, body, f"{FAILOVER} must have parameters, at most {PARAMETERS_MAX}")
    texts = strings_of(parameters, FAILOVER)
    for each in LIMITS:
        if re.fullmatch(r"[-+]?[0-9]{1,9}", texts.get(each, "")) is None:
            raise _invalid(name, body, f"{each} must be a whole number")
    for each in (*texts, *texts.values()):
        check_length(f"parameter of {FAILOVER}", each, EXPRESSION_BYTES_MAX, 400)
    return {"parameters": texts, "policy_type": TYPE}


def _invalid(name: str, body: dict[str, Any], why: str) -> HttpError:
    data = to_json(body).decode()
    reason = f"Invalid format of input policy data. policy: {name}; data: {data:.1000}; {why}."
    return HttpError(400, reason)


DATA: dict[str, Any] = {
    "type": "object",
    "properties": {
        **dict.fromkeys((NAMESPACES, PRIMARY, SECONDARY), STRINGS),
        FAILOVER: {"type": "object", "additionalProperties": True},
        SCOPE: {"type": "string", "enum": list(SCOPES)},
    },
}
OF_BROKER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "brokerName": {"type": "string"},
        "policyName": {"type": "string"},
        "namespaceRegex": STRINGS,
        "primary": {"type": "boolean"},
    },
}

ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_policies,
        READ_ISOLATION_POLICIES,
        "The isolation policies of a cluster.",
        Answer(
            "Pulsar's NamespaceIsolationData by name.",
            {"type": "object", "additionalProperties": DATA},
        ),
        resource=cluster_of,
    ),
    Endpoint(
        "GET",
        BROKERS,
        get_brokers,
        READ_ISOLATION_POLICIES,
        "The effect of a cluster's isolation policies on its brokers.",
        Answer("Pulsar's BrokerNamespaceIsolationData.", {"type": "array", "items": OF_BROKER}),
        resource=cluster_of,
    ),
    Endpoint(
        "GET",
        ONE_BROKER,
        get_broker,
        READ_ISOLATION_POLICIES,
        "The effect of a cluster's isolation policies on one broker.",
        Answer("Pulsar's BrokerNamespaceIsolationData.", OF_BROKER),
        resource=cluster_of,
    ),
    Endpoint(
        "GET",
        ONE,
        get_policy,
        READ_ISOLATION_POLICIES,
        "An isolation policy.",
        Answer("Pulsar's NamespaceIsolationData.", DATA),
        resource=cluster_of,
    ),
    Endpoint(
        "POST",
        ONE,
        set_policy,
        WRITE_ISOLATION_POLICIES,
        "Sets the brokers that may serve namespaces.",
        query=(
            Query(
                "unloadBundles", "Unloads namespaces, if the policy's scope is all_matching.", True
            ),
        ),
        content=Content(
            "Pulsar's NamespaceIsolationData.",
            {"application/json": DATA},
            required=True,
            bytes_max=BODY_BYTES_MAX,
        ),
        resource=cluster_of,
    ),
    Endpoint(
        "DELETE",
        ONE,
        delete_policy,
        WRITE_ISOLATION_POLICIES,
        "Deletes an isolation policy; succeeds if it does not exist.",
        resource=cluster_of,
    ),
)
