"""A served connection without a broker: one end of a socket pair, and handlers that take notes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from certificates import client_context, server_context
from manual_loop import ManualLoop
from oracles import wire
from pyxbroker.connection import Connection, Connections, ProducerState
from pyxbroker.entry import AckRun, EntryRun
from pyxbroker.proto import PulsarApi as pb

FRAME_BYTES_MAX = 5 * 1024 * 1024 + 10240


class Notes:
    """The handlers of a Connections: keeps what it is told, in order. Connections get their turns
    from the loop, or from the one that runs.
    """

    def __init__(self, loop: ManualLoop | None = None) -> None:
        self._loop = loop
        self.told: list[tuple[Any, ...]] = []
        self.stray: list[str] = []  # commands that were dropped

    def may_begin(self, connection: Connection) -> bool:
        return True

    def wait_turn(self, connection: Connection) -> None:
        (self._loop or asyncio.get_running_loop()).call_soon(connection.resume)

    def on_command(self, connection: Connection, kind: int, data: bytes, payload: bytes) -> None:
        self.told.append(("command", kind, data, payload))

    def on_malformed(self, connection: Connection, what: str) -> None:
        self.told.append(("malformed", what))

    def on_frame_too_large(self, connection: Connection, first: bytes, bytes_max: int) -> None:
        size = int.from_bytes(first, "big")
        self.on_malformed(
            connection, f"a frame of {size} bytes is larger than the limit of {bytes_max}"
        )

    def on_broken_tls(self, connection: Connection, reason: str) -> None:
        self.told.append(("broken tls", reason))

    def on_too_many_unfinished(self, unfinished: dict[Connection, None]) -> None:
        next(iter(unfinished)).close()

    def on_internal_error(self, connection: Connection, error: Exception) -> None:
        self.told.append(("internal error", repr(error)))

    def on_stray_command(self, name: str) -> None:
        self.stray.append(name)

    def on_stray_ack(self, connection: Connection, consumer_id: int, request_id: int) -> None:
        self.told.append(("stray ack", consumer_id, request_id))

    def on_refused_send(
        self,
        connection: Connection,
        producer: ProducerState,
        sequence_id: int,
        highest_sequence_id: int,
        reason: str,
    ) -> None:
        self.told.append(("refused", producer.producer_id, sequence_id, reason))

    def on_closed(self, connection: Connection) -> None:
        self.told.append(("closed",))


class Producer(ProducerState):
    """Keeps the runs and their bytes, as they are when they come."""

    def __init__(self, connection: Connection, producer_id: int, notes: Notes) -> None:
        super().__init__(connection, producer_id)
        self.notes = notes
        self.runs: list[EntryRun] = []

    def publish(self, run: EntryRun) -> None:
        self.runs.append(run)
        entries = [(*ids, run.data(i), run.crc(i)) for i, ids in enumerate(run.sequence_ids())]
        self.notes.told.append(("run", self.producer_id, entries))

    publish_transactional = publish


class Consumer:
    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.redelivers_in_parts = True

    def on_ack(
        self,
        run: AckRun,
        cumulative: bool,
        request_id: int | None,
        txn: tuple[int, int] | None,
        is_last: bool = True,
    ) -> None:
        positions = [run.position(i) for i in range(len(run))]
        self.notes.told.append(("ack", positions, cumulative, request_id, txn))

    def on_flow(self, permits: int) -> None:
        self.notes.told.append(("flow", permits))

    def on_redeliver(self, positions: list[tuple[int, int]], epoch: int | None) -> bool:
        self.notes.told.append(("redeliver", positions, epoch))
        return self.redelivers_in_parts


class TlsEnd:
    """A peer's end of TLS, which waits with the errors of an end without."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._sock = context.wrap_socket(
            sock, server_hostname="localhost", do_handshake_on_connect=False
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def __enter__(self) -> TlsEnd:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def do_handshake(self) -> bool:
        """Whether it is over."""
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def unwrap_soon(self) -> None:
        """Says goodbye, and waits for no answer."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._sock.unwrap()

    def send(self, data: Any) -> int:
        try:
            return self._sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv(self, size: int) -> bytes:
        try:
            return self._sock.recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""


@contextlib.contextmanager
def nothing_can_be_watched_by(epoll: int) -> Iterator[None]:
    """The system refuses whatever an epoll is asked to watch; what it watches is left as it is."""
    kept = os.dup(epoll)
    try:
        with Path(os.devnull).open("rb") as no_epoll:
            os.dup2(no_epoll.fileno(), epoll, inheritable=False)
        yield
    finally:
        os.dup2(kept, epoll, inheritable=False)
        os.close(kept)


def connected(
    group: Connections, session: Any = None, context: ssl.SSLContext | None = None
) -> tuple[Connection, socket.socket]:
    """A connection, and the peer's end as the wire has it: of TLS nothing is said yet."""
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    return group.accept(near, "peer", session, context), far


