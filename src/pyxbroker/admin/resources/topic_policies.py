"""/admin/v2/{domain}/...: reads, sets and removes policies of topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyxbroker.admin.policy_checks import check_fields
from pyxbroker.admin.policy_table import (
    BACKLOG_QUOTA,
    DELAYED_DELIVERY,
    DELAYED_DELIVERY_FIELDS,
    OF_SUBSCRIPTION,
    ROWS,
    PolicyEndpoint,
    Row,
    applied_to_subscription,
    sized_quota,
)
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.entry_filters import OF_TOPICS
from pyxbroker.admin.resources.names import (
    check_length,
    has_body,
    read_json,
    topic_of,
)
from pyxbroker.admin.resources.policies import (
    TOPIC,
    Fields,
    check_at,
    endpoints,
    get_at,
    quota_endpoints,
    requested_value,
    set_at,
    setting,
)
from pyxbroker.admin.resources.topic_work import check_topic
from pyxbroker.base import limits
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics.policy_access import PolicyAccess
from pyxbroker.policies.shapes import Level
from pyxbroker.policies.values import Policies
from pyxbroker.web.endpoint import Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response


async def checked_topic(request: Request) -> TopicName:
    """Return the existing topic of a request, which can have policies. Raises HttpError."""
    policies: PolicyAccess = request.app.broker.topics.policies
    if not policies.has_records:
        raise HttpError(
            405, "Topic level policies is disabled, to enable the topic level policy and retry."
        )
    name = topic_of(request)
    if name.is_partitioned:
        raise HttpError(412, "Not allowed to set/get topic policy for a partition")
    await check_topic(request, name)
    return name


async def _check_topic_without_body(request: Request) -> None:
    """Raise HttpError 404 for a missing topic if the request has no body.

    As in Pulsar, for policies that are objects; for numbers and booleans, the missing body is
    refused first.
    """
    if not await has_body(request):
        await checked_topic(request)


async def topic_fields(request: Request, name: TopicName) -> Fields:
    policies: PolicyAccess = request.app.broker.topics.policies
    await policies.of_topic(name)
    return policies.records.fields(name, request.argument("isGlobal"))


async def policy_answer(
    request: Request,
    applied: Callable[[Policies], Any] | None,
    own: Callable[[Fields], Any],
) -> Response:
    """Return the applied value of a topic's policy if it is requested, otherwise its own value.

    None means that nothing is set and that there is no default.
    """
    name = await checked_topic(request)
    if applied is not None and request.argument("applied"):
        value = applied(await request.app.broker.topics.policies.of_topic(name))
    else:
        value = own(await topic_fields(request, name))
    return Response.empty() if value is None else Response.json(value)


async def change_topic(request: Request, change: Callable[[Fields], None]) -> Response:
    name = await checked_topic(request)

    def changed(fields: Fields) -> Fields:
        change(fields)
        return fields

    await request.app.broker.topics.policies.records.update(
        name, request.argument("isGlobal"), changed
    )
    return Response.empty()


def _of_topic(row: Row, endpoint: PolicyEndpoint) -> list[Endpoint]:
    async def get(request: Request) -> Response:
        unset = row.unset(request.app.broker.config)

        def own(fields: Fields) -> Any:
            value = get_at(fields, endpoint.path)
            return unset if value is None else value

        return await policy_answer(request, row.applied, own)

    async def put(request: Request) -> Response:
        if row.body is not None and row.body.value is None:
            await _check_topic_without_body(request)
        value = await requested_value(request, row, endpoint)
        return await change_topic(request, setting(request, row, Level.TOPIC, endpoint.path, value))

    async def remove(request: Request) -> Response:
        return await change_topic(request, lambda fields: set_at(fields, endpoint.path, None))

    return endpoints(row, endpoint, TOPIC, (get, put, remove))


async def _get_topic_quotas(request: Request) -> Response:
    return await policy_answer(request, BACKLOG_QUOTA.applied, _quotas)


def _quotas(fields: Fields) -> dict[str, Any]:
    return {name: sized_quota(quota) for name, quota in fields.get("backLogQuotaMap", {}).items()}


def _of_subscription(request: Request) -> tuple[str, ...]:
    """Return the path of one subscription's rate in a topic's record."""
    return ("subscriptionPolicies", request.parameters["subName"], "dispatchRate")


async def _get_subscription_rate(request: Request) -> Response:
    path = _of_subscription(request)
    return await policy_answer(
        request,
        lambda policies: applied_to_subscription(policies, path[1]),
        lambda fields: get_at(fields, path),
    )


async def _set_subscription_rate(request: Request) -> Response:
    assert OF_SUBSCRIPTION.body is not None
    await _check_topic_without_body(request)
    value = OF_SUBSCRIPTION.body.read(await read_json(request))
    path = _of_subscription(request)
    check_length("subscription", path[1], limits.SUBSCRIPTION_BYTES_MAX)
    check_at(request, Level.TOPIC, path, value)
    return await change_topic(request, lambda fields: set_at(fields, path, value))


async def _remove_subscription_rate(request: Request) -> Response:
    path = _of_subscription(request)

    def change(fields: Fields) -> None:
        set_at(fields, path, None)
        if get_at(fields, path[:2]) == {}:
            set_at(fields, path[:2], None)

    return await change_topic(request, change)


async def _get_topic_delay(request: Request) -> Response:
    return await policy_answer(request, DELAYED_DELIVERY.applied, _own_delay)


def _own_delay(fields: Fields) -> Fields | None:
    found = {part: fields.get(field) for part, field in DELAYED_DELIVERY_FIELDS.items()}
    if found["active"] is None or found["tickTime"] is None:
        return None
    found["maxDeliveryDelayInMillis"] = found["maxDeliveryDelayInMillis"] or 0
    return found


async def _set_topic_delay(request: Request) -> Response:
    assert DELAYED_DELIVERY.body is not None
    value = DELAYED_DELIVERY.body.read(await read_json(request))
    found = {field: value[part] for part, field in DELAYED_DELIVERY_FIELDS.items()}
    check_fields(found, Level.TOPIC, request.app.broker.config.clusterName)

    def change(fields: Fields) -> None:
        fields.update(found)

    return await change_topic(request, change)


async def _remove_topic_delay(request: Request) -> Response:
    def change(fields: Fields) -> None:
        for field in DELAYED_DELIVERY_FIELDS.values():
            fields.pop(field, None)

    return await change_topic(request, change)


def _rows() -> list[Endpoint]:
    """Return all policy rows of topics."""
    rows = [each for row in ROWS if row.topic is not None for each in _of_topic(row, row.topic)]
    assert DELAYED_DELIVERY.topic is not None
    delays = (_get_topic_delay, _set_topic_delay, _remove_topic_delay)
    rows += endpoints(DELAYED_DELIVERY, DELAYED_DELIVERY.topic, TOPIC, delays)
    assert OF_SUBSCRIPTION.topic is not None
    rates = (_get_subscription_rate, _set_subscription_rate, _remove_subscription_rate)
    rows += endpoints(OF_SUBSCRIPTION, OF_SUBSCRIPTION.topic, TOPIC, rates, is_applied=True)
    quotas = BACKLOG_QUOTA.topic
    rows += quota_endpoints(Level.TOPIC, quotas, TOPIC, _get_topic_quotas, change_topic)
    return rows


ENDPOINTS = (*_rows(), *OF_TOPICS)
