"""What a resource is asked."""

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
from pyxbroker.base.slices import Slices
from pyxbroker.web.coercion import parse_bool, parse_int, read_float
from pyxbroker.web.endpoint import BODY_BYTES_MAX, Endpoint
from pyxbroker.web.errors import HttpError

App = TypeVar("App")  # what the resources of a server find in `Request.app`

QUERY_FIELDS_MAX = 100
SHORT_BYTES = 1 << 10  # a body that is not worth a look at what is in it
HALF_BYTES = 3  # of what tells half a character, behind its first one
SIGN_BYTES = 112  # what a value of JSON takes at most, a WrittenFloat, besides its text

_WRONG_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")


class Request(Generic[App]):
    """A request whose head has come; the body follows while the resource runs.

    `path` is raw, as it was sent. The router says which `endpoint` it asks for; `parameters` are
    those of its path, decoded and typed. `principal` is who asks,
    `common_name` that of the client's certificate, `address` that of the client; one that comes by
    HTTPS `is_tls`. `login()` is held
    while it is looked at who that is. `authorize_again` is there where the right was looked at
    before the body had come. A GET that has made something, as a few do, says so in `has_created`.
    While it `is_for_client_only` nothing is changed, and the work ends when its client `is_gone`;
    who `sends_no_more` may have gone.
    Names of headers are in lower case; values of a repeated one are joined by commas.
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
        "headers",
        "is_for_client_only",
        "is_gone",
        "is_tls",
        "keep_alive",
        "login",
        "method",
        "parameters",
        "path",
        "principal",
        "query_string",
        "sends_no_more",
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
        self.is_gone = False
        self.sends_no_more = False
        self._query: dict[str, str] | None = None

    def segments(self) -> list[str]:
        """The path between its slashes, each part decoded by itself: %2F does not divide.

        A slash at the end means nothing. Raises HttpError 400 for what is not UTF-8 in escapes.
        """
        parts = self.path.split("/")[1:]
        if parts and not parts[-1]:
            parts.pop()
        return [decode(part) for part in parts]

    @property
    def query(self) -> Mapping[str, str]:
        """The fields behind the question mark, decoded; the first one of a name counts."""
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
        """The media type of the body in lower case, without its parameters; may be empty."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def argument(self, name: str) -> Any:
        """A field of the query, of the type that the endpoint gives it; its default without one.

        Raises HttpError 400.
        """
        field = self.endpoint.field(name)
        text = self.query.get(name)
        kind = field.kind
        # Empty is no number and no truth value: the default counts, as in JAX-RS.
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
        """The whole body. Raises HttpError: 413 when it is longer, 408 when it is too slow; and
        AuthorizationError when its sender has no right any more.
        """
        found = await self.body.read(bytes_max)
        again, self.authorize_again = self.authorize_again, None
        if again is not None:
            await again(self)
        return found

    async def json(self, bytes_max: int = BODY_BYTES_MAX, tokens_max: int = TOKENS_MAX) -> Any:
        """The body as JSON. Raises HttpError, 400 when it is none, or has more values and names:
        nothing else runs while it is read.
        """
        coding = self.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            raise HttpError(415, f"A body in {coding:.100} is not read; send it as it is.")
        body = await self.read(bytes_max)
        if len(body) > SHORT_BYTES:
            await self._weigh(body, tokens_max)
        slices = Slices()
        try:
            value = json.loads(body, parse_constant=_no_number, parse_float=read_float)
            await slices.pause()
            if await _may_have_halves(body, slices):
                json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            reason = "The body has half of a character (one of \\ud800 to \\udfff alone)."
            raise HttpError(400, reason) from None
        except (ValueError, RecursionError) as error:
            raise HttpError(400, f"The body is not JSON: {error}.") from None
        return value

    async def _weigh(self, body: bytes, tokens_max: int) -> None:
        """Raises HttpError where it has too many values, and TooManyBodies where too much is held
        for all requests.
        """
        signs = await weigh(body, tokens_max)
        if signs > tokens_max:
            raise HttpError(400, f"The body {too_heavy(tokens_max)}.")
        # What is made of its texts, as they are and once more; of one that has characters beyond
        # ASCII each may take four bytes.
        width = 1 if body.isascii() and b"\\u" not in body else 4
        self.body.hold(signs * SIGN_BYTES + (1 + width) * len(body))


async def _may_have_halves(body: bytes, slices: Slices) -> bool:
    """Whether there are escapes of what may be half a character: nobody could write it down."""
    for at in range(0, len(body), CHUNK_BYTES):
        if _HALVES.search(body, at, at + CHUNK_BYTES + HALF_BYTES) is not None:
            return True
        await slices.pause()
    return False


_HALVES = re.compile(rb"\\u[dD][89a-fA-F]")


def _no_number(text: str) -> float:
    """Python reads NaN and Infinity, which JSON does not have: nobody else could read a record
    with them.
    """
    raise ValueError(f"{text} is not a number of JSON")


class Body:
    """The bytes behind the head, fed by the connection, read by the resource.

    `length` is what Content-Length says, None when the body comes in chunks; `size` counts the
    bytes that came, `discarded` those that came after the answer. `on_wait` is called when the
    reader wants more than is there. While it `needs_continue`, the client waits to be told.
    `account` pays for what is long until the body is closed, which it is when its request is
    answered: nothing of it is kept then.
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
        """Whether the reader is waiting for more."""
        return self._waiter is not None

    def feed(self, data: bytes) -> None:
        """The next bytes."""
        self.needs_continue = False
        self.size += len(data)
        if self.is_discarded:
            self.discarded += len(data)
            return
        if not self._is_closed:
            self._data += data
            self._wake()

    def end(self) -> None:
        """The last byte has come."""
        self.complete = True
        if self.account is not None:
            self.account.end()
        self._wake()

    def fail(self, error: Exception) -> None:
        """No more bytes will come: whoever reads gets the error."""
        if not self.complete:
            self._error = error
            self.close()
            self._wake()

    def discard(self) -> None:
        """Nobody will read: what comes is only counted."""
        self.is_discarded = True
        self.close()

    def close(self) -> None:
        """Nobody will read: nothing is kept, nor paid for."""
        self._is_closed = True
        self._data = bytearray()
        self._whole = None
        if self.account is not None:
            self.account.release()

    def hold(self, size: int) -> None:
        """So much is made of what is there, until it is closed. Raises TooManyBodies."""
        if self.account is not None:
            self.account.hold(size)

    async def read(self, bytes_max: int) -> bytes:
        """All bytes; may be called again. Raises HttpError."""
        while True:
            if max(self.size, self.length or 0) > bytes_max:
                raise HttpError(413, f"The body is longer than {bytes_max} bytes.")
            if self._error is not None:
                raise self._error
            assert not self._is_closed, "who has answered does not read"
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
    """A part of a path without its escapes. Raises HttpError 400 when they are no UTF-8."""
    if "%" not in part:
        return part
    if _WRONG_ESCAPE.search(part):
        raise HttpError(400, f"{part!r} has an escape that is not % and two hexadecimal digits.")
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise HttpError(400, f"The escapes of {part!r} are not UTF-8.") from None