class Served:
    """A connection with producer 1 and consumer 2, past its handshake; `far` is the peer's end."""

    over_tls = False

    def __init__(self, **limits: int) -> None:
        self.notes = Notes()
        self.group = Connections(
            asyncio.get_running_loop(),
            self.notes,
            frame_bytes_max=limits.get("frame_bytes_max", FRAME_BYTES_MAX),
            sends_max=limits.get("sends_max", 1000),
            publish_bytes_max=limits.get("publish_bytes_max", 1 << 30),
        )
        self.connection, self.far = self.accept()
        self.producer = Producer(self.connection, 1, self.notes)
        self.connection.producers[1] = self.producer
        self.connection.consumers[2] = Consumer(self.notes)

    def connect(self, session: Any = None) -> tuple[Connection, socket.socket]:
        return connected(self.group, session, server_context() if self.over_tls else None)

    def accept(self, session: Any = None) -> tuple[Connection, socket.socket]:
        connection, far = self.accept_stranger(session)
        connection.establish()
        return connection, far

    def accept_stranger(self, session: Any = None) -> tuple[Connection, socket.socket]:
        connection, far = self.connect(session)
        if connection.tls is not None:
            end = TlsEnd(far, client_context())
            while not (end.do_handshake() and connection.tls.established):
                self.group.on_ready()
            far = cast(socket.socket, end)
        return connection, far

    def close(self) -> None:
        for connection in list(self.group.live):
            connection.close()
        self.far.close()

    @property
    def told(self) -> list[tuple[Any, ...]]:
        """What the handlers were told since this was asked last."""
        told, self.notes.told = self.notes.told, []
        return told

    async def write(self, data: bytes) -> None:
        """Writes as a client does; the broker's side reads all of it, unless it is paused."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.far.send(view) :]
            except BlockingIOError:
                await asyncio.sleep(0)
        await turns()

    async def read(self) -> bytes:
        """What the broker's side has sent."""
        await turns()
        parts = []
        while True:
            try:
                parts.append(self.far.recv(1 << 20))
            except BlockingIOError:
                return b"".join(parts)
            if not parts[-1]:
                return b"".join(parts)


async def turns(count: int = 6) -> None:
    """Lets the event loop go around, so that all that is ready is done."""
    for _ in range(count):
        await asyncio.sleep(0)


def section(data: bytes, *, checksum: bool = True, **fields: Any) -> bytes:
    """A payload section around data, with small metadata."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)
    return wire.payload_section(metadata.SerializeToString(), data, checksum=checksum)


def send(sequence_id: int, payload: bytes, producer_id: int = 1, **fields: Any) -> bytes:
    """A SEND frame around a payload section."""
    command = pb.BaseCommand(type=pb.BaseCommand.SEND)
    command.send.CopyFrom(
        pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id, **fields)
    )
    return wire.frame(command.SerializeToString(), payload)


def ping() -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.PING)
    command.ping.SetInParent()
    return wire.frame(command.SerializeToString())


def flow(permits: int, consumer_id: int = 2) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
    command.flow.CopyFrom(pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits))
    return wire.frame(command.SerializeToString())


def redeliver(*ids: Any, consumer_id: int = 2, **fields: Any) -> bytes:
    """A REDELIVER_UNACKNOWLEDGED_MESSAGES frame of MessageIdData messages."""
    command = pb.BaseCommand(type=pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    command.redeliverUnacknowledgedMessages.CopyFrom(
        pb.CommandRedeliverUnacknowledgedMessages(
            consumer_id=consumer_id, message_ids=ids, **fields
        )
    )
    return wire.frame(command.SerializeToString())


def ack(*ids: Any, consumer_id: int = 2, **fields: Any) -> bytes:
    """An ACK frame of MessageIdData messages."""
    command = pb.BaseCommand(type=pb.BaseCommand.ACK)
    fields.setdefault("ack_type", 0)
    command.ack.CopyFrom(pb.CommandAck(consumer_id=consumer_id, message_id=ids, **fields))
    return wire.frame(command.SerializeToString())
