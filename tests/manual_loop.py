"""The little of an event loop that a connection asks for; who uses it is the loop."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any


class ManualLoop:
    """Keeps what it is asked to watch and to call; nothing happens before it is told to."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[[], None]] = {}
        self.soon: list[Callable[[], None]] = []

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        self.readers[fd] = call

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise context["exception"]

    def run_soon(self) -> int:
        """Makes the calls that were due when it began; returns how many."""
        calls, self.soon = self.soon, []
        for call in calls:
            call()
        return len(calls)

    def go_round(self) -> bool:
        """The same, and calls whom something has happened to; False when nothing has."""
        readable, _, _ = select.select(self.readers, [], [], 0)
        calls = [self.readers[fd] for fd in readable]
        called = self.run_soon() + len(calls)
        for call in calls:
            call()
        return called > 0
