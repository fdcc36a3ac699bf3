"""Inputs of the micro-benchmarks: frames as clients write them, a storage, and a connection."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from manual_loop import ManualLoop
from pyxbroker import _native
from pyxbroker.connection import Connection, Connections, ProducerState
from pyxbroker.entry import EntryRun
from pyxbroker.proto import PulsarApi as pb

FRAME_BYTES_MAX = 5 * 1024 * 1024 + 10_240
PAYLOAD = bytes(range(256)) * 4  # 1 KiB


def frame(command: Any, section: bytes = b"") -> bytes:
    """Return a whole frame with a BaseCommand."""
    encoded = command.SerializeToString()
    total = 4 + len(encoded) + len(section)
    return total.to_bytes(4, "big") + len(encoded).to_bytes(4, "big") + encoded + section


def section(payload: bytes = PAYLOAD, messages: int = 0) -> bytes:
    """Return the payload section of a SEND with checksum. messages: batch size, or 0."""
    metadata = pb.MessageMetadata(producer_name="bench-1", sequence_id=1, publish_time=1)
    if messages:
        metadata.num_messages_in_batch = messages
    encoded = metadata.SerializeToString()
    rest = len(encoded).to_bytes(4, "big") + encoded + payload
    return b"\x0e\x01" + _native.crc32c(rest).to_bytes(4, "big") + rest


def send(sequence_id: int, payload_section: bytes, messages: int = 1) -> bytes:
    """Return a SEND frame of producer 1."""
    command = pb.BaseCommand(type=pb.BaseCommand.SEND)
    command.send.producer_id = 1
    command.send.sequence_id = sequence_id
    if messages > 1:
        command.send.num_messages = messages
    return frame(command, payload_section)


class Handlers:
    """Connection handlers that accept hot commands only."""

    def on_closed(self, connection: Connection) -> None:
        self.closed = connection

    def on_internal_error(self, connection: Connection, error: Exception) -> None:
        raise error

    def on_malformed(self, connection: Connection, what: str) -> None:
        raise AssertionError(what)

    def may_begin(self, connection: Connection) -> bool:
        return True

    def wait_turn(self, connection: Connection) -> None:
        connection.group.loop.call_soon(connection.resume)

    def on_command(self, connection: Connection, kind: int, data: bytes, payload: bytes) -> None:
        raise AssertionError(f"a command of type {kind}")


class Producer(ProducerState):
    """A producer that acknowledges every run immediately, without a disk."""

    def publish(self, run: EntryRun) -> None:
        run.ledger_id = 1
        run.first_entry_id = 0
        self.send_receipts(run)


class Line:
    """A broker connection, its client socket, and a manual event loop."""

    def __init__(self) -> None:
        self.client, server = socket.socketpair()
        for end in (self.client, server):
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        self.fd = server.fileno()
        self.loop = ManualLoop()
        self.group = Connections(
            cast(asyncio.AbstractEventLoop, self.loop),
            Handlers(),
            frame_bytes_max=FRAME_BYTES_MAX,
            sends_max=1 << 20,
            publish_bytes_max=1 << 40,
        )
        self.connection = self.group.accept(server, "client", None)
        self.connection.establish()
        self.received = bytearray(4 << 20)

    def readable(self) -> None:
        """Serve the readable socket."""
        self.loop.readers[self.group.fd]()

    def read_answers(self) -> int:
        """Read the broker's output and return its size."""
        try:
            return self.client.recv_into(self.received)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        self.connection.close()
        self.client.close()
