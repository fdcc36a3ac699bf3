"""From a request to its answer: who asks, endpoint, right, handler, and what becomes of errors."""

from __future__ import annotations

from pyxbroker.admin import not_built
from pyxbroker.admin.endpoints import RESOURCES, load
from pyxbroker.admin.request import Request
from pyxbroker.auth.authorization import Resource, authorize
from pyxbroker.base.errors import AuthorizationError, with_reference
from pyxbroker.base.log import get_logger
from pyxbroker.web.endpoint import Endpoint
from pyxbroker.web.errors import HttpError, refusal
from pyxbroker.web.response import Response
from pyxbroker.web.router import OPTIONS, Router

log = get_logger(__name__)

PUBLISHING = "/topics/"  # messages, which are no administration
_router = Router(RESOURCES, load, not_built.refused)


async def answer(request: Request) -> Response:
    """The answer to a request; what a resource raises becomes a refusal.

    Only a fault of ours reaches the log; the audit log has each change, whatever became of it, and
    who was kept from what.
    """
    allowed: Endpoint | None = None
    try:
        authentication = request.app.broker.authentication
        if authentication is not None:
            from pyxbroker.admin.authenticating import authenticate

            refused = await authenticate(request, authentication)
            if refused is not None:
                return refused
        endpoint = await _router.find(request)
        resource = await _authorize(request, endpoint)
        if "topic" in request.parameters or "bundle" in request.parameters:
            from pyxbroker.admin.owners import check_owner

            await check_owner(request, endpoint, resource)
        if not request.body.complete:
            # Its sender says when that is there, and may have lost the right by then.
            request.authorize_again = _authorize_again
        allowed = endpoint
        if endpoint.line:
            async with request.app.long_answers[endpoint.line].place(request):
                response = await endpoint.handler(request)
        else:
            response = await endpoint.handler(request)
    except Exception as error:
        response = _refusal(request, error)
    audit = request.app.broker.audit
    if audit.is_on and allowed is not None and (is_change(allowed) or request.has_created):
        audit.changed(
            *(request.principal, request.address, operation_of(allowed), request.path),
            response.status,
            _arguments(request, allowed),
        )
    return response


async def _authorize(request: Request, endpoint: Endpoint) -> Resource:
    """Returns what the right is about. Raises AuthorizationError, what is wrong with the name of
    that, and what the endpoint checks first.
    """
    broker = request.app.broker
    resource = endpoint.resource(request)
    if endpoint.first is not None:
        await endpoint.first(request)
    try:
        await authorize(
            broker.permissions,
            request.principal,
            endpoint.right,
            resource,
            subscription_of(request),
        )
    except AuthorizationError as error:
        broker.audit.refused(
            *(request.principal, request.address, operation_of(endpoint), request.path),
            error.http_status,
            error,
        )
        raise
    return resource


async def _authorize_again(request: Request) -> None:
    await _authorize(request, request.endpoint)


def _refusal(request: Request, error: Exception) -> Response:
    from pyxbroker.admin.refusals import refusal_of  # a start does not wait for it

    answer = refusal_of(error)
    if answer is None:
        about = {"method": request.method, "path": request.path}
        reference = log.failure("request failed", error, **about)
        reason = "The broker failed to answer this request; its log says why."
        answer = refusal(500, with_reference(reason, reference))
    return answer


def is_change(endpoint: Endpoint) -> bool:
    """Whether it is administration: not what is only read, but for the few that say themselves that
    they have made something, and not what is published.
    """
    return endpoint.method not in ("GET", OPTIONS) and not endpoint.path.startswith(PUBLISHING)


def operation_of(endpoint: Endpoint) -> str:
    """How the audit log calls what an endpoint does."""
    return f"{endpoint.method} {endpoint.path}"


def _arguments(request: Request, endpoint: Endpoint) -> dict[str, object]:
    """The numbers and switches of a request, as they were sent; none of a query that is no text,
    over which the request failed.
    """
    try:
        sent = request.query
    except HttpError:
        return {}
    return {
        field.name: sent[field.name]
        for field in endpoint.query
        if field.default is not None and field.name in sent
    }


def subscription_of(request: Request) -> str:
    """The subscription that a request is about; empty without one."""
    named = request.parameters.get("subscription") or request.parameters.get("subName")
    return named if isinstance(named, str) else ""
