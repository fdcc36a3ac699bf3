"""The port of the binary protocol when the machine has nothing left for a connection."""

from __future__ import annotations

import asyncio
import errno
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from pyxbroker.base import listening
from pyxbroker.base.door import Door
from pyxbroker.broker.broker_port import BrokerPort


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
    error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "ACCEPT_RETRY_S", 0.05)

    async def scenario() -> None:
        port = BrokerPort("127.0.0.1", 0)
        accepted: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        broker: Any = SimpleNamespace(
            config=SimpleNamespace(brokerMaxConnections=0, brokerMaxConnectionsPerIp=0),
            door=Door(asyncio.get_running_loop()),
            welcome=lambda _, sock, *peer: (sock.close(), accepted.set_result(peer)),
        )
        port._socket = Short(port._socket, error, error)  # type: ignore[assignment]
        port.serve(broker)
        with socket.create_connection(("127.0.0.1", port.port)) as client:
            assert await asyncio.wait_for(accepted, 10) == client.getsockname()
        port.close()

    asyncio.run(scenario())
