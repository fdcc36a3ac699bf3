"""A minimal HTTP GET, to read what an issuer of tokens publishes.

The server may be slow, silent, or send forever, so the time and the size of the whole answer are
limited. Redirects are not followed, so only the URL from the setting or the issuer is requested.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

import httptools

HEAD_BYTES_MAX = 16 << 10
READ_BYTES = 16 << 10
URL_BYTES_MAX = 2048
PORTS = {"https": 443, "http": 80}
_URL = re.compile(r"[!-~]+")  # no character that could end a line of the request
_OK = 200


class FetchFailed(Exception):
    """Raised when nothing was read. The message gives the reason, without the server's data."""


class FetchLimits(NamedTuple):
    connect_s: float  # to establish the connection, including TLS
    read_s: float  # from the request to the end of the answer
    body_bytes_max: int


def split_url(url: str, schemes: tuple[str, ...]) -> SplitResult:
    """Split a URL that can be fetched. Raises ValueError with the reason if it cannot."""
    if len(url) > URL_BYTES_MAX or not _URL.fullmatch(url):
        raise ValueError("it is too long, or has blanks or characters beyond ASCII")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("it is no URL") from None
    if parts.scheme not in schemes:
        raise ValueError(f"it does not begin with {' or '.join(f'{each}://' for each in schemes)}")
    if not parts.hostname or port == 0:
        raise ValueError("it names no host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it has a user or a password in it")
    return parts


async def fetch(url: SplitResult, tls: ssl.SSLContext, limits: FetchLimits) -> bytes:
    """Return the body of the resource. Raises FetchFailed."""
    host = url.hostname or ""
    port = url.port or PORTS[url.scheme]
    context = tls if url.scheme == "https" else None
    try:
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(host, port, ssl=context), limits.connect_s
        )
    except asyncio.TimeoutError:
        raise FetchFailed(f"no connection within {limits.connect_s:g} s") from None
    except (OSError, ValueError) as error:
        raise FetchFailed(f"no connection: {_reason(error)}") from None
    try:
        writer.write(_request(url))
        return await asyncio.wait_for(_read(reader, limits.body_bytes_max), limits.read_s)
    except asyncio.TimeoutError:
        raise FetchFailed(f"no answer within {limits.read_s:g} s") from None
    except OSError as error:
        raise FetchFailed(f"the connection broke: {_reason(error)}") from None
    finally:
        # close() would wait for the server's TLS closure alert.
        writer.transport.abort()


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate cannot be trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return (error.reason or "TLS failed").lower().replace("_", " ")
    return getattr(error, "strerror", None) or type(error).__name__


def _request(url: SplitResult) -> bytes:
    path = url.path or "/"
    target = f"{path}?{url.query}" if url.query else path
    host = url.netloc.rpartition("@")[2]
    return (
        f"GET {target} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json\r\n"
        "User-Agent: pyxbroker\r\nConnection: close\r\n\r\n"
    ).encode("ascii")


class _Answer:
    """Collects what the parser reports about an answer."""

    def __init__(self, body_bytes_max: int) -> None:
        self.body = bytearray()
        self.is_over = False
        self.is_too_long = False
        self.has_length = False
        self.has_head = False
        self._body_bytes_max = body_bytes_max

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self.has_length = True

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, data: bytes) -> None:
        if len(self.body) + len(data) > self._body_bytes_max:
            self.is_too_long = True
        else:
            self.body += data

    def on_message_complete(self) -> None:
        self.is_over = True


async def _read(reader: asyncio.StreamReader, body_bytes_max: int) -> bytes:
    answer = _Answer(body_bytes_max)
    parser = httptools.HttpResponseParser(answer)
    left = HEAD_BYTES_MAX + 2 * body_bytes_max  # of all bytes; small chunks have large headers
    while not answer.is_over:
        data = await reader.read(READ_BYTES)
        left -= len(data)
        if not data:
            if not answer.has_head or answer.has_length:
                raise FetchFailed("the answer is cut short")
            break  # the end of the connection ends the answer
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            raise FetchFailed("the answer is no HTTP") from None
        if answer.is_too_long or left < 0:
            raise FetchFailed(f"the answer has more than {body_bytes_max} bytes")
    status = parser.get_status_code()
    if status != _OK:
        raise FetchFailed(f"the answer has the status {status}")
    return bytes(answer.body)
