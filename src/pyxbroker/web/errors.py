"""Errors as Pulsar's REST answers them: a status and `{"reason": ...}`."""

from __future__ import annotations

from pyxbroker.web.response import Headers, Response


class HttpError(Exception):
    """A refused request: a status, and a reason that the user can act on."""

    def __init__(self, status: int, reason: str, headers: Headers = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers


def refusal(status: int, reason: str, headers: Headers = ()) -> Response:
    """Return the answer for a refused request."""
    # The reason may repeat what the client sent, which may be invalid Unicode.
    text = reason.encode("utf-8", "backslashreplace").decode()
    return Response.json({"reason": text}, status, headers)
