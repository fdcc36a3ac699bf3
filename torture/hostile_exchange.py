"""Many requests over some connections, each within what may wait for its answers there."""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

import httptools

CONNECTIONS = 4
AHEAD_MAX = 16  # of the 32 that may wait for their answers on a connection
AHEAD_BYTES_MAX = 4 << 20
SILENCE_S_MAX = 60


class Answers(NamedTuple):
    """What became of requests."""

    statuses: Counter[int]
    is_whole: bool  # each has an answer

    @property
    def total(self) -> int:
        return self.statuses.total()

    def __str__(self) -> str:
        return " ".join(
            f"{status}" if n == self.total else f"{status} x {n}"
            for status, n in sorted(self.statuses.items())
        )


def exchange(
    port: int,
    requests: Iterator[bytes],
    connections: int = CONNECTIONS,
    statuses: Counter[int] | None = None,
) -> Answers:
    """Sends all requests and reads all answers. What was sent behind an answer after which the
    broker closes the connection is sent again; one that is closed otherwise is the end. In
    `statuses` are those of the answers so far, for who interrupts it.
    """
    one = _Exchange(port, requests, connections, Counter() if statuses is None else statuses)
    try:
        is_whole = one.run()
    finally:
        one.close()
    return Answers(one.statuses, is_whole)


class _Connection:
    """One connection, and the requests that wait for their answers on it."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setblocking(False)
        self.unanswered: deque[bytes] = deque()
        self.statuses: list[int] = []
        self.is_refused = False  # what was sent behind the last answer has none
        self._bytes_ahead = 0
        self._waiting = memoryview(b"")
        self._parser = httptools.HttpResponseParser(self)

    def on_message_complete(self) -> None:
        """Called by the parser, once for each answer."""
        status = self._parser.get_status_code()
        if status >= 200:
            self.statuses.append(status)
            self._bytes_ahead -= len(self.unanswered.popleft())
            self.is_refused = not self._parser.should_keep_alive()

    def has_room(self) -> bool:
        few = len(self.unanswered) < AHEAD_MAX and self._bytes_ahead < AHEAD_BYTES_MAX
        return few and not self.is_refused

    def put(self, request: bytes) -> None:
        self.unanswered.append(request)
        self._bytes_ahead += len(request)
        self._waiting = memoryview(bytes(self._waiting) + request)

    @property
    def is_all_sent(self) -> bool:
        return not self._waiting

    def serve(self, events: int) -> bool:
        """Sends and receives what can be; whether the connection is open."""
        try:
            if events & selectors.EVENT_WRITE and not self.is_all_sent:
                self._waiting = self._waiting[self.socket.send(self._waiting) :]
            if not events & selectors.EVENT_READ:
                return True
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        if data:
            self._parser.feed_data(data)
        return bool(data)


class _Exchange:
    def __init__(
        self, port: int, requests: Iterator[bytes], connections: int, statuses: Counter[int]
    ) -> None:
        self.statuses = statuses
        self._port = port
        self._requests = requests
        self._connections_max = connections
        self._again: deque[bytes] = deque()
        self._open: set[_Connection] = set()
        self._selector = selectors.DefaultSelector()

    def run(self) -> bool:
        """Whether each request has an answer now."""
        heard = time.monotonic()
        self._connect()
        while self._open:
            for key, events in self._selector.select(1):
                one: _Connection = key.data
                is_open = one.serve(events)
                if one.statuses:
                    heard = time.monotonic()
                    self.statuses.update(one.statuses)
                    one.statuses.clear()
                if not is_open:
                    if one.unanswered and not one.is_refused:
                        return False
                    self._again.extend(one.unanswered)
                    self._remove(one)
                elif not one.is_refused:  # else the broker closes it
                    self._feed(one)
            self._connect()
            if time.monotonic() > heard + SILENCE_S_MAX:
                return False
        return True

    def close(self) -> None:
        for one in list(self._open):
            self._remove(one)
        self._selector.close()

    def _next(self) -> bytes | None:
        return self._again.popleft() if self._again else next(self._requests, None)

    def _connect(self) -> None:
        while len(self._open) < self._connections_max and (request := self._next()) is not None:
            one = _Connection(self._port)
            self._open.add(one)
            self._selector.register(one.socket, selectors.EVENT_READ, one)
            one.put(request)
            self._feed(one)

    def _feed(self, one: _Connection) -> None:
        """As many requests as may wait; without any it is closed."""
        while one.has_room() and (request := self._next()) is not None:
            one.put(request)
        if not one.unanswered:
            self._remove(one)
            return
        wanted = selectors.EVENT_READ | (0 if one.is_all_sent else selectors.EVENT_WRITE)
        self._selector.modify(one.socket, wanted, one)

    def _remove(self, one: _Connection) -> None:
        self._selector.unregister(one.socket)
        one.socket.close()
        self._open.remove(one)
