"""One GET by HTTP: which answers are whole, and what is sent for which URL."""

from __future__ import annotations

import asyncio

import pytest

from pyxbroker.auth.fetching import FetchFailed, _read, _request, split_url

BODY_BYTES_MAX = 100
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def read(*pieces: bytes) -> bytes:
    async def main() -> bytes:
        reader = asyncio.StreamReader()
        for each in pieces:
            reader.feed_data(each)
        reader.feed_eof()
        return await _read(reader, BODY_BYTES_MAX)

    return asyncio.run(main())


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"Content-Length: 5\r\n\r\nhello",
        CHUNKED + b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nTrailer: z\r\n\r\n",
        HEAD + b"\r\nhello",
        b"HTTP/1.0 200 Fine\r\nX: y\r\n\r\nhello",
    ],
    ids=["length", "chunks", "until the end", "1.0"],
)
def test_a_whole_answer_is_its_body(answer: bytes) -> None:
    assert read(answer) == b"hello"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "cut short"),
        (HEAD, "cut short"),
        (HEAD + b"Content-Length: 5\r\n\r\nhell", "cut short"),
        (CHUNKED + b"2\r\nhe\r\n", "cut short"),
        (HEAD + b"Content-Length: 101\r\n\r\n" + bytes(101), "more than 100 bytes"),
        (HEAD + b"\r\n" + bytes(101), "more than 100 bytes"),
        (HEAD + b"X: y\r\n" * 5000, "more than 100 bytes"),
        (CHUNKED + b"1;" + b"x" * 20_000, "more than 100 bytes"),
        (HEAD + b"Content-Length: 5\r\n\r\nhello and more", "no HTTP"),
        (b"SSH-2.0-x\r\n\r\n", "no HTTP"),
        (CHUNKED + b"zz\r\n", "no HTTP"),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "no HTTP"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", "the status 302"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "the status 100"),
    ],
)
def test_what_is_not_a_whole_answer_is_refused(answer: bytes, reason: str) -> None:
    with pytest.raises(FetchFailed, match=reason):
        read(answer)


@pytest.mark.parametrize(
    ("url", "line", "host"),
    [
        ("https://h", "GET / HTTP/1.1", "h"),
        ("https://h:8443/a/b?c=d#e", "GET /a/b?c=d HTTP/1.1", "h:8443"),
        ("https://[::1]:1/a", "GET /a HTTP/1.1", "[::1]:1"),
    ],
)
def test_a_url_is_asked_as_it_is(url: str, line: str, host: str) -> None:
    head = _request(split_url(url, ("https",))).decode().split("\r\n")
    assert head[:2] == [line, f"Host: {host}"] and head[-2:] == ["", ""]


@pytest.mark.parametrize(
    "url", ["", "https://", "//h", "http://h", "https://h:0/", "https://h\n/", "https://h/ü", "h:1"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="it "):
        split_url(url, ("https",))
