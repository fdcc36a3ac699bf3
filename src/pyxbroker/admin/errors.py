"""Refusals as Pulsar's REST answers them: a status and `{"reason": ...}`."""

from __future__ import annotations

import asyncio

from pyxbroker.admin.response import Headers, Response
from pyxbroker.base.errors import PulsarError
from pyxbroker.metadata.store import MetadataError

# Errors that are no answer by themselves: a status, and a sentence that may have the error in it.
OTHERS: tuple[tuple[type[Exception], int, str], ...] = (
    (MetadataError, 503, "The metadata store cannot answer: {}"),
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
            return refusal(status, sentence.format(error))
    return None
