"""A request and its body, as a resource sees them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, unquote

from pyxbroker.auth.principal import ANONYMOUS, Principal
from pyxbroker.base.json_weight import CHUNK_BYTES, TOKENS_MAX, too_heavy, weigh
from pyxbroker.base.memory_budget import WebBody
from pyxbroker.base.slices import Slices, in_slices
from pyxbroker.web.coercion import parse_bool, parse_int, read_float
from pyxbroker.web.endpoint import BODY_BYTES_MAX, Endpoint
from pyxbroker.web.errors import HttpError

App = TypeVar("App")  # type of `Request.app`, for the resources of a server

QUERY_FIELDS_MAX = 100
SHORT_BYTES = 1 << 10  # a shorter body is parsed without counting its tokens
SURROGATE_TAIL_BYTES = 3  # length of a surrogate's escape after its first three characters
TOKEN_BYTES = 112  # memory that a JSON value takes at most in addition to its text (WrittenFloat)

_WRONG_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")


class Request(Generic[App]):
    """A request whose head is complete; the body arrives while the resource runs.

    `path` is undecoded. The router sets `endpoint` and `parameters`: those of the path, decoded and
    typed. `principal` is the authenticated client, `common_name` that of its TLS certificate,
    `address` its IP address, and `is_tls` is True for HTTPS. `login()` is entered during
    authentication. `authorize_again` is set if the right was checked before the body was complete:
    it is checked once more after that. A handler of GET that creates something sets `has_created`.
    While `is_for_client_only` is set, the request changes nothing and is cancelled when its client
    `is_disconnected`. A client that `has_sent_eof` may have disconnected. Header names are in lower
    case; values of a repeated header are joined by commas.
    """

    __slots__ = (
        "_query",
        "address",
        "app",
        "authorize_again",
        "body",
        "common_name",
        "endpoint",
        "has_created",
        "has_sent_eof",
        "headers",
        "is_disconnected",
        "is_for_client_only",
        "is_tls",
        "keep_alive",
        "login",
        "method",
        "parameters",
        "path",
        "principal",
        "query_string",
        "version",
    )

    app: App
    endpoint: Endpoint

    def __init__(
        self,
        method: str,
        path: str,
        query_string: str,
        headers: Mapping[str, str],
        body: Body,
        *,
        version: str = "1.1",
        keep_alive: bool = True,
        principal: Principal = ANONYMOUS,
        common_name: str = "",
        address: str = "",
        is_tls: bool = False,
        login: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.method = method
        self.path = path
        self.query_string = query_string
        self.headers = headers
        self.body = body
        self.version = version
        self.keep_alive = keep_alive
        self.principal = principal
        self.common_name = common_name
        self.address = address
        self.is_tls = is_tls
        self.login = login
        self.authorize_again: Callable[[Request[App]], Awaitable[None]] | None = None
        self.parameters: dict[str, Any] = {}
        self.has_created = False
        self.is_for_client_only = False
        self.is_disconnected = False
        self.has_sent_eof = False
        self._query: dict[str, str] | None = None

    def segments(self) -> list[str]:
        """Return the segments of the path, each decoded separately: %2F does not divide.

        A trailing slash is ignored. Raises HttpError 400 for escapes that are not UTF-8.
        """
        parts = self.path.split("/")[1:]
        if parts and not parts[-1]:
            parts.pop()
        return [decode(part) for part in parts]

    @property
    def query(self) -> Mapping[str, str]:
        """The decoded fields of the query string; the first of repeated fields counts."""
        if self._query is None:
            try:
                pairs = parse_qsl(
                    self.query_string,
                    keep_blank_values=True,
                    errors="strict",
                    max_num_fields=QUERY_FIELDS_MAX,
                )
            except ValueError as error:
                raise HttpError(400, f"The query cannot be read: {error}.") from None
            self._query = dict(reversed(pairs))
        return self._query

    @property
    def content_type(self) -> str:
        """The media type of the body in lower case, without parameters; may be empty."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def argument(self, name: str) -> Any:
        """Return a field of the query in its declared type, or its default.

        Raises HttpError 400.
        """
        field = self.endpoint.field(name)
        text = self.query.get(name)
        kind = field.kind
        # An empty text is neither a number nor a boolean: the default applies, as in JAX-RS.
        if text is None or (not text and kind is not str):
            return field.default
        if kind is str:
            return text
        if kind is bool:
            return parse_bool(text)
        try:
            return parse_int(text)
        except ValueError:
            reason = f"{name} must be a whole number of at most 64 bits, not {text!r:.100}."
            raise HttpError(400, reason) from None

    async def read(self, bytes_max: int = BODY_BYTES_MAX) -> bytes:
        """Return the complete body.

        Raises HttpError 413 if it is too long and 408 if the client is too slow, and
        AuthorizationError if the client has lost the right meanwhile.
        """
        found = await self.body.read(bytes_max)
        again, self.authorize_again = self.authorize_again, None
        if again is not None:
            await again(self)
        return found

    async def json(self, bytes_max: int = BODY_BYTES_MAX, tokens_max: int = TOKENS_MAX) -> Any:
        """Return the body parsed as JSON. Raises HttpError 400 if it is invalid or has too many
        tokens.

        The event loop does nothing else while json.loads runs, so tokens are limited.
        """
        coding = self.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            raise HttpError(415, f"A body in {coding:.100} is not read; send it as it is.")
        body = await self.read(bytes_max)
        if len(body) > SHORT_BYTES:
            await self._weigh(body, tokens_max)
        slices = Slices()
        try:
            value = json.loads(body, parse_constant=_refuse_constant, parse_float=read_float)
            await slices.pause()
            if await _may_have_surrogates(body, slices):
                json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            reason = "The body has half of a character (one of \\ud800 to \\udfff alone)."
            raise HttpError(400, reason) from None
        except (ValueError, RecursionError) as error:
            raise HttpError(400, f"The body is not JSON: {error}.") from None
        return value

    async def _weigh(self, body: bytes, tokens_max: int) -> None:
        """Charge the memory that the parsed body needs.

        Raises HttpError 400 if the body has too many tokens, and TooManyBodies if the bodies of all
        requests need too much memory.
        """
        tokens = await weigh(body, tokens_max)
        if tokens > tokens_max:
            raise HttpError(400, f"The body {too_heavy(tokens_max)}.")
        # Each text exists twice: in the body and parsed. With characters beyond ASCII, CPython may
        # take four bytes for each character.
        width = 1 if body.isascii() and b"\\u" not in body else 4
        self.body.hold(tokens * TOKEN_BYTES + (1 + width) * len(body))


