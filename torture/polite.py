"""A client that behaves: one message at a time, and how long each receipt took to come."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from harness import wire
from harness.raw import RawConnection

PAUSE_S = 0.002
RECEIPT_S_MAX = 30
# Of its own: what is asked of the attacker's namespace may clear all that waits there.
NAMESPACE = "public/polite"
TOPIC = f"persistent://{NAMESPACE}/polite"


class PoliteLost(Exception):
    """The broker closed its connection or producer, or gives no receipt."""


def _work(port: int, pipe: Connection, topic: str) -> None:
    raw = RawConnection(port, timeout_s=120)
    raw.subscribe(topic)
    raw.producer(topic)
    sent = 0
    times: list[float] = []
    while True:
        began = time.monotonic()
        raw.send(b"x" * 100, sent)
        raw.expect(wire.SEND_RECEIPT)
        times.append(time.monotonic() - began)
        sent += 1
        if pipe.poll():
            question = pipe.recv()
            if question == "end":
                break
            pipe.send(times)
            times = []
        time.sleep(PAUSE_S)
    raw.flow(sent)
    for _ in range(sent):
        raw.expect(wire.MESSAGE)
    pipe.send(sent)


class Polite:
    """A process of its own, since who measures must not wait for the attacker's Python."""

    def __init__(self, port: int, topic: str = TOPIC) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(port, theirs, topic), daemon=True)
        self._process.start()
        theirs.close()  # So that its end is seen when it ends.

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._process.pid is not None, "it was started"
        return self._process.pid

    def take(self) -> list[float]:
        """The seconds that receipts took since the last call; waits for one at least.

        Raises ``PoliteLost`` when none comes; after that only ``close`` may be called.
        """
        try:
            self._pipe.send("take")
            if not self._pipe.poll(RECEIPT_S_MAX):
                raise PoliteLost(f"no receipt within {RECEIPT_S_MAX} s")
            times: list[float] = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise PoliteLost("its connection or producer was closed") from error
        return times

    def end(self) -> int:
        """How many messages it sent; all of them have a receipt, and came back to its consumer."""
        self._pipe.send("end")
        if not self._pipe.poll(120):
            raise AssertionError("a message that has its receipt does not come back")
        sent: int = self._pipe.recv()
        self._process.join()
        return sent

    def close(self) -> None:
        """Ends it, whatever it waits for."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def p99_ms(times: Sequence[float]) -> float:
    """The 99th percentile, in ms."""
    return sorted(times)[min(len(times) - 1, len(times) * 99 // 100)] * 1000
