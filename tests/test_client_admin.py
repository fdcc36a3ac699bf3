"""The client's REST half: answers in all forms of HTTP, redirects, hosts that are away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pytest

from pyxbroker.client.admin import AdminClient, redirect_of, topic_path
from pyxbroker.client.authentication import BasicAuthentication, TokenAuthentication
from pyxbroker.client.errors import (
    AnswerTimeout,
    BadRedirect,
    ClientError,
    ConnectFailed,
    ConnectionFailed,
    HttpRefused,
    ProtocolFault,
    RedirectLoop,
)
from pyxbroker.client.http import HttpAnswer
from pyxbroker.client.settings import ClientSettings
from scripted_server import run

pytestmark = pytest.mark.usefixtures("each_loop")

Reply = Callable[[str, str], bytes]


def reply(body: bytes = b"", status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Web:
    """Answers each request with the bytes that `reply` returns for its method and target; nothing
    closes the connection.
    """

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Web:
        self._server = await asyncio.start_server(self._converse, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        self.hang_up()

    def hang_up(self) -> None:
        for each in self._writers:
            each.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(each.split(": ", 1) for each in head[1:] if each)
                body = await reader.readexactly(int(headers.get("Content-Length", "0")))
                self.requests.append((head[0], headers, body))
                method, target, _ = head[0].split(" ")
                found = self.reply(method, target)
                if not found:
                    writer.close()
                    return
                writer.write(found)
                if b"Content-Length" not in found and b"chunked" not in found:
                    await writer.drain()
                    writer.close()
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass


def settings(url: str, **more: Any) -> ClientSettings:
    login = TokenAuthentication("authParams", "token:t")
    return ClientSettings(url, authentication=login, **({"operation_timeout_s": 5} | more))


def test_requests_have_their_bodies_and_credentials_on_one_connection() -> None:
    async def main() -> None:
        async with Web(lambda *_: reply(b'{"a": [1]}')) as web:
            async with AdminClient(settings(web.url)) as admin:
                assert await admin.get("/admin/v2/x", b="c d") == {"a": [1]}
                await admin.put("/admin/v2/x", {"y": 1})
                await admin.delete("/admin/v2/x")
                await admin.request("PUT", "/admin/v2/x", b"raw")
            assert [each for each, _, _ in web.requests] == [
                "GET /admin/v2/x?b=c+d HTTP/1.1",
                "PUT /admin/v2/x HTTP/1.1",
                "DELETE /admin/v2/x HTTP/1.1",
                "PUT /admin/v2/x HTTP/1.1",
            ]
            assert [body for _, _, body in web.requests] == [b"", b'{"y": 1}', b"", b"raw"]
            assert {headers["Authorization"] for _, headers, _ in web.requests} == {"Bearer t"}
            assert web.connections == 1

    run(main)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[1,2]",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n[1,2]",
        reply(b"[1,2]", "200 OK", "Connection: close"),
    ],
)
def test_bodies_with_a_length_in_chunks_and_up_to_the_end(answer: bytes) -> None:
    async def main() -> None:
        async with Web(lambda *_: answer) as web, AdminClient(settings(web.url)) as admin:
            for _ in range(2):
                assert await admin.get("/x") == [1, 2]

    run(main)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"nonsense\r\n\r\n", ProtocolFault),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12", ConnectionFailed),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", ProtocolFault),
        (b"", ConnectionFailed),
        (reply(b"{"), ClientError),
    ],
)
def test_broken_answers_raise(answer: bytes, kind: type[Exception]) -> None:
    async def main() -> None:
        async with Web(lambda *_: answer) as web, AdminClient(settings(web.url)) as admin:
            task = asyncio.create_task(admin.get("/x"))
            await asyncio.sleep(0.1)
            web.hang_up()
            with pytest.raises(kind):
                await task

    run(main)


def test_an_idle_connection_that_was_closed_is_replaced() -> None:
    async def main() -> None:
        async with Web(lambda *_: reply()) as web, AdminClient(settings(web.url)) as admin:
            await admin.get("/x")
            web.hang_up()
            assert await admin.get("/x") is None
            # Nor is one that closes just now, unless the request may not be repeated.
            await admin.post("/x")
            assert web.connections == 3

    run(main)


def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    async def main() -> None:
        async with (
            Web(lambda _, target: reply(target[1:].encode())) as web,
            AdminClient(settings(web.url)) as admin,
        ):
            found = await asyncio.gather(*(admin.get(f"/{n}") for n in range(30)))
            assert found == list(range(30)) and web.connections == 30
            await admin.get("/1")
            assert web.connections == 30

    run(main)


def test_a_silent_server_times_out_and_one_that_is_away_is_passed_over() -> None:
    async def main() -> None:
        async with Web(lambda *_: reply(b"1")) as web:
            several = settings(f"http://127.0.0.1:1,{web.url[7:]}")
            async with AdminClient(several) as admin:
                assert await admin.post("/x") == 1
                assert await admin.get("/x") == 1
        silent = await asyncio.start_server(lambda *_: asyncio.sleep(9), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        async with AdminClient(settings(url, operation_timeout_s=0.05)) as admin:
            with pytest.raises(AnswerTimeout):
                await admin.get("/x")
        silent.close()
        async with AdminClient(settings("http://127.0.0.1:1")) as admin:
            with pytest.raises(ConnectFailed):
                await admin.get("/x")

    run(main)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"reason": "Topic not found"}', "Topic not found"),
        (b"plain text", "plain text"),
        (b"", "Not Found"),
        (b"[" * 10_000, "[" * 500),
    ],
)
def test_a_refusal_has_its_status_and_reason(body: bytes, reason: str) -> None:
    async def main() -> None:
        async with (
            Web(lambda *_: reply(body, "404 Not Found")) as web,
            AdminClient(settings(web.url)) as admin,
        ):
            with pytest.raises(HttpRefused) as caught:
                await admin.get("/x")
            assert (caught.value.status, caught.value.reason) == (404, reason)

    run(main)


def test_redirects_are_followed_with_method_body_and_credentials() -> None:
    async def main() -> None:
        async with Web(lambda *_: reply(b"7")) as owner:

            def send_on(method: str, target: str) -> bytes:
                location = f"Location: {owner.url}{target}?authoritative=true"
                return reply(b"", "307 Temporary Redirect", location)

            async with Web(send_on) as other, Web(lambda *_: b"") as first:
                first.reply = lambda method, target: reply(
                    b"", "307 Temporary Redirect", f"Location: {other.url}{target}"
                )
                async with AdminClient(settings(first.url)) as admin:
                    assert await admin.post("/x", {"a": 1}) == 7
            line, headers, body = owner.requests[0]
            assert (line, body) == ("POST /x?authoritative=true HTTP/1.1", b'{"a": 1}')
            assert headers["Authorization"] == "Bearer t"
            assert headers["Host"] == owner.url[7:]

    run(main)


def test_a_ring_of_redirects_ends_and_a_change_is_not_redirected_by_302() -> None:
    async def main() -> None:
        async with (
            Web(lambda _, target: reply(b"", "302 Found", f"Location: {target}")) as web,
            AdminClient(settings(web.url)) as admin,
        ):
            with pytest.raises(RedirectLoop):
                await admin.get("/x")
            assert len(web.requests) == 20
            with pytest.raises(HttpRefused, match="302"):
                await admin.put("/x")

    run(main)


def redirection(url: str, location: str) -> HttpAnswer:
    return HttpAnswer(url, 307, "", {"location": location} if location else {}, b"")


def test_credentials_do_not_leave_tls() -> None:
    with pytest.raises(BadRedirect, match="http://b:8080, which has no TLS"):
        redirect_of(redirection("https://a:8443/x", "http://b:8080/x"))
    assert redirect_of(redirection("https://a:8443/x", "/y?z#part")) == "https://a:8443/y?z"
    assert redirect_of(redirection("http://a/x", "https://b/x")) == "https://b/x"
    for nowhere in ("", "ftp://b/x", "file:///x"):
        with pytest.raises(BadRedirect, match="no URL of a web server"):
            redirect_of(redirection("http://a/x", nowhere))


def test_what_is_sent_in_a_head_cannot_end_it() -> None:
    async def main() -> None:
        async with Web(lambda *_: reply()) as web, AdminClient(settings(web.url)) as admin:
            for evil in ("/x\r\nEvil: 1", "/x HTTP/1.1", "/\xe4"):
                with pytest.raises(ConnectFailed, match="percent-encoded"):
                    await admin.get(evil)
            assert not web.requests

    run(main)


def test_paths_of_topics() -> None:
    assert topic_path("a", "stats") == "/admin/v2/persistent/public/default/a/stats"
    name = "non-persistent://t/n/a%b c"
    assert topic_path(name) == "/admin/v2/non-persistent/t/n/a%25b%20c"


def test_a_password_is_a_basic_header() -> None:
    login = BasicAuthentication("p", "ann:secret")
    assert login.header() == "Basic YW5uOnNlY3JldA=="
