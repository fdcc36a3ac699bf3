"""A sans-IO parser of HTTP/1.1 requests (RFC 9112), on top of httptools.

Bytes go in; events come out: the head of a request, pieces of its body, its end. An error is the
last event and names its reason. Each byte is parsed once, and the body bytes of one call are joined
into one piece, however many chunks they came in.

httptools stops after a head that offers an upgrade, such as h2c, before the body. Servers may
ignore such offers (RFC 9110, 7.8), and Java's client makes one with its first request. A new parser
then continues: it is fed a head that frames the body in the same way (State.RESTART).
"""

from __future__ import annotations

from enum import Enum

import httptools

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.web.errors import HttpError

URL_BYTES_MAX = 8 << 10
HEAD_BYTES_MAX = 16 << 10
# Requests that a client may send before it has received the answer to the first one.
PIPELINE_MAX = 32


class State(Enum):
    """The part of a request that the parser expects next."""

    IDLE = "nothing of the next request has arrived"
    HEAD = "a head"
    BODY = "a body, which may be empty"
    UPGRADE = "the head offers an upgrade, and httptools stops after it"
    RESTART = "a new parser is fed a head that frames the body"
    ENDED = "nothing: the client has sent its last request"
    REFUSED = "input that is ignored"


class Found(Enum):
    """A callback or exception of httptools."""

    BEGIN = "the first byte of a head"
    HEAD = "the end of a head"
    UPGRADE = "the end of a head that offers an upgrade"
    STOP = "the byte where the other protocol would begin"
    END = "the end of a request"
    LAST = "the end of a request that is the last one"


TRANSITIONS = {
    (State.IDLE, Found.BEGIN): State.HEAD,
    (State.HEAD, Found.HEAD): State.BODY,
    (State.HEAD, Found.UPGRADE): State.UPGRADE,
    # httptools reports the end of the request here, also if it has a body.
    (State.UPGRADE, Found.END): State.UPGRADE,
    (State.UPGRADE, Found.STOP): State.RESTART,
    (State.RESTART, Found.BEGIN): State.RESTART,
    (State.RESTART, Found.HEAD): State.BODY,
    (State.BODY, Found.END): State.IDLE,
    (State.BODY, Found.LAST): State.ENDED,
}


