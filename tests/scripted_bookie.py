"""A bookie in the test's own event loop that speaks BookKeeper's v2 frames as a script says."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

ADD, READ, BATCH_READ = 1, 2, 7
FENCING, RECOVERY_ADD, HIGH_PRIORITY = 1, 2, 4
OK, NO_LEDGER, NO_ENTRY = 0, 1, 2
FENCED = 104
START_TLS = bytes.fromhex("0000000b 0a06 0803 1009 1801 d20600")


class Request(NamedTuple):
    """A request of a client."""

    operation: int
    flags: int
    ledger_id: int
    entry_id: int
    request_id: int = 0
    count: int = 1
    size: int = 0
    master_key: bytes = b""
    entry: bytes = b""


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def added(request: Request, code: int = OK) -> bytes:
    """The answer to an add."""
    return frame(struct.pack(">Iiqq", 2 << 24 | ADD << 16, code, *request[2:4]))


def found(request: Request, entries: list[bytes], code: int = OK) -> bytes:
    """The answer to a read."""
    head = struct.pack(">Iiqq", 2 << 24 | request.operation << 16, code, *request[2:4])
    if request.operation == READ:
        return frame(head + b"".join(entries))
    sized = (struct.pack(">I", len(entry)) + entry for entry in entries)
    return frame(head + struct.pack(">q", request.request_id) + b"".join(sized))


def parse(body: bytes) -> Request:
    header = int.from_bytes(body[:4], "big")
    operation, flags = header >> 16 & 0xFF, header & 0xFFFF
    assert header >> 24 == 2
    if operation == ADD:
        ledger_id, entry_id = struct.unpack_from(">qq", body, 24)
        key, entry = body[4:24], body[24:]
        return Request(ADD, flags, ledger_id, entry_id, master_key=key, entry=entry)
    ledger_id, entry_id = struct.unpack_from(">qq", body, 4)
    if operation == READ:
        assert len(body) == (40 if flags & FENCING else 20)
        return Request(READ, flags, ledger_id, entry_id, master_key=body[20:])
    assert operation == BATCH_READ
    assert len(body) == (60 if flags & FENCING else 40)
    rest = struct.unpack_from(">qiq", body, 20)
    return Request(BATCH_READ, flags, ledger_id, entry_id, *rest, body[40:])


class Peer:
    """One connection of a client."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def write(self, *frames: bytes) -> None:
        self._writer.write(b"".join(frames))

    def close(self) -> None:
        self._writer.transport.abort()


class ScriptedBookie:
    """Stores what it is sent and answers as a bookie does; `script` may answer instead.

    script(peer, request) returns True when it has dealt with the request. `async with` runs it.
    """

    def __init__(self, port: int = 0) -> None:
        self.script: Callable[[Peer, Request], bool] = lambda peer, request: False
        self.requests: list[Request] = []
        self.peers: list[Peer] = []
        self.ledgers: dict[int, dict[int, bytes]] = {}
        self.fenced: set[int] = set()
        self.port = port
        self.reads = asyncio.Event()
        """Clear: the bookie leaves what it is sent in the socket."""
        self.reads.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def bookie_id(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> ScriptedBookie:
        self._server = await asyncio.start_server(
            self._converse, "127.0.0.1", self.port, limit=1 << 24
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the port and all connections."""
        assert self._server is not None
        self._server.close()
        for each in self.peers:
            each.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(writer)
        self.peers.append(peer)
        try:
            while True:
                await self.reads.wait()
                body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                request = parse(body)
                self.requests.append(request)
                if not self.script(peer, request):
                    peer.write(self.answer(request))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass

    def answer(self, request: Request) -> bytes:
        """Do what is asked and return the answer."""
        ledger_id, entry_id = request.ledger_id, request.entry_id
        if request.operation == ADD:
            if ledger_id in self.fenced and not request.flags & RECOVERY_ADD:
                return added(request, FENCED)
            self.ledgers.setdefault(ledger_id, {})[entry_id] = request.entry
            return added(request)
        if request.flags & FENCING:
            self.fenced.add(ledger_id)
        stored = self.ledgers.get(ledger_id)
        if not stored:
            return found(request, [], NO_LEDGER)
        if entry_id == -1:
            entry_id = max(stored)
        entries: list[bytes] = []
        while len(entries) < request.count and entry_id in stored:
            entries.append(stored[entry_id])
            entry_id += 1
        return found(request, entries) if entries else found(request, [], NO_ENTRY)
