"""Requests of a broker to the other brokers of its cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pyxbroker.base.errors import ServiceNotReady
from pyxbroker.base.properties import ConfigError
from pyxbroker.broker.listeners import Addresses
from pyxbroker.broker.lookup import Redirect
from pyxbroker.broker.peers import Ask, PeerRefused, note_caller
from pyxbroker.cluster import peers as cluster_peers
from pyxbroker.cluster.peers import ClusterPeers
from pyxbroker.settings.config import Config

TOKEN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
HERE = Addresses("pulsar://127.0.0.1:1", "http://127.0.0.1:2")


class Peer:
    """A web server that gives the same answer to each request, or none, and notes the requests."""

    def __init__(self, status: str, body: str = "", headers: str = "") -> None:
        self._answer = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n{body}"
        self._is_silent = not status
        self.heads: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return writer.close()
            self.heads.append(head.decode())
            if self._is_silent:
                continue
            writer.write(self._answer.replace("PORT", str(self.port)).encode())

    @property
    def redirect(self) -> Redirect:
        urls = Addresses("", f"http://127.0.0.1:{self.port}")
        return Redirect(urls, authoritative=False)


def run(peer: Peer, scenario: Callable[[ClusterPeers], Awaitable[None]], **settings: str) -> None:
    async def body() -> None:
        server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
        peer.port = server.sockets[0].getsockname()[1]
        peers = ClusterPeers(Config.load(overrides=settings), HERE)
        try:
            await scenario(peers)
        finally:
            peers.close()
            server.close()

    asyncio.run(body())


def test_the_credentials_of_the_answered_request_are_forwarded() -> None:
    peer = Peer("200 OK", '{"a": 1}')

    async def scenario(peers: ClusterPeers) -> None:
        note_caller({"authorization": "Bearer mine", "cookie": "not this", "x-other": "y"})
        answer: Any = await peers.ask(peer.redirect, Ask("GET", "/admin/v2/x?y=z"))
        assert answer == {"a": 1}

    run(peer, scenario)
    [head] = peer.heads
    assert head.startswith("GET /admin/v2/x?y=z HTTP/1.1\r\n")
    assert "authorization: Bearer mine\r\n" in head
    assert "not this" not in head and "x-other" not in head


def test_the_own_login_replaces_those_credentials() -> None:
    peer = Peer("204 No Content")

    async def scenario(peers: ClusterPeers) -> None:
        note_caller({"authorization": "Bearer mine"})
        assert await peers.ask(peer.redirect, Ask("DELETE", "/x")) is None
        assert "brokers" not in repr(peers._authentication)

    run(
        peer,
        scenario,
        brokerClientAuthenticationPlugin=TOKEN,
        brokerClientAuthenticationParameters="token:brokers",
    )
    assert "Authorization: Bearer brokers\r\n" in peer.heads[0]
    assert "mine" not in peer.heads[0]


def test_a_refusal_has_its_status_and_names_the_missing_login() -> None:
    async def scenario(peers: ClusterPeers) -> None:
        with pytest.raises(
            PeerRefused, match=r"who\? .*brokerClientAuthenticationPlugin"
        ) as refused:
            await peers.ask(peer.redirect, Ask("GET", "/x"))
        assert refused.value.status == 401

    peer = Peer("401 Unauthorized", '{"reason": "who?"}')
    run(peer, scenario)


def test_brokers_that_redirect_to_each_other_end_a_request() -> None:
    peer = Peer("307 Temporary Redirect", headers="Location: http://127.0.0.1:PORT/x\r\n")

    async def scenario(peers: ClusterPeers) -> None:
        with pytest.raises(ServiceNotReady, match="redirect to each other"):
            await peers.ask(peer.redirect, Ask("GET", "/x"))

    run(peer, scenario)
    assert len(peer.heads) == cluster_peers.HOPS_MAX


def test_a_silent_broker_ends_a_request_after_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_peers, "ANSWER_TIMEOUT_S", 0.05)
    peer = Peer("")

    async def scenario(peers: ClusterPeers) -> None:
        with pytest.raises(ServiceNotReady, match=r"The broker at http://.* cannot be asked: .*"):
            await peers.ask(peer.redirect, Ask("GET", "/x"))

    run(peer, scenario)


def test_an_unknown_login_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"brokerClientAuthenticationPlugin: 'x' is not known"):
        ClusterPeers(Config.load(overrides={"brokerClientAuthenticationPlugin": "x"}), HERE)


def test_a_broker_without_a_login_says_at_the_start_what_does_not_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def warnings(**settings: str) -> int:
        caplog.clear()
        ClusterPeers(Config.load(overrides=settings), HERE).close()
        return sum("brokerClientAuthenticationPlugin" in each.message for each in caplog.records)

    login = {
        "brokerClientAuthenticationPlugin": "token",
        "brokerClientAuthenticationParameters": "token:x",
    }
    assert warnings() == 0
    assert warnings(authenticationEnabled="true") == 1
    assert warnings(authenticationEnabled="true", **login) == 0
    assert warnings(authenticationEnabled="true", anonymousUserRole="guest") == 0


def test_the_parameters_of_the_login_are_a_secret() -> None:
    config = Config.load(overrides={"brokerClientAuthenticationParameters": "token:brokers"})
    assert "brokers" not in str(config.changed())


def test_a_silent_peer_is_told_from_one_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_peers, "PROBE_TIMEOUT_S", 0.05)

    def ask(peer: Peer) -> list[str]:
        reasons: list[str] = []

        async def scenario(peers: ClusterPeers) -> None:
            reasons.append(await peers.silence(peer.redirect))
            gone = Redirect(Addresses("", "http://127.0.0.1:1"), authoritative=False)
            reasons.append(await peers.silence(gone))

        run(peer, scenario)
        return reasons

    assert ask(Peer("503 Starting")) == ["", "connection refused"]
    assert ask(Peer("")) == ["silent for 0.05 s", "connection refused"]
