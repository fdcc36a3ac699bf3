"""Who sends a request, where authentication is on. It comes before everything else of a request, so
that strangers learn nothing from paths and bodies.
"""

from __future__ import annotations

from html import escape

from pyxbroker.admin.request import Request
from pyxbroker.auth.authentication import METHOD_HEADER, ORIGINAL_HEADER, Authentication
from pyxbroker.auth.principal import Principal
from pyxbroker.auth.provider import CLIENT_ADDRESS, Told, joined
from pyxbroker.base.compact_json import to_json
from pyxbroker.base.errors import AuthenticationError, PulsarError, TooManyRequests
from pyxbroker.base.log import get_logger
from pyxbroker.web.response import Response

log = get_logger(__name__)

STATUS_PATH = "/status.html"  # for load balancers: it says nothing but that the broker is there
METRICS_PATHS = ("/metrics", "/metrics/")
REQUIRED = "Authentication required"  # what Pulsar says where no method is named
HTML = "text/html; charset=utf-8"


async def authenticate(request: Request, authentication: Authentication) -> Response | None:
    """Sets who sends a request; what it is answered with when that is nobody who may.

    Raises TooManyRequests, and HttpError for a query that cannot be read.
    """
    if _is_open(request):
        return None
    failed_logins = request.app.broker.failed_logins
    method, shown = _shown_in(request)
    CLIENT_ADDRESS.set(request.address)
    try:
        with request.login():
            async with failed_logins.attempt(request.address, method, shown):
                verified = await authentication.verify_request(
                    request.headers, lambda: request.query, request.common_name
                )
            if verified.refused is not None:
                _note_failed(request, method, shown, verified.refused)
    except AuthenticationError as error:
        _note_failed(request, method, shown, error)
        return _refusal(request, str(error) if isinstance(error, Told) else REQUIRED)
    except TooManyRequests as error:
        _note_failed(request, method, shown, error)
        raise
    if verified.refused is None and verified.provider is not None:
        failed_logins.succeeded(method, shown)
    original = request.headers.get(ORIGINAL_HEADER)
    request.principal = Principal(verified.identity.role, original)
    return None


def _note_failed(request: Request, method: str, shown: bytes, error: PulsarError) -> None:
    request.app.broker.failed_logins.failed(request.address, method, shown, error)
    log.warning(
        "authentication failed", path=request.path, peer=request.address or None, reason=error
    )
    request.app.broker.audit.login_failed(request.address, "HTTP", method, error)


def _shown_in(request: Request) -> tuple[str, bytes]:
    """Method and credentials by which failed logins are told apart."""
    headers = request.headers
    token = request.query.get("token", "")
    shown = headers.get("authorization", ""), token, request.common_name
    parts = (each.encode(errors="surrogateescape") for each in shown)
    return headers.get(METHOD_HEADER, ""), joined(*parts)


def _is_open(request: Request) -> bool:
    """Only these very paths are, whatever else leads to the same."""
    if request.path in METRICS_PATHS:
        return not request.app.broker.config.authenticateMetricsEndpoint
    return request.path == STATUS_PATH


def _refusal(request: Request, said: str) -> Response:
    """The page of the web server that Pulsar has, not an answer of one of its resources."""
    status, url, said = AuthenticationError.http_status, request.path, escape(said)
    if "json" in request.headers.get("accept", ""):
        told = {"url": url, "status": str(status), "message": said}
        return Response(to_json(told), "application/json", status)
    page = (
        f"<html>\n<head><title>Error {status} {said}</title></head>\n"
        f"<body><h2>HTTP ERROR {status} {said}</h2>\n"
        f"<table><tr><th>URI:</th><td>{escape(url)}</td></tr></table></body>\n</html>\n"
    )
    return Response.text(page, HTML, status)
