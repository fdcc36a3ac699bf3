"""What REST answers where an error ends a request."""

from __future__ import annotations

from pyxbroker.base.errors import PulsarError
from pyxbroker.base.log import get_logger
from pyxbroker.web.errors import HttpError, refusal
from pyxbroker.web.response import Response

_log = get_logger(__name__)


def refusal_of(error: Exception) -> Response | None:
    """The answer for an error that says what is wrong; None for a fault of ours."""
    if isinstance(error, HttpError):
        return refusal(error.status, error.reason, error.headers)
    if isinstance(error, PulsarError):
        return refusal(error.http_status, str(error))
    from pyxbroker.broker import refusals  # imports topics, which a start does not wait for

    told = refusals.refusal_of(error, _log, "a request is refused")
    return None if told is None else refusal(told.http_status, str(told))
