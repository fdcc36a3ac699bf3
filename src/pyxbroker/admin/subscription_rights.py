"""What somebody may use who asks for all subscriptions, or for all topics."""

from __future__ import annotations

from pyxbroker.admin.request import Request
from pyxbroker.auth.authorization import Resource, authorize
from pyxbroker.base.errors import AuthorizationError
from pyxbroker.base.topic_name import TopicName


async def may_use(request: Request, subscription: str) -> bool:
    """Whether who asks has the right of the endpoint with a subscription, too, that the path does
    not name. Raises what keeps the records from being read.
    """
    return await _may(request, request.endpoint.resource(request), subscription)


async def may_reach(request: Request, topic: TopicName) -> bool:
    """Whether who asks about all topics of a namespace has that right on a topic, too: no grant on
    a namespace is about the broker's own. Raises what keeps the records from being read.
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
