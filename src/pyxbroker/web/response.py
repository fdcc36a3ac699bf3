"""The answer of a resource."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from functools import lru_cache
from typing import Any

from pyxbroker.base.compact_json import to_json
from pyxbroker.base.sliced_json import to_json_in_slices

Headers = Iterable[tuple[str, str]]

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = tuple("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split())

# Statuses whose answers have no body.
BODILESS = frozenset({204, 304})


class Response:
    """A status, headers, and a body: bytes, or an iterator that produces pieces.

    The connection adds Date, Content-Length or Transfer-Encoding, and Connection. If the client
    disconnects early, the connection closes the iterator.
    """

    __slots__ = ("body", "headers", "held_bytes", "status")

    body: bytes | AsyncIterator[bytes]

    def __init__(
        self,
        body: bytes | AsyncIterator[bytes] = b"",
        content_type: str | None = None,
        status: int = 200,
        headers: Headers = (),
        held_bytes: int = 0,
    ) -> None:
        self.status = status
        self.held_bytes = held_bytes  # memory that an iterator holds in addition to its pieces
        self.headers = list(headers)
        if content_type is not None:
            self.headers.append(("Content-Type", content_type))
        self.body = body

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: Headers = ()) -> Response:
        """Return a JSON answer, formatted as compactly as Pulsar's."""
        return cls(to_json(value), JSON, status, headers)

    @classmethod
    async def long_json(cls, value: Any) -> Response:
        """Return a JSON answer for a large value, encoded in time slices."""
        return cls(await to_json_in_slices(value), JSON)

    @classmethod
    def text(cls, text: str, content_type: str = TEXT, status: int = 200) -> Response:
        """Return an answer of text in UTF-8."""
        return cls(text.encode(), content_type, status)

    @classmethod
    def empty(cls, status: int = 204, headers: Headers = ()) -> Response:
        """Return an answer without a body."""
        return cls(b"", None, status, headers)

    async def close(self) -> None:
        """Close the iterator if it has not ended, so that its `finally` blocks run."""
        close = getattr(self.body, "aclose", None)
        if close is not None:
            await close()

    def encode_head(self, version: str, framing: Headers) -> bytes:
        """Return status line and headers.

        Raises ValueError for a header with control characters.
        """
        lines = [f"HTTP/{version} {self.status} {phrase(self.status)}"]
        lines.append(f"Date: {date(int(time.time()))}")
        for headers in (self.headers, framing):
            for name, value in headers:
                if not value.isprintable() or not name.isprintable():
                    raise ValueError(f"the header {name!r} cannot be {value!r}")
                lines.append(f"{name}: {value}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@lru_cache
def phrase(status: int) -> str:
    """Return the reason phrase of a status; empty if it has none."""
    if status == 200:
        return "OK"
    from http import HTTPStatus

    return next((each.phrase for each in HTTPStatus if each.value == status), "")


@lru_cache(maxsize=1)
def date(seconds: int) -> str:
    """Format a time as HTTP does (RFC 9110, 5.6.7), independent of the locale."""
    at = time.gmtime(seconds)
    day, month = DAYS[at.tm_wday], MONTHS[at.tm_mon - 1]
    return f"{day}, {at.tm_mday:02} {month} {at.tm_year:04} {time.strftime('%H:%M:%S', at)} GMT"
