"""Rights of clients that request all subscriptions or all topics."""

from __future__ import annotations

from pyxbroker.admin.request import Request
from pyxbroker.auth.authorization import Resource, authorize
from pyxbroker.base.errors import AuthorizationError
from pyxbroker.base.topic_name import TopicName


async def has_subscription_right(request: Request, subscription: str) -> bool:
    """Return True if the client has the endpoint's right on a subscription that the path omits.

    Raises the errors of reading the records.
    """
    return await _may(request, request.endpoint.resource(request), subscription)


async def has_topic_right(request: Request, topic: TopicName) -> bool:
    """Return True if the client has the endpoint's right on one topic of the namespace.

    Grants on a namespace do not include the broker's own topics. Raises the errors of reading the
    records.
    """
    return await _may(request, topic)


async def _may(request: Request, resource: Resource, subscription: str = "") -> bool:
    right = request.endpoint.right
    permissions = request.app.broker.permissions
    try:
        await authorize(permissions, request.principal, right, resource, subscription)
    except AuthorizationError:
        return False
    return True
