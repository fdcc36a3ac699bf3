"""Refusals as Pulsar's REST answers them: a status and `{"reason": ...}`."""

from __future__ import annotations

import asyncio

from pyxbroker.admin.response import Headers, Response
from pyxbroker.base.errors import PartitionsNotAllowed, PulsarError, TopicBusy, TopicExists
from pyxbroker.metadata.store import MetadataError

# The status for a ServerError of the binary protocol; others are 500.
STATUS = {
    3: 401,  # AuthenticationError
    4: 403,  # AuthorizationError
    5: 409,  # ConsumerBusy
    6: 503,  # ServiceNotReady
    11: 404,  # TopicNotFound
    12: 404,  # SubscriptionNotFound
    13: 404,  # ConsumerNotFound
    14: 429,  # TooManyRequests
    17: 412,  # InvalidTopicName
    18: 409,  # IncompatibleSchema
    22: 405,  # NotAllowedError
}


# Those that tell more than their ServerError does.
STATUS_OF_CLASS: dict[type[PulsarError], int] = {
    PartitionsNotAllowed: 406,
    TopicBusy: 412,
    TopicExists: 409,
}


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
        status = STATUS_OF_CLASS.get(type(error)) or STATUS.get(error.code, 500)
        return refusal(status, str(error))
    if isinstance(error, MetadataError):
        return refusal(503, f"The metadata store cannot answer: {error}")
    if isinstance(error, asyncio.TimeoutError):
        return refusal(503, "The broker did not answer in time.")
    return None
