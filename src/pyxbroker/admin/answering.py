"""From a request to its answer: who asks, endpoint, right, handler, and what becomes of errors."""

from __future__ import annotations

from pyxbroker.admin import not_built
from pyxbroker.admin.endpoints import RESOURCES, load
from pyxbroker.admin.errors import refusal, refusal_of
from pyxbroker.admin.request import Request
from pyxbroker.admin.response import Response
from pyxbroker.admin.router import Router
from pyxbroker.auth.authorization import authorize
from pyxbroker.base.errors import with_reference
from pyxbroker.base.log import get_logger

log = get_logger(__name__)
_router = Router(RESOURCES, load, not_built.refused)


async def answer(request: Request) -> Response:
    """The answer to a request; what a resource raises becomes a refusal.

    Only a fault of ours reaches the log.
    """
    try:
        authentication = request.app.broker.authentication
        if authentication is not None:
            from pyxbroker.admin.authenticating import authenticate

            refused = await authenticate(request, authentication)
            if refused is not None:
                return refused
        endpoint = await _router.find(request)
        await authorize(
            request.app.broker.permissions,
            request.principal,
            endpoint.right,
            endpoint.resource(request),
            subscription_of(request),
        )
        return await endpoint.handler(request)
    except Exception as error:
        answer = refusal_of(error)
        if answer is None:
            about = {"method": request.method, "path": request.path}
            reference = log.failure("request failed", error, **about)
            reason = "The broker failed to answer this request; its log says why."
            answer = refusal(500, with_reference(reason, reference))
        return answer


def subscription_of(request: Request) -> str:
    """The subscription that a request is about; empty without one."""
    named = request.parameters.get("subscription") or request.parameters.get("subName")
    return named if isinstance(named, str) else ""
