"""/admin/v2/namespaces/...: reads, sets and removes policies of namespaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyxbroker.admin.policy_table import BACKLOG_QUOTA, DELAYED_DELIVERY, ROWS, PolicyEndpoint, Row
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.entry_filters import OF_NAMESPACES
from pyxbroker.admin.resources.names import (
    NO_NAMESPACE,
    check_namespace,
    has_body,
    namespace_of,
)
from pyxbroker.admin.resources.policies import (
    NAMESPACE,
    Fields,
    endpoints,
    get_at,
    quota_endpoints,
    requested_value,
    set_at,
    setting,
)
from pyxbroker.broker.topics.policy_access import PolicyAccess
from pyxbroker.policies.shapes import CLUSTER, Level, Path
from pyxbroker.web.endpoint import Endpoint
from pyxbroker.web.response import Response

# Pulsar's text for the following requests.
NO_POLICIES = "Namespace policies does not exist"
OF_NO_POLICIES = frozenset(
    {
        "POST deduplicationSnapshotInterval",
        "POST delayedDelivery",
        "DELETE delayedDelivery",
        "GET dispatcherPauseOnAckStatePersistent",
        "POST inactiveTopicPolicies",
        "DELETE inactiveTopicPolicies",
        "POST maxSubscriptionsPerTopic",
        "DELETE maxSubscriptionsPerTopic",
        "POST maxTopicsPerNamespace",
        "DELETE maxTopicsPerNamespace",
        "GET replicatorDispatchRate",
        "POST retention",
        "DELETE retention",
    }
)
NAMESPACE_FIRST = "subscriptionAuthMode"  # the namespace is checked before a missing body


def _missing(request: Request) -> str:
    """Return the text for a missing namespace."""
    segment = request.endpoint.path.rpartition("/")[2]
    return NO_POLICIES if f"{request.method} {segment}" in OF_NO_POLICIES else NO_NAMESPACE


def _path(request: Request, path: Path) -> Path:
    cluster = request.app.broker.config.clusterName
    return tuple(cluster if name == CLUSTER else name for name in path)


async def _namespace_fields(request: Request) -> Fields:
    namespace = namespace_of(request)
    await check_namespace(request, namespace, _missing(request))
    policies: PolicyAccess = request.app.broker.topics.policies
    return await policies.namespace_fields(namespace)


async def _change_namespace(request: Request, change: Callable[[Fields], None]) -> Response:
    namespace = namespace_of(request)
    # A policy that prevents the completion of a deletion can be removed.
    await check_namespace(request, namespace, _missing(request), request.method == "DELETE")
    await request.app.broker.topics.policies.change_namespace(namespace, change)
    return Response.empty()


def _of_namespace(row: Row, endpoint: PolicyEndpoint) -> list[Endpoint]:
    async def get(request: Request) -> Response:
        value = get_at(await _namespace_fields(request), _path(request, endpoint.path))
        if value is None:
            value = row.unset(request.app.broker.config)
        return Response.empty() if value is None else Response.json(value)

    async def put(request: Request) -> Response:
        if endpoint.segment == NAMESPACE_FIRST and not await has_body(request):
            await check_namespace(request, namespace_of(request), NO_NAMESPACE)
        value = await requested_value(request, row, endpoint)
        path = _path(request, endpoint.path)
        return await _change_namespace(request, setting(request, row, Level.NAMESPACE, path, value))

    async def remove(request: Request) -> Response:
        empty: Any = [] if row.body is not None and row.body.names else None
        return await _change_namespace(
            request, lambda fields: set_at(fields, _path(request, endpoint.path), empty)
        )

    return endpoints(row, endpoint, NAMESPACE, (get, put, remove))


async def _get_namespace_quotas(request: Request) -> Response:
    found = (await _namespace_fields(request)).get("backlog_quota_map") or {}
    return Response.json(found)


def _rows() -> list[Endpoint]:
    """Return all policy rows of namespaces."""
    rows = [
        each
        for row in ROWS
        if row.namespace is not None
        for each in _of_namespace(row, row.namespace)
    ]
    assert DELAYED_DELIVERY.namespace is not None
    rows += _of_namespace(DELAYED_DELIVERY, DELAYED_DELIVERY.namespace)
    quotas = BACKLOG_QUOTA.namespace
    rows += quota_endpoints(
        Level.NAMESPACE, quotas, NAMESPACE, _get_namespace_quotas, _change_namespace
    )
    return rows


ENDPOINTS = (*_rows(), *OF_NAMESPACES)
