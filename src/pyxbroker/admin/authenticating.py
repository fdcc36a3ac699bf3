"""Authentication of requests.

It precedes everything else, so that unauthenticated clients learn nothing from paths and bodies.
"""

from __future__ import annotations

from html import escape

from pyxbroker.admin.request import Request
from pyxbroker.auth.authentication import METHOD_HEADER, ORIGINAL_HEADER, Authentication
from pyxbroker.auth.principal import Principal
from pyxbroker.auth.provider import CLIENT_ADDRESS, PublicRefusal, joined
from pyxbroker.base.compact_json import to_json
from pyxbroker.base.errors import AuthenticationError, PulsarError, TooManyRequests
from pyxbroker.base.log import get_logger
from pyxbroker.web.response import Response

log = get_logger(__name__)

STATUS_PATH = "/status.html"  # for load balancers
METRICS_PATHS = ("/metrics", "/metrics/")
REQUIRED = "Authentication required"  # Pulsar's text for requests without a method
HTML = "text/html; charset=utf-8"


async def authenticate(request: Request, authentication: Authentication) -> Response | None:
    """Set the principal of a request, or return the refusal.

    Raises TooManyRequests, and HttpError for an invalid query.
    """
    if _is_open(request):
        return None
    failed_logins = request.app.broker.failed_logins
    method, shown = _credentials_of(request)
    CLIENT_ADDRESS.set(request.address)
    try:
        with request.login():
            async with failed_logins.attempt(request.address, method, shown):
                verified = await authentication.verify_request(
                    request.headers, lambda: request.query, request.common_name
                )
            if verified.refused is not None:
                _record_failure(request, method, shown, verified.refused)
    except AuthenticationError as error:
        _record_failure(request, method, shown, error)
        return _refusal(request, str(error) if isinstance(error, PublicRefusal) else REQUIRED)
    except TooManyRequests as error:
        _record_failure(request, method, shown, error)
        raise
    if verified.refused is None and verified.provider is not None:
        failed_logins.succeeded(method, shown)
    original = request.headers.get(ORIGINAL_HEADER)
    request.principal = Principal(verified.identity.role, original)
    return None


def _record_failure(request: Request, method: str, shown: bytes, error: PulsarError) -> None:
    request.app.broker.failed_logins.failed(request.address, method, shown, error)
    log.warning(
        "authentication failed", path=request.path, peer=request.address or None, reason=error
    )
    request.app.broker.audit.login_failed(request.address, "HTTP", method, error)


def _credentials_of(request: Request) -> tuple[str, bytes]:
    """Return the method and the credentials of a request, which identify repeated failed logins."""
    headers = request.headers
    token = request.query.get("token", "")
    shown = headers.get("authorization", ""), token, request.common_name
    parts = (each.encode(errors="surrogateescape") for each in shown)
    return headers.get(METHOD_HEADER, ""), joined(*parts)


def _is_open(request: Request) -> bool:
    """Return True if a path needs no authentication. Equivalent spellings of it do."""
    if request.path in METRICS_PATHS:
        return not request.app.broker.config.authenticateMetricsEndpoint
    return request.path == STATUS_PATH


def _refusal(request: Request, reason: str) -> Response:
    """Return the error page of Jetty, Pulsar's web server, which differs from refusals of
    resources.
    """
    status, url, reason = AuthenticationError.http_status, request.path, escape(reason)
    if "json" in request.headers.get("accept", ""):
        body = {"url": url, "status": str(status), "message": reason}
        return Response(to_json(body), "application/json", status)
    page = (
        f"<html>\n<head><title>Error {status} {reason}</title></head>\n"
        f"<body><h2>HTTP ERROR {status} {reason}</h2>\n"
        f"<table><tr><th>URI:</th><td>{escape(url)}</td></tr></table></body>\n</html>\n"
    )
    return Response.text(page, HTML, status)
