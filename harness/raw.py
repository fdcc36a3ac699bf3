"""A blocking protocol client over one plain socket: says exactly the bytes a test wants to say."""

from __future__ import annotations

import itertools
import socket
import time
from collections import deque
from typing import Any
from urllib.parse import urlsplit

from harness import wire

Answer = wire.Frame


class ConnectionClosed(Exception):
    """The broker closed the connection."""


class RawConnection:
    """One connection; PINGs of the broker are answered while waiting.

    The first lookup leads it to the owner of its topic, where brokers share a cluster.
    """

    def __init__(self, port: int, *, handshake: bool = True, timeout_s: float = 10.0) -> None:
        self._timeout_s = timeout_s
        self._requests = itertools.count(1)
        self._is_fresh = True
        self._open(port)
        if handshake:
            self.connected = self.connect()

    def _open(self, port: int) -> None:
        self._port = port
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=self._timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = wire.FrameReader()
        self._frames: deque[Answer] = deque()

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def write(self, data: bytes) -> None:
        """Send raw bytes."""
        self.socket.sendall(data)

    def command(self, kind: int, fields: dict) -> None:
        """Send a simple command."""
        self.write(wire.command(kind, fields))

    def request_id(self) -> int:
        """The next request id of this connection."""
        return next(self._requests)

    def connect(self, **fields: dict) -> Answer:
        """Send CONNECT (protocol version 21) and wait for CONNECTED."""
        self._connect = {1: "raw-test-client", 4: 21} | fields.get("fields", {})
        self.command(wire.CONNECT, self._connect)
        return self.expect(wire.CONNECTED)

    def receive(self, timeout_s: float | None = None) -> Answer:
        """The next frame.

        Raises ``ConnectionClosed`` at the end of the stream, ``TimeoutError`` after ``timeout_s``
        seconds (default: the connection's).
        """
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        while True:
            while self._frames:
                frame = self._frames.popleft()
                if frame.type != wire.PING:
                    return frame
                self.command(wire.PONG, {})
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no frame came")
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionError as error:
                raise ConnectionClosed(str(error)) from error
            if not data:
                raise ConnectionClosed("end of stream")
            self._frames.extend(self._reader.feed(data))

    def expect(self, kind: int, timeout_s: float | None = None) -> Answer:
        """The next frame, which must be of this type."""
        frame = self.receive(timeout_s)
        assert frame.type == kind, f"expected command {kind}, got {frame}"
        return frame

    def wait_for(self, kind: int, timeout_s: float | None = None) -> Answer:
        """The next frame of this type; others are dropped."""
        while True:
            frame = self.receive(timeout_s)
            if frame.type == kind:
                return frame

    def assert_closed(self, timeout_s: float = 5.0) -> list[Answer]:
        """The broker must close the connection; returns what it said before."""
        said = []
        while True:
            try:
                said.append(self.receive(timeout_s))
            except ConnectionClosed:
                return said

    def assert_alive(self) -> None:
        """A PING must be answered by PONG."""
        self.command(wire.PING, {})
        self.wait_for(wire.PONG)

    def lookup(self, topic: str) -> Answer:
        """LOOKUP; a broker serves a topic only after it, as it takes ownership then."""
        is_authoritative = 0
        while True:
            self.command(wire.LOOKUP, {1: topic, 2: self.request_id(), 3: is_authoritative})
            answer = self.expect(wire.LOOKUP_RESPONSE)
            owner = urlsplit(answer.data(1).decode()).port if answer.number(3) in (0, 1) else None
            if owner in (None, self._port) or not self._is_fresh:
                break
            is_authoritative = answer.number(5)
            self.socket.close()
            self._open(owner)
            self.connect(fields=self._connect)
        assert answer.number(3) == 1 and owner == self._port, f"lookup did not end here: {answer}"
        self._is_fresh = False
        return answer

    def producer(self, topic: str, producer_id: int = 1, name: str | None = None) -> str:
        """Look up, create a producer and return its name."""
        self.lookup(topic)
        fields: dict = {1: topic, 2: producer_id, 3: self.request_id()}
        if name is not None:
            fields[4] = name
        self.command(wire.PRODUCER, fields)
        return self.expect(wire.PRODUCER_SUCCESS).data(2).decode()

    def send(self, body: bytes, sequence_id: int, producer_id: int = 1, **options: Any) -> None:
        """Send one message without waiting for its receipt."""
        meta = wire.metadata("raw", sequence_id, int(time.time() * 1000))
        self.write(wire.send(producer_id, sequence_id, meta, body, **options))

    def subscribe(
        self,
        topic: str,
        subscription: str = "sub",
        consumer_id: int = 1,
        sub_type: int = wire.EXCLUSIVE,
        **fields: dict,
    ) -> Answer:
        """Look up, subscribe from the earliest message and return the broker's answer."""
        self.lookup(topic)
        request = self.request_id()
        self.command(
            wire.SUBSCRIBE,
            {1: topic, 2: subscription, 3: sub_type, 4: consumer_id, 5: request, 13: wire.EARLIEST}
            | fields.get("fields", {}),
        )
        while True:
            answer = self.receive()
            if answer.type in (wire.SUCCESS, wire.ERROR):
                return answer

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        """Grant permits to a consumer."""
        self.command(wire.FLOW, {1: consumer_id, 2: permits})