class Head(NamedTuple):
    """A request without its body.

    Path and query are undecoded. Header names are in lower case; values of a repeated header are
    joined by commas. `length` is the Content-Length, or None for a chunked body.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    version: str
    keep_alive: bool
    length: int | None
    expects_continue: bool


class End(NamedTuple):
    """The end of a request."""


Event = Head | bytes | End | HttpError
END = End()


class RequestParser:
    """The parser of one connection's requests.

    An HttpError with a `__cause__` is a bug of the broker; the connection logs it.
    """

    def __init__(self) -> None:
        self.state = State.IDLE
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._events: list[Event] = []
        self._room = 0
        # The request that is being parsed.
        self._url = b""
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._keep_alive = True
        self._pieces: list[bytes] = []
        # Bytes since the last callback.
        self._silent_bytes = 0

    @property
    def has_ended(self) -> bool:
        """True if further input is ignored."""
        return self.state is State.ENDED or self.state is State.REFUSED

    def receive(self, data: bytes, room: int) -> list[Event]:
        """Parse bytes and return their events; `room` is the number of requests that may begin in
        them.
        """
        self._room = room
        self._silent_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            if self.state is not State.ENDED:
                self._refuse(_explain(error))
        else:
            # httptools joins the pieces of a header or trailer without a limit.
            if self._silent_bytes > HEAD_BYTES_MAX and not self.has_ended:
                self._refuse(_too_long_head())
        self._take_pieces()
        events, self._events = self._events, []
        return events

    def end(self) -> None:
        """Ignore further input, unless a refusal already did."""
        if self.state is not State.REFUSED:
            self.state = State.ENDED

    def refuse(self) -> None:
        """Ignore the input that a refused client may still send."""
        self.state = State.REFUSED

    def close(self) -> None:
        """Break the reference cycle of this object and httptools' parser."""
        self._parser = None

    # --- what httptools calls -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._find(Found.BEGIN)
        if self.state is State.HEAD:
            self._url = b""
            self._headers = {}
            self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        if self.state is not State.HEAD:
            return
        self._silent_bytes = 0
        self._url += url
        if len(self._url) > URL_BYTES_MAX:
            raise HttpError(414, f"The URL is longer than {URL_BYTES_MAX} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.state is State.RESTART:
            return
        self._silent_bytes = 0
        self._head_bytes += len(name) + len(value) + len(b": \r\n")
        if self._head_bytes > HEAD_BYTES_MAX:
            raise _too_long_head()
        if self.state is not State.HEAD:
            return  # A trailer; these are ignored.
        key = name.decode("latin-1").lower()
        # Blanks around a value are not part of it (RFC 9112, 5.1); httptools leaves trailing ones.
        text = value.rstrip(b" \t").decode("latin-1")
        before = self._headers.get(key)
        if before is not None:
            if key == "host":
                raise HttpError(400, "The request names its host more than once.")
            text = f"{before}, {text}"
        self._headers[key] = text

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        if self.state is State.HEAD:
            self._events.append(self._head(self._parser))
            self._find(Found.UPGRADE if self._parser.should_upgrade() else Found.HEAD)
        else:
            self._find(Found.HEAD)

    def on_body(self, data: bytes) -> None:
        self._silent_bytes = 0
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self.state is State.UPGRADE:
            self._find(Found.END)
            return
        self._take_pieces()
        self._events.append(END)
        self._find(Found.END if self._keep_alive else Found.LAST)

    # --- steps --------------------------------------------------------------------------------

    def _find(self, found: Found) -> None:
        """Enter the next state. A KeyError would be a bug of httptools."""
        self._silent_bytes = 0
        self.state = TRANSITIONS[self.state, found]

    def _feed(self, data: bytes) -> None:
        """Feed httptools. Raises HttpParserError; an exception of a callback is its context."""
        while data and not self.has_ended:
            assert self._parser is not None
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            # Outside of the handler: later errors would have the upgrade as their context.
            self._find(Found.STOP)
            self._restart_parser()

    def _restart_parser(self) -> None:
        """Feed a new parser a head that only frames the body."""
        lines = ["POST / HTTP/1.1"]
        for name in ("content-length", "transfer-encoding"):
            if name in self._headers:
                lines.append(f"{name}: {self._headers[name]}")
        if not self._keep_alive:
            lines.append("connection: close")
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def _head(self, parser: httptools.HttpRequestParser) -> Head:
        """Return the parsed head.

        Raises HttpError if it is invalid, or if too many requests wait.
        """
        headers = self._headers
        version = parser.get_http_version()
        if version == "1.1" and "host" not in headers:
            raise HttpError(400, "The request does not name its host.")
        if self._room == 0:
            raise HttpError(429, f"More than {PIPELINE_MAX} requests wait for their answers.")
        self._room -= 1
        path, query = _parse_url(self._url)
        self._keep_alive = parser.should_keep_alive()
        return Head(
            parser.get_method().decode("ascii"),
            path,
            query,
            headers,
            version,
            self._keep_alive,
            None if "transfer-encoding" in headers else int(headers.get("content-length", 0)),
            version == "1.1" and "100-continue" in headers.get("expect", "").lower(),
        )

    def _take_pieces(self) -> None:
        if self._pieces:
            self._events.append(b"".join(self._pieces))
            self._pieces.clear()

    def _refuse(self, error: HttpError) -> None:
        self._take_pieces()
        self._events.append(error)
        self.state = State.REFUSED


def _too_long_head() -> HttpError:
    return HttpError(431, f"The headers are longer than {HEAD_BYTES_MAX} bytes.")


def _parse_url(url: bytes) -> tuple[str, str]:
    """Return the undecoded path and query of a request target. Raises HttpError."""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        parsed = None
    if parsed is None or parsed.path is None or not parsed.path.startswith(b"/"):
        raise HttpError(400, f"{url.decode('latin-1')!r} is not a path.")
    return parsed.path.decode("ascii"), (parsed.query or b"").decode("ascii")


def _explain(error: httptools.HttpParserError) -> HttpError:
    """Return the refusal for an error of httptools or of a callback."""
    cause = error.__context__
    if isinstance(cause, HttpError):
        # The traceback's frames refer to the list that the error is added to: a reference cycle.
        return cause.with_traceback(None)
    if cause is not None:
        refused = HttpError(500, "The broker failed to read this request; its log says why.")
        refused.__cause__ = cause
        return refused
    return HttpError(400, f"This is not an HTTP request: {error}.")
