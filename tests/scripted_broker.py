"""A broker on a port of its own that answers what a test says, for clients that block."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from pyxbroker.proto import PulsarApi as pb

CONNECTED = pb.BaseCommand(
    type=pb.BaseCommand.CONNECTED, connected=pb.CommandConnected(server_version="scripted")
)


class ScriptedBroker:
    """Who connects is let in. `answer` gets each command after that, and returns those to send."""

    def __init__(self, answer: Callable[[Any], list[Any]]) -> None:
        self.commands: list[Any] = []
        """All that clients said."""
        self._answer = answer
        self._server = socket.create_server(("127.0.0.1", 0))
        self._accepted: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self._server.getsockname()[1]}"

    def said(self, kind: int) -> list[Any]:
        """The commands of a kind."""
        return [each for each in self.commands if each.type == kind]

    def __enter__(self) -> ScriptedBroker:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in (self._server, *self._accepted):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()

    def _serve(self) -> None:
        """Until the server's socket is shut down."""
        threads: list[threading.Thread] = []
        with suppress(OSError):
            while True:
                accepted, _ = self._server.accept()
                self._accepted.append(accepted)
                threads.append(threading.Thread(target=self._converse, args=(accepted,)))
                threads[-1].start()
        for each in threads:
            each.join()

    def _converse(self, accepted: socket.socket) -> None:
        with accepted, accepted.makefile("rb") as received, suppress(OSError):
            while head := received.read(4):
                frame = received.read(int.from_bytes(head, "big"))
                size = int.from_bytes(frame[:4], "big")
                command = pb.BaseCommand.FromString(frame[4 : 4 + size])
                self.commands.append(command)
                is_first = command.type == pb.BaseCommand.CONNECT
                for each in [CONNECTED] if is_first else self._answer(command):
                    accepted.sendall(frame_of(each))


def frame_of(command: Any) -> bytes:
    """A command that may lack what it has to have."""
    body = command.SerializePartialToString()
    return (len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body
