"""The path of a request to its answer: authentication, route, right, handler, errors."""

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

PUBLISHING = "/topics/"  # publishing messages is not administration
_router = Router(RESOURCES, load, not_built.refused)


async def answer(request: Request) -> Response:
    """Return the answer to a request; exceptions of the resource become refusals.

    The log gets only bugs of the broker. The audit log gets each change, successful or not, and
    each refused right.
    """
    allowed: Endpoint | None = None
    try:
        if request.app.broker.peers is not None:
            from pyxbroker.broker.peers import note_caller

            note_caller(request.headers)
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
            # The client decides when the body is complete, and may have lost the right by then.
            request.authorize_again = _authorize_again
        allowed = endpoint
        if endpoint.queue:
            async with request.app.long_answers[endpoint.queue].reserve(request):
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
    """Return the resource of a request after checking the right on it.

    Raises AuthorizationError, the errors of invalid names, and those of the endpoint's precheck.
    """
    broker = request.app.broker
    resource = endpoint.resource(request)
    if endpoint.precheck is not None:
        await endpoint.precheck(request)
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
    from pyxbroker.admin.refusals import refusal_of  # deferred, to start faster

    answer = refusal_of(error)
    if answer is None:
        about = {"method": request.method, "path": request.path}
        reference = log.failure("request failed", error, **about)
        reason = "The broker failed to answer this request; its log says why."
        answer = refusal(500, with_reference(reason, reference))
    return answer


def is_change(endpoint: Endpoint) -> bool:
    """Return True if an endpoint changes the cluster's administration.

    Publishing does not count. A GET that creates something reports that in `has_created`.
    """
    return endpoint.method not in ("GET", OPTIONS) and not endpoint.path.startswith(PUBLISHING)


def operation_of(endpoint: Endpoint) -> str:
    """Return the name of an endpoint in the audit log."""
    return f"{endpoint.method} {endpoint.path}"


def _arguments(request: Request, endpoint: Endpoint) -> dict[str, object]:
    """Return the numbers and booleans of the query as they were sent.

    Returns none if the query is invalid, in which case the request has failed.
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
    """Return the subscription of a request, or ""."""
    named = request.parameters.get("subscription") or request.parameters.get("subName")
    return named if isinstance(named, str) else ""
