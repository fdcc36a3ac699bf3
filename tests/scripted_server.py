"""A broker in the test's own event loop that answers as a script says, for clients in asyncio."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any

import uvloop

from pyxbroker.client.settings import ClientSettings
from pyxbroker.proto import PulsarApi as pb
from scripted_broker import frame_of

Answer = Callable[["Peer", Any, bytes], None]
_NAMES = {field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields}


def command_of(kind: int, **fields: Any) -> Any:
    """A command whose body has these fields; further ones may be set."""
    command = pb.BaseCommand(type=kind)
    body = getattr(command, _NAMES[kind])
    for name, value in fields.items():
        setattr(body, name, value)
    return command


def body_of(command: Any) -> Any:
    return getattr(command, _NAMES[command.type])


RUNNERS: dict[str, Callable[[Coroutine[Any, Any, None]], None]] = {
    "asyncio": asyncio.run,
    "uvloop": uvloop.run,
}
_run = RUNNERS["asyncio"]


def use_loop(name: str) -> None:
    """The kind of event loop on which `run` runs; the fixture `each_loop` calls it."""
    global _run
    _run = RUNNERS[name]


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a test's coroutine, for 20 s at most."""
    _run(asyncio.wait_for(main(), 20))


class Peer:
    """One connection of a client."""

    def __init__(self, server: Server, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self._writer = writer

    def say(self, kind: int, rest: bytes = b"", **fields: Any) -> None:
        self.write(frame_of(command_of(kind, **fields), rest))

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def close(self) -> None:
        self._writer.transport.abort()


class Server:
    """Answers each command by the function for its type in `answers`; `async with` runs it.

    As it is, it has every topic, and stores what is sent with ledger 3 and entries from 0.
    """

    def __init__(self, answers: Mapping[Any, Answer] | None = None) -> None:
        self.answers: dict[int, Answer] = {**_ANSWERS, **(answers or {})}
        self.commands: list[Any] = []
        self.sections: list[bytes] = []
        """Of each SEND."""
        self.peers: list[Peer] = []
        self.entries = itertools.count()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"pulsar://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def settings(self, **more: Any) -> ClientSettings:
        return ClientSettings(self.url, **({"operation_timeout_s": 5, "keep_alive_s": 0} | more))

    def said(self, kind: int) -> list[Any]:
        """The bodies of the commands of a kind."""
        return [body_of(each) for each in self.commands if each.type == kind]

    async def until(self, kind: int, count: int = 1) -> list[Any]:
        """Waits for so many commands of a kind."""
        for _ in range(2000):
            if len(found := self.said(kind)) >= count:
                return found
            await asyncio.sleep(0.005)
        raise AssertionError(f"{kind} came {len(found)} times")

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._converse, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for each in self.peers:
            each.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(self, writer)
        self.peers.append(peer)
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                size = int.from_bytes(frame[:4], "big")
                command = pb.BaseCommand.FromString(frame[4 : 4 + size])
                self.commands.append(command)
                if command.type == pb.BaseCommand.SEND:
                    self.sections.append(frame[4 + size :])
                answer = self.answers.get(command.type)
                if answer is not None:
                    answer(peer, body_of(command), frame[4 + size :])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass


def here(peer: Peer, body: Any, rest: bytes) -> None:
    """Answers a LOOKUP: the topic is here."""
    peer.say(
        pb.BaseCommand.LOOKUP_RESPONSE,
        request_id=body.request_id,
        response=pb.CommandLookupTopicResponse.Connect,
        brokerServiceUrl=peer.server.url,
        authoritative=True,
    )


def succeed(peer: Peer, body: Any, rest: bytes) -> None:
    peer.say(pb.BaseCommand.SUCCESS, request_id=body.request_id)


def refuse(code: int, message: str = "no") -> Answer:
    """Answers any request with an ERROR."""

    def answer(peer: Peer, body: Any, rest: bytes) -> None:
        peer.say(pb.BaseCommand.ERROR, request_id=body.request_id, error=code, message=message)

    return answer


def receipt(peer: Peer, body: Any, rest: bytes) -> None:
    """Answers a SEND: it is stored."""
    command = command_of(
        pb.BaseCommand.SEND_RECEIPT, producer_id=body.producer_id, sequence_id=body.sequence_id
    )
    command.send_receipt.message_id.ledgerId = 3
    command.send_receipt.message_id.entryId = next(peer.server.entries)
    peer.write(frame_of(command))


_ANSWERS: dict[int, Answer] = {
    pb.BaseCommand.CONNECT: lambda peer, body, rest: peer.say(
        pb.BaseCommand.CONNECTED, server_version="scripted", protocol_version=21
    ),
    pb.BaseCommand.LOOKUP: here,
    pb.BaseCommand.PRODUCER: lambda peer, body, rest: peer.say(
        pb.BaseCommand.PRODUCER_SUCCESS,
        request_id=body.request_id,
        producer_name=body.producer_name or "chosen",
    ),
    pb.BaseCommand.SUBSCRIBE: succeed,
    pb.BaseCommand.SEND: receipt,
    pb.BaseCommand.CLOSE_PRODUCER: succeed,
    pb.BaseCommand.CLOSE_CONSUMER: succeed,
}
