"""Refusals as Pulsar's REST answers them: a status and `{"reason": ...}`."""

from __future__ import annotations

import asyncio

from pyxbroker.admin.response import Headers, Response
from pyxbroker.base.errors import PulsarError, with_reference
from pyxbroker.base.log import get_logger, reference_of
from pyxbroker.metadata.store import MetadataError

_log = get_logger(__name__)

# Errors that are no answer by themselves: a status, and a sentence. What they say is for the log,
# since it may name files of the broker.
OTHERS: tuple[tuple[type[Exception], int, str], ...] = (
    (MetadataError, 503, "The metadata store cannot answer; the broker's log says why."),
    (asyncio.TimeoutError, 503, "The broker did not answer in time."),
)


class HttpError(Exception):
    """A refused request: a status, and a sentence that a person can act on."""

    def __init__(self, status: int, reason: str, headers: Headers = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers


def refusal(status: int, reason: str, headers: Headers = ()) -> Response:
    """The answer to a refused request."""
    return Response.json({"reason": reason}, status, headers)


def refusal_of(error: Exception) -> Response | None:
    """The answer for an error that says what is wrong; None for a fault of ours."""
    if isinstance(error, HttpError):
        return refusal(error.status, error.reason, error.headers)
    if isinstance(error, PulsarError):
        return refusal(error.http_status, str(error))
    for kind, status, sentence in OTHERS:
        if isinstance(error, kind):
            event = "a request is refused"
            reference = reference_of(event, error)
            _log.warning(event, error=error, reference=reference)
            return refusal(status, with_reference(sentence, reference))
    return None
