"""The port of the binary protocol when the machine has nothing left for a connection."""

from __future__ import annotations

import asyncio
import errno
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from one_bookie import until
from pyxbroker.base import listening
from pyxbroker.base.poller import Poller
from pyxbroker.broker.broker_port import BrokerPort


def taker(accepted: asyncio.Future[tuple[str, int]]) -> Any:
    """A broker that takes note of the first one who comes."""

    def welcome(_: object, sock: socket.socket, *peer: Any) -> None:
        sock.close()
        accepted.set_result(peer)

    return SimpleNamespace(
        config=SimpleNamespace(brokerMaxConnections=0, brokerMaxConnectionsPerIp=0),
        poller=Poller(asyncio.get_running_loop()),
        welcome=welcome,
    )


class Short:
    """A listening socket whose next accepts fail."""

    def __init__(self, inner: socket.socket, *errors: int) -> None:
        self._inner = inner
        self._errors = list(errors)

    def accept(self) -> Any:
        if self._errors:
            raise OSError(self._errors.pop(0), "as asked for")
        return self._inner.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ECONNABORTED])
def test_who_waits_is_accepted_when_there_is_room_again(
    error: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "ACCEPT_RETRY_S", 0.05)
    ports: list[int] = []

    async def scenario() -> None:
        port = BrokerPort("127.0.0.1", 0)
        accepted: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        port._socket = Short(port._socket, error, error)  # type: ignore[assignment]
        port.serve(taker(accepted))
        with socket.create_connection(("127.0.0.1", port.port)) as client:
            assert await asyncio.wait_for(accepted, 10) == client.getsockname()
        ports.append(port.port)
        port.close()

    asyncio.run(scenario())
    fields = vars(caplog.records[0])["fields"]
    assert fields["port"] == ports[0]
    assert ("remedy" in fields) is (error in {errno.EMFILE, errno.ENFILE})


class ShortPoller(Poller):
    """Which cannot watch anything again for a while."""

    failures = 0

    def watch(self, fd: int, watched: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.ENOMEM, "as asked for")
        super().watch(fd, watched)


def test_a_port_that_cannot_be_watched_again_yet_is_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What an accept had too little of, the watching may have too little of as well."""
    monkeypatch.setattr(listening, "ACCEPT_RETRY_S", 0.02)

    async def scenario() -> None:
        port = BrokerPort("127.0.0.1", 0)
        accepted: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        broker = taker(accepted)
        broker.poller = ShortPoller(asyncio.get_running_loop())
        port._socket = Short(port._socket, errno.ENOMEM)  # type: ignore[assignment]
        port.serve(broker)
        broker.poller.failures = 2
        with socket.create_connection(("127.0.0.1", port.port)) as client:
            assert await asyncio.wait_for(accepted, 10) == client.getsockname()
        port.close()

    asyncio.run(scenario())
    told = [each.getMessage() for each in caplog.records]
    assert told == [
        "a connection could not be accepted",
        *["a port cannot be watched yet, retrying"] * 2,
    ]


@pytest.mark.parametrize("state", ["watched", "waits", "failed to be watched again"])
def test_a_port_is_closed_in_whatever_state_it_is(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "ACCEPT_RETRY_S", 0.02 if "failed" in state else 60)

    async def scenario() -> None:
        port = BrokerPort("127.0.0.1", 0)
        broker = taker(asyncio.get_running_loop().create_future())
        broker.poller = ShortPoller(asyncio.get_running_loop())
        if state != "watched":
            port._socket = Short(port._socket, *[errno.ENOMEM] * 9)  # type: ignore[assignment]
        port.serve(broker)
        broker.poller.failures = most = 1_000
        with socket.create_connection(("127.0.0.1", port.port)):
            if state == "waits":
                await until(lambda: not broker.poller._watched)
            elif state != "watched":
                await until(lambda: broker.poller.failures < most - 1)
            port.close()
            left = broker.poller.failures
            await asyncio.sleep(0.05)
        assert not broker.poller._watched and broker.poller.failures == left

    asyncio.run(scenario())


def test_a_door_that_the_loop_does_not_look_at_watches_nothing() -> None:
    async def scenario() -> None:
        loop = SimpleNamespace(add_reader=lambda *_: 1 / 0)
        poller = Poller(loop)  # type: ignore[arg-type]
        with socket.create_server(("127.0.0.1", 0)) as sock:
            for _ in range(2):  # of which the second is not told that it is watched already
                with pytest.raises(ZeroDivisionError):
                    poller.watch(sock.fileno(), Any)  # type: ignore[arg-type]

    asyncio.run(scenario())
