"""A process that drives a client of another language: requests and answers are lines of JSON.

``goclient/main.go`` and ``javaclient/Main.java`` tell what is in them.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import subprocess
import threading
from collections.abc import Callable
from typing import Any

Done = Callable[[Any, "Exception | None"], None]


class Kept:
    """Something that the program keeps for us under a number, until this object is gone."""

    def __init__(self, owner: Program, number: int) -> None:
        self.program, self.number = owner, number

    def __del__(self) -> None:
        self.program.dropped.append(self.number)


class Program:
    """The process, the requests under way, and those who listen for events."""

    def __init__(
        self, name: str, command: list[str], failure: Callable[[str, str], Exception]
    ) -> None:
        """failure: makes an exception of what the program calls an error, and its text."""
        self.name = name
        self.dropped: collections.deque[int] = collections.deque()
        self._failure = failure
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Done] = {}
        self._listeners: dict[int, Callable[[dict[str, Any]], object]] = {}
        self._writing = threading.Lock()
        self.ended = False
        self._reader = threading.Thread(target=self._read, name=self.name, daemon=True)
        self._reader.start()

    def listen(self, handle: int, listener: Callable[[dict[str, Any]], object]) -> None:
        """Call the listener with each event of an object, in the thread that reads answers."""
        self._listeners[handle] = listener

    def start(self, op: str, on: int, args: Any, done: Done, make: int = 0) -> None:
        """Send a request; ``done`` gets its answer, or the error, in the thread that reads."""
        number = next(self._numbers)
        drop = self._take_dropped()
        asked = {"id": number, "op": op, "on": on, "as": make, "args": args, "drop": drop}
        line = json.dumps(asked).encode() + b"\n"
        self._waiting[number] = done
        assert self._process.stdin is not None
        try:
            with self._writing:
                self._process.stdin.write(line)
                self._process.stdin.flush()
        except (OSError, ValueError):
            self._fail_all()
            return
        if self.ended:  # the reader may have ended before it could see this request
            self._fail_all()

    def _take_dropped(self) -> list[int]:
        """Return the numbers that the program may release, each to one of several threads."""
        taken: list[int] = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self.dropped.popleft())
        return taken

    def ask(self, op: str, on: int, args: Any, limit_s: float | None, make: int = 0) -> Any:
        """Send a request and wait; raises what the client answered, or ``AssertionError``."""
        came = threading.Event()
        outcome: list[Any] = [None, None]

        def done(answer: Any, error: Exception | None) -> None:
            outcome[:] = answer, error
            came.set()

        self.start(op, on, args, done, make)
        assert came.wait(limit_s), f"{self.name} did not answer to {op} within {limit_s} s"
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            if "event" in answer:
                self._listeners[answer["on"]](answer)
                continue
            done = self._waiting.pop(answer["id"])
            failure = answer.get("error")
            if failure is None:
                done(answer["ok"], None)
            else:
                done(None, self._failure(failure["result"], failure["text"]))
        self.ended = True
        self._fail_all()

    def _fail_all(self) -> None:
        for number in list(self._waiting):
            done = self._waiting.pop(number, None)
            if done is not None:
                done(None, self._failure("ConnectError", f"the process of {self.name} has ended"))

    def end(self) -> None:
        """Close the input, upon which the process ends, and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        status = self._process.wait(20)
        self._close()
        assert status == 0, f"{self.name} ended with {status}"

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        self._reader.join()
        assert self._process.stdin is not None and self._process.stdout is not None
        # A request that was cut off by the kill may still be in the buffer.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