async def _may_have_surrogates(body: bytes, slices: Slices) -> bool:
    """Return True if the body has escapes of surrogates; one alone could not be encoded."""
    async for at in in_slices(range(0, len(body), CHUNK_BYTES), slices):
        if _SURROGATE.search(body, at, at + CHUNK_BYTES + SURROGATE_TAIL_BYTES) is not None:
            return True
    return False


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _refuse_constant(text: str) -> float:
    """Refuse NaN and Infinity, which Python's parser accepts and JSON does not have.

    Other programs could not parse a record with them.
    """
    raise ValueError(f"{text} is not a number of JSON")


class Body:
    """The body of a request: the connection feeds it, the resource reads it.

    `length` is the Content-Length, or None for a chunked body. `size` counts received bytes,
    `discarded` those received after the answer. `on_wait` is called when the reader waits for more.
    While `needs_continue` is set, the client waits for 100 Continue. `account` is charged for a
    long body until it is closed, which frees its memory when the request is answered.
    """

    __slots__ = (
        "_data",
        "_error",
        "_is_closed",
        "_on_wait",
        "_waiter",
        "_whole",
        "account",
        "complete",
        "discarded",
        "is_discarded",
        "length",
        "needs_continue",
        "size",
    )

    def __init__(
        self,
        length: int | None,
        on_wait: Callable[[], None],
        *,
        needs_continue: bool = False,
        account: WebBody | None = None,
    ) -> None:
        self.length = length
        self.needs_continue = needs_continue
        self.size = 0
        self.complete = False
        self.discarded = 0
        self.is_discarded = False
        self._on_wait = on_wait
        self.account = account
        self._data = bytearray()  # pieces may be very short
        self._whole: bytes | None = None
        self._is_closed = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_awaited(self) -> bool:
        """True while the reader waits for more bytes."""
        return self._waiter is not None

    def feed(self, data: bytes) -> None:
        """Add the next received bytes."""
        self.needs_continue = False
        self.size += len(data)
        if self.is_discarded:
            self.discarded += len(data)
            return
        if not self._is_closed:
            self._data += data
            self._wake()

    def end(self) -> None:
        """Mark the body as complete."""
        self.complete = True
        if self.account is not None:
            self.account.end()
        self._wake()

    def fail(self, error: Exception) -> None:
        """End the body early: readers get the error."""
        if not self.complete:
            self._error = error
            self.close()
            self._wake()

    def discard(self) -> None:
        """Close the body, and only count the bytes that still arrive."""
        self.is_discarded = True
        self.close()

    def close(self) -> None:
        """Free the memory of the body; it is not read any more."""
        self._is_closed = True
        self._data = bytearray()
        self._whole = None
        if self.account is not None:
            self.account.release()

    def hold(self, size: int) -> None:
        """Charge memory for parsed values until the body is closed. Raises TooManyBodies."""
        if self.account is not None:
            self.account.hold(size)

    async def read(self, bytes_max: int) -> bytes:
        """Return all bytes; can be called repeatedly. Raises HttpError."""
        while True:
            if max(self.size, self.length or 0) > bytes_max:
                raise HttpError(413, f"The body is longer than {bytes_max} bytes.")
            if self._error is not None:
                raise self._error
            assert not self._is_closed, "read after close"
            if self.complete:
                break
            self._on_wait()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._whole is None:
            self._whole = bytes(self._data)
            self._data = bytearray()
        return self._whole

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def decode(part: str) -> str:
    """Return a path segment without its escapes. Raises HttpError 400 if they are not UTF-8."""
    if "%" not in part:
        return part
    if _WRONG_ESCAPE.search(part):
        raise HttpError(400, f"{part!r} has an escape that is not % and two hexadecimal digits.")
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise HttpError(400, f"The escapes of {part!r} are not UTF-8.") from None
