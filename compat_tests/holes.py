"""Millions of messages and acknowledgements over one raw connection, quicker than any client.

What a subscription's consumers would do in hours is said here in seconds: messages are one byte
each, and acknowledgements name a thousand positions at a time, of messages that nobody was sent.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from harness import wire
from harness.raw import ConnectionClosed, RawConnection

SEQUENCE_BYTES = 4
SEQUENCE_FIRST = 1 << 21  # so that every sequence id has as many bytes
WINDOW = 5_000  # messages under way
IDS_PER_ACK = 1_000

PING = wire.encode({1: wire.PING})
MESSAGE = wire.encode({1: wire.MESSAGE})

Position = tuple[int, int]


def sequence_bytes(number: int) -> bytes:
    """A varint of SEQUENCE_BYTES bytes."""
    value = SEQUENCE_FIRST + number
    return bytes(
        (value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21)
    )


def publish(raw: RawConnection, topic: str, count: int) -> list[Position]:
    """Sends `count` messages one by one; the positions of the first and last of each ledger."""
    raw.producer(topic)
    meta = wire.metadata("raw", SEQUENCE_FIRST, int(time.time() * 1000))
    frame = wire.send(1, SEQUENCE_FIRST, meta, b"m")
    at = frame.index(b"\x10" + sequence_bytes(0)) + 1
    head, tail = frame[:at], frame[at + SEQUENCE_BYTES :]
    ends: list[Position] = []
    sent = got = 0
    frames = Frames(raw)
    while got < count:
        while sent < count and sent - got < WINDOW:
            stop = min(count, sent + 500)
            raw.write(b"".join(head + sequence_bytes(n) + tail for n in range(sent, stop)))
            sent = stop
        receipts = frames.read(30.0)
        got += len(receipts)
        # Entries of a ledger follow each other: the first and last of each stretch tell the rest.
        if _position(receipts[0])[0] == _position(receipts[-1])[0]:
            receipts = [receipts[0], receipts[-1]]
        for position in map(_position, receipts):
            if ends and ends[-1][0] == position[0]:
                ends[-1] = position
            else:
                ends += [position, position]
    return ends


def _position(body: bytes) -> Position:
    receipt = wire.parse_frame(body)
    assert receipt.type == wire.SEND_RECEIPT, f"a message was answered by {receipt}"
    return wire.position(receipt.data(3))


class Frames:
    """The frames of a connection, many at a time; RawConnection must not read any more."""

    def __init__(self, raw: RawConnection) -> None:
        self._raw = raw
        self._rest = b""

    def read(self, timeout_s: float) -> list[bytes]:
        """What follows totalSize of each frame that has come, at least one. TimeoutError."""
        found: list[bytes] = []
        deadline = time.monotonic() + timeout_s
        while not found:
            self._raw.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            data = self._raw.socket.recv(1 << 20)
            if not data:
                raise ConnectionClosed("end of stream")
            data = self._rest + data
            at = 0
            while len(data) - at >= 4:
                stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
                if stop > len(data):
                    break
                if data[at + 8 : at + 10] == PING:
                    self._raw.command(wire.PONG, {})
                else:
                    found.append(data[at + 4 : stop])
                at = stop
            self._rest = data[at:]
        return found


def positions_of(ends: Sequence[Position]) -> list[Position]:
    """Every position between the first and the last of each ledger."""
    return [
        (ledger, entry)
        for (ledger, first), (_, last) in zip(ends[::2], ends[1::2], strict=True)
        for entry in range(first, last + 1)
    ]


def subscribe(raw: RawConnection, topic: str, subscription: str = "sub") -> None:
    """A shared consumer that asks for no messages."""
    answer = raw.subscribe(topic, subscription, sub_type=wire.SHARED)
    assert answer.type == wire.SUCCESS, str(answer)


def acknowledge(raw: RawConnection, positions: Iterable[Position]) -> None:
    """Acknowledges positions without asking for an answer."""
    ids: list[bytes] = []
    for ledger, entry in positions:
        ids.append(b"\x08" + wire.varint(ledger) + b"\x10" + wire.varint(entry))
        if len(ids) == IDS_PER_ACK:
            raw.command(wire.ACK, {1: 1, 2: wire.INDIVIDUAL, 3: ids})
            ids = []
    if ids:
        raw.command(wire.ACK, {1: 1, 2: wire.INDIVIDUAL, 3: ids})


def acknowledge_and_wait(raw: RawConnection, position: Position) -> float:
    """Acknowledges one position with a receipt; the seconds that it took."""
    began = time.perf_counter()
    raw.command(
        wire.ACK,
        {1: 1, 2: wire.INDIVIDUAL, 3: wire.message_id(*position), 8: raw.request_id()},
    )
    answer = raw.wait_for(wire.ACK_RESPONSE, 60.0)
    assert 4 not in answer.fields, str(answer)
    return time.perf_counter() - began


def deliver(
    raw: RawConnection,
    expected: int,
    quiet_s: float = 2.0,
    *,
    acknowledges: bool = True,
    permits: int = 1 << 30,
) -> set[Position]:
    """Asks for everything; what came until `expected` messages had come and, for a while, no more.

    What comes is acknowledged, unless told otherwise, as a consumer may hold only so many messages.
    """
    raw.flow(permits)
    frames = Frames(raw)
    found: set[Position] = set()
    while True:
        try:
            bodies = frames.read(quiet_s if len(found) >= expected else 30.0)
        except (TimeoutError, ConnectionClosed):
            return found
        # The size, the type, the length of the message, consumer 1, and then the message id.
        ids = [body[12 : 12 + body[11]] for body in bodies if body[4:6] == MESSAGE]
        found.update(map(_ledger_and_entry, ids))
        if acknowledges:
            raw.command(wire.ACK, {1: 1, 2: wire.INDIVIDUAL, 3: ids})


def _ledger_and_entry(message_id: bytes) -> Position:
    """As wire.position, of ids that begin with these two fields, and quickly."""
    ledger, at = wire.read_varint(message_id, 1)
    return ledger, wire.read_varint(message_id, at + 1)[0]
