"""A broker on a port of its own that answers what a test says, for clients that block."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from oracles import wire
from pyxbroker.proto import PulsarApi as pb


class ScriptedBroker:
    """Who connects is let in, and who looks for a topic told that it is here. `answer` gets each
    other command, and returns the frames to send.
    """

    def __init__(self, answer: Callable[[Any], list[bytes]]) -> None:
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
                accepted.sendall(b"".join(self._frames(command)))

    def _frames(self, command: Any) -> list[bytes]:
        if command.type == pb.BaseCommand.CONNECT:
            connected = pb.CommandConnected(server_version="scripted")
            return [frame_of(pb.BaseCommand(type=pb.BaseCommand.CONNECTED, connected=connected))]
        if command.type == pb.BaseCommand.LOOKUP:
            answer = pb.BaseCommand(type=pb.BaseCommand.LOOKUP_RESPONSE)
            answer.lookupTopicResponse.request_id = command.lookupTopic.request_id
            answer.lookupTopicResponse.response = pb.CommandLookupTopicResponse.Connect
            answer.lookupTopicResponse.brokerServiceUrl = self.url
            return [frame_of(answer)]
        return self._answer(command)


def frame_of(command: Any, rest: bytes = b"") -> bytes:
    """A command that may lack what it has to have, and what follows it."""
    return wire.frame(command.SerializePartialToString(), rest)
