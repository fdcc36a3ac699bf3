"""Refusals as Pulsar's REST answers them: a status and `{"reason": ...}`."""

from __future__ import annotations

from pyxbroker.admin.response import Headers, Response
from pyxbroker.base.errors import PulsarError
from pyxbroker.base.log import get_logger

_log = get_logger(__name__)


class HttpError(Exception):
    """A refused request: a status, and a sentence that a person can act on."""

    def __init__(self, status: int, reason: str, headers: Headers = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers


def refusal(status: int, reason: str, headers: Headers = ()) -> Response:
    """The answer to a refused request."""
    # It may repeat what a client sent, which need not be text.
    text = reason.encode("utf-8", "backslashreplace").decode()
    return Response.json({"reason": text}, status, headers)


def refusal_of(error: Exception) -> Response | None:
    """The answer for an error that says what is wrong; None for a fault of ours."""
    if isinstance(error, HttpError):
        return refusal(error.status, error.reason, error.headers)
    if isinstance(error, PulsarError):
        return refusal(error.http_status, str(error))
    from pyxbroker.broker import refusals  # imports topics, which a start does not wait for

    told = refusals.refusal_of(error, _log, "a request is refused")
    return None if told is None else refusal(told.http_status, str(told))
