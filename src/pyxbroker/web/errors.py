"""Refusals as Pulsar's REST answers them: a status and `{"reason": ...}`."""

from __future__ import annotations

from pyxbroker.web.response import Headers, Response


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
