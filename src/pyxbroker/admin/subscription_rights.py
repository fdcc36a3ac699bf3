"""Which subscriptions somebody may use who asks for all of them."""

from __future__ import annotations

from pyxbroker.admin.request import Request
from pyxbroker.auth.authorization import authorize
from pyxbroker.base.errors import AuthorizationError


async def may_use(request: Request, subscription: str) -> bool:
    """Whether who asks has the right of the endpoint with a subscription, too, that the path does
    not name. Raises what keeps the records from being read.
    """
    endpoint = request.endpoint
    try:
        await authorize(
            request.app.broker.permissions,
            request.principal,
            endpoint.right,
            endpoint.resource(request),
            subscription,
        )
    except AuthorizationError:
        return False
    return True
