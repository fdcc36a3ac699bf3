"""What a client sends, taken apart: HTTP/1.1 (RFC 9112) by httptools, without socket or clock.

Bytes go in, events come out: the head of a request, pieces of its body, its end. A refusal is the
last event, and says what was wrong or too much. Each byte is looked at once, and what a turn
brought of a body is one piece, however many chunks it came in.

The parser stops behind the head of a request that offers another protocol, such as h2c, before the
body. Nobody has to take such an offer (RFC 9110, 7.8), and Java's client makes it with its first
request. A new parser then goes on: it is told again how the body is framed (State.AGAIN).
"""

from __future__ import annotations

from enum import Enum

import httptools

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.web.errors import HttpError

URL_BYTES_MAX = 8 << 10
HEAD_BYTES_MAX = 16 << 10
# Requests that a client may send before it has got the answer to the first one.
PIPELINE_MAX = 32


class State(Enum):
    """What comes next of what a client sends."""

    IDLE = "nothing of a next request has come"
    HEAD = "a head"
    BODY = "a body, which may be empty"
    OFFER = "the head offered another protocol, and the parser stops behind it"
    AGAIN = "a new parser is told how the body is framed"
    ENDED = "nothing: the client has sent its last request"
    REFUSED = "something that is not looked at any more"


class Found(Enum):
    """What the parser finds."""

    BEGIN = "the first byte of a head"
    HEAD = "the end of a head"
    OFFER = "the end of a head that offers another protocol"
    STOP = "the place where that protocol would begin"
    END = "the end of a request"
    LAST = "the end of a request that is the last one"


NEXT = {
    (State.IDLE, Found.BEGIN): State.HEAD,
    (State.HEAD, Found.HEAD): State.BODY,
    (State.HEAD, Found.OFFER): State.OFFER,
    # The parser takes the request for ended, whatever body it has.
    (State.OFFER, Found.END): State.OFFER,
    (State.OFFER, Found.STOP): State.AGAIN,
    (State.AGAIN, Found.BEGIN): State.AGAIN,
    (State.AGAIN, Found.HEAD): State.BODY,
    (State.BODY, Found.END): State.IDLE,
    (State.BODY, Found.LAST): State.ENDED,
}


class Head(NamedTuple):
    """A request without its body.

    Path and query are raw. Names of headers are in lower case; values of a repeated one are joined
    by commas. `length` is the body's, None when it comes in chunks.
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
    """A request has come to its end."""


Event = Head | bytes | End | HttpError
END = End()


class RequestParser:
    """The requests of one connection.

    An HttpError with a `__cause__` is a fault of ours, which belongs into the log.
    """

    def __init__(self) -> None:
        self.state = State.IDLE
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._events: list[Event] = []
        self._room = 0
        # The request that is coming in.
        self._url = b""
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._keep_alive = True
        self._pieces: list[bytes] = []
        # Bytes since the parser last found anything in them.
        self._silent_bytes = 0

    @property
    def has_ended(self) -> bool:
        """Whether nothing more of what the client sends is looked at."""
        return self.state is State.ENDED or self.state is State.REFUSED

    def receive(self, data: bytes, room: int) -> list[Event]:
        """What the next bytes bring; `room` is how many more requests may begin in them."""
        self._room = room
        self._silent_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            if self.state is not State.ENDED:
                self._refuse(_explain(error))
        else:
            # httptools joins the pieces of a header or a trailer by itself, however long it gets.
            if self._silent_bytes > HEAD_BYTES_MAX and not self.has_ended:
                self._refuse(_too_long_head())
        self._take_pieces()
        events, self._events = self._events, []
        return events

    def end(self) -> None:
        """The client sends no more, or nobody wants to know."""
        if self.state is not State.REFUSED:
            self.state = State.ENDED

    def refuse(self) -> None:
        """The client may be sending something that nobody looks at."""
        self.state = State.REFUSED

    def close(self) -> None:
        """Nothing will be received any more. The parser and this object refer to each other."""
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
        if self.state is State.AGAIN:
            return
        self._silent_bytes = 0
        self._head_bytes += len(name) + len(value) + len(b": \r\n")
        if self._head_bytes > HEAD_BYTES_MAX:
            raise _too_long_head()
        if self.state is not State.HEAD:
            return  # A trailer; nobody reads those.
        key = name.decode("latin-1").lower()
        # Blanks around a value are none of it (RFC 9112, 5.1); httptools keeps those behind it.
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
            self._find(Found.OFFER if self._parser.should_upgrade() else Found.HEAD)
        else:
            self._find(Found.HEAD)

    def on_body(self, data: bytes) -> None:
        self._silent_bytes = 0
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self.state is State.OFFER:
            self._find(Found.END)
            return
        self._take_pieces()
        self._events.append(END)
        self._find(Found.END if self._keep_alive else Found.LAST)

    # --- steps --------------------------------------------------------------------------------

    def _find(self, found: Found) -> None:
        """Goes on to the next state; KeyError would be a fault of the parser."""
        self._silent_bytes = 0
        self.state = NEXT[self.state, found]

    def _feed(self, data: bytes) -> None:
        """Raises HttpParserError; whatever a callback raises is its context."""
        while data and not self.has_ended:
            assert self._parser is not None
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            # Not in the handler: the upgrade would be the context of an error in what follows.
            self._find(Found.STOP)
            self._begin_again()

    def _begin_again(self) -> None:
        """A new parser, brought to the place behind a head that only frames the body."""
        lines = ["POST / HTTP/1.1"]
        for name in ("content-length", "transfer-encoding"):
            if name in self._headers:
                lines.append(f"{name}: {self._headers[name]}")
        if not self._keep_alive:
            lines.append("connection: close")
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def _head(self, parser: httptools.HttpRequestParser) -> Head:
        """Raises HttpError for what no request may be, and for one that is too many."""
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
    """The raw path and query of a request's target. Raises HttpError."""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        parsed = None
    if parsed is None or parsed.path is None or not parsed.path.startswith(b"/"):
        raise HttpError(400, f"{url.decode('latin-1')!r} is not a path.")
    return parsed.path.decode("ascii"), (parsed.query or b"").decode("ascii")


def _explain(error: httptools.HttpParserError) -> HttpError:
    """The refusal for what the parser, or a callback of it, has met."""
    cause = error.__context__
    if isinstance(cause, HttpError):
        # Frames hold the events that it is going to be one of: they would be a ring.
        return cause.with_traceback(None)
    if cause is not None:
        refused = HttpError(500, "The broker failed to read this request; its log says why.")
        refused.__cause__ = cause
        return refused
    return HttpError(400, f"This is not an HTTP request: {error}.")
