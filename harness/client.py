"""A small asynchronous protocol client for the torture: receipts, deliveries, requests."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

from harness import wire

Position = tuple[int, int]

# Where each answer carries its request id.
_REQUEST_FIELD = {
    wire.SUCCESS: 1,
    wire.ERROR: 1,
    wire.PRODUCER_SUCCESS: 1,
    wire.LOOKUP_RESPONSE: 4,
    wire.GET_LAST_MESSAGE_ID_RESPONSE: 2,
    wire.ACK_RESPONSE: 6,
}

SERVICE_NOT_READY = 6
LOOKUP_FAILED = 2

# How each answer says that it is a refusal (None: it is one), and where code and sentence are.
_ERROR_FIELDS: dict[int, tuple[Callable[[wire.Frame], bool] | None, int, int]] = {
    wire.ERROR: (None, 2, 3),
    wire.ACK_RESPONSE: (lambda answer: 4 in answer.fields, 4, 5),
    wire.LOOKUP_RESPONSE: (lambda answer: answer.number(3) == LOOKUP_FAILED, 6, 7),
}


class Refused(Exception):
    """The broker answered a request with an error; ``code`` is its ServerError."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class NotReady(Refused):
    """ServiceNotReady: the protocol's word for "look up again and retry"."""


class Connection(asyncio.Protocol):
    """One connection.  Its end fails every open request with ``ConnectionError``."""

    def __init__(self) -> None:
        self.on_receipt: Callable[[int, int, Position], None] = lambda *_: None
        self.on_message: Callable[[int, Position, wire.Payload], None] = lambda *_: None
        self.on_pong: Callable[[], None] = lambda: None
        self.on_send_error: Callable[[int, int], None] = lambda *_: None
        self.on_close_producer: Callable[[int], None] = lambda _: None
        self.on_close_consumer: Callable[[int], None] = lambda _: None
        self.send_errors: list[str] = []
        self.closed = asyncio.get_running_loop().create_future()
        self._connected = asyncio.get_running_loop().create_future()
        self._requests: dict[int, asyncio.Future[wire.Frame]] = {}
        self._numbers = itertools.count(1)
        self._reader = wire.FrameReader()
        self._transport: asyncio.Transport | None = None
        self._ended = False

    @classmethod
    async def open(cls, port: int, host: str = "127.0.0.1") -> Connection:
        """Connect and shake hands; raises ``OSError`` when the broker is not there."""
        loop = asyncio.get_running_loop()
        _, one = await loop.create_connection(cls, host, port)
        one.write(wire.command(wire.CONNECT, {1: "torture", 4: 21}))
        await one._connected
        return one

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        for future in (self._connected, *self._requests.values()):
            if not future.done():
                future.set_exception(ConnectionResetError("the broker is gone"))
                future.exception()  # Nobody may be waiting for it any more.
        self._requests.clear()
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        for frame in self._reader.feed(data):
            self._take(frame)

    def _take(self, frame: wire.Frame) -> None:
        kind = frame.type
        if kind == wire.SEND_RECEIPT:
            self.on_receipt(frame.number(1), frame.number(2), wire.position(frame.data(3)))
        elif kind == wire.MESSAGE:
            payload = wire.parse_payload(frame.rest)
            if payload.checksum_ok is False:
                raise ValueError("a message whose checksum is wrong")
            self.on_message(frame.number(1), wire.position(frame.data(2)), payload)
        elif kind == wire.PING:
            self.write(wire.command(wire.PONG, {}))
        elif kind == wire.PONG:
            self.on_pong()
        elif kind == wire.CONNECTED:
            if not self._connected.done():  # the caller may have stopped waiting
                self._connected.set_result(None)
        elif kind == wire.SEND_ERROR:
            self.send_errors.append(frame.data(4).decode())
            self.on_send_error(frame.number(1), frame.number(2))
        elif kind == wire.CLOSE_PRODUCER:
            self.on_close_producer(frame.number(1))
        elif kind == wire.CLOSE_CONSUMER:
            self.on_close_consumer(frame.number(1))
        elif kind == wire.PRODUCER_SUCCESS and frame.number(6, 1) == 0:
            pass  # It has to wait for its turn, and is answered once more then.
        elif kind in _REQUEST_FIELD:
            waiting = self._requests.pop(frame.number(_REQUEST_FIELD[kind]), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)

    def write(self, data: bytes) -> None:
        """Queue bytes for the broker."""
        assert self._transport is not None
        if not self._ended and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    async def end(self) -> None:
        """Say that nothing more comes, and take what is on its way until the broker hangs up."""
        assert self._transport is not None
        if not self.closed.done() and not self._transport.is_closing():
            self._ended = True
            try:
                self._transport.write_eof()
                await asyncio.wait([self.closed], timeout=1)
            except OSError:
                pass  # The broker has hung up already, and asyncio has not heard of it yet.
        self.close()

    async def request(self, kind: int, field: int, fields: dict) -> wire.Frame:
        """Send a command with a request id in ``field``; raises ``Refused`` on ERROR."""
        number = next(self._numbers)
        future: asyncio.Future[wire.Frame] = asyncio.get_running_loop().create_future()
        if self.closed.done():
            raise ConnectionResetError("the broker is gone")
        self._requests[number] = future
        self.write(wire.command(kind, fields | {field: number}))
        answer = await asyncio.wait_for(future, 15)
        if answer.type in _ERROR_FIELDS:
            failed, code_at, text_at = _ERROR_FIELDS[answer.type]
            code = answer.number(code_at)
            if failed is None or failed(answer):
                kind_of_refusal = NotReady if code == SERVICE_NOT_READY else Refused
                raise kind_of_refusal(answer.data(text_at).decode(), code)
        return answer

    async def _request_on_topic(
        self, topic: str, kind: int, field: int, fields: dict
    ) -> wire.Frame:
        """Look up and ask, again for 15 s while the broker says that it is not ready."""
        deadline = time.monotonic() + 15
        while True:
            try:
                await self.request(wire.LOOKUP, 2, {1: topic})
                return await self.request(kind, field, fields)
            except NotReady:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)

    async def producer(self, topic: str, producer_id: int, name: str, **more: dict) -> wire.Frame:
        """Look up and create a producer; ``more={"fields": {...}}`` adds fields.

        Returns the answer, of one that has to wait when its turn has come.
        """
        fields = {1: topic, 2: producer_id, 4: name} | more.get("fields", {})
        return await self._request_on_topic(topic, wire.PRODUCER, 3, fields)

    async def subscribe(
        self, topic: str, consumer_id: int, subscription: str, **more: dict
    ) -> None:
        """Look up and subscribe; ``more={"fields": {...}}`` adds fields."""
        fields = {1: topic, 2: subscription, 3: wire.EXCLUSIVE, 4: consumer_id, 13: wire.LATEST}
        fields |= more.get("fields", {})
        await self._request_on_topic(topic, wire.SUBSCRIBE, 5, fields)

    async def reader(self, topic: str, consumer_id: int) -> None:
        """Subscribe without a durable cursor from the first message on."""
        first = wire.message_id(wire.MAX_UINT64, wire.MAX_UINT64)
        more = {8: 0, 9: first, 13: wire.EARLIEST}
        await self.subscribe(topic, consumer_id, f"reader-{consumer_id}", fields=more)

    async def last_position(self, consumer_id: int) -> Position | None:
        """The topic's last position, or None when it is empty."""
        answer = await self.request(wire.GET_LAST_MESSAGE_ID, 2, {1: consumer_id})
        position = wire.position(answer.data(1))
        # -1:-1 stands for an empty topic; an entry id of -1 for an empty last ledger.
        return None if position[1] == wire.MAX_UINT64 else position

    def flow(self, consumer_id: int, permits: int) -> None:
        """Grant permits."""
        self.write(wire.command(wire.FLOW, {1: consumer_id, 2: permits}))

    def ack(self, consumer_id: int, positions: list[Position], *, cumulative: bool = False) -> None:
        """Acknowledge without asking for a receipt."""
        self.write(wire.command(wire.ACK, _ack(consumer_id, positions, cumulative)))

    async def ack_with_receipt(
        self, consumer_id: int, positions: list[Position], *, cumulative: bool = False
    ) -> None:
        """Acknowledge and wait for ACK_RESPONSE."""
        await self.request(wire.ACK, 8, _ack(consumer_id, positions, cumulative))


def _ack(consumer_id: int, positions: list[Position], cumulative: bool) -> dict:
    ids = [wire.message_id(*position) for position in positions]
    kind = wire.CUMULATIVE if cumulative else wire.INDIVIDUAL
    return {1: consumer_id, 2: kind, 3: ids}
