"""The answers of REST to requests that end with an error."""

from __future__ import annotations

from pyxbroker.base.errors import PulsarError
from pyxbroker.base.log import get_logger
from pyxbroker.web.errors import HttpError, refusal
from pyxbroker.web.response import Response

_log = get_logger(__name__)


def refusal_of(error: Exception) -> Response | None:
    """Return the refusal for an expected error, or None for a bug of the broker."""
    if isinstance(error, HttpError):
        return refusal(error.status, error.reason, error.headers)
    if isinstance(error, PulsarError):
        return refusal(error.http_status, str(error))
    from pyxbroker.broker import (
        refusals,  # deferred: it imports topics, which would slow down the start
    )

    translated = refusals.refusal_of(error, _log, "a request is refused")
    return None if translated is None else refusal(translated.http_status, str(translated))
