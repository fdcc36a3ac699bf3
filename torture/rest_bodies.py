"""Bodies that do not come as they should: slow, without an end, cut short, too large, misframed.

Each has a number, and is the same for the same seed and number. All but those whose client goes
away have an answer: that to the request, or what is wrong with its body. None may send for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torture.rest_requests import BODIES, NoAnswer, Row, a_path, an_answer

# Until a body has to be there (web/connection.py), and for a busy machine.
ANSWER_S_MAX = 30 + 30
# What a body may have and a sender and a receiver hold, several times.
TAKEN_BYTES_MAX = 64 << 20
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n" + b"[" * 65_536 + b"\r\n"
LENGTH_MAX = 1 << 20  # of a body, by Pulsar's setting and ours
# A request may set a persistence policy that wants more bookies than the one of standalone.
TOO_FEW_BOOKIES = "needs as many bookies"


class Sending(NamedTuple):
    """What is sent piece by piece; a pause stands before each."""

    pieces: Iterator[bytes]
    pause_s: float = 0.0
    then: str = "listen"  # or "end": no more is sent, or "go": nobody listens


def _length(size: int) -> bytes:
    return b"Content-Length: %d\r\n\r\n" % size


def _slow(dice: random.Random, body: bytes) -> Sending:
    """A byte now and then; it is whole in the end."""
    body = body[:20] or b"1"
    return Sending(iter([_length(len(body)), *(body[at : at + 1] for at in range(len(body)))]), 0.1)


def _slower(dice: random.Random, body: bytes) -> Sending:
    """It never is."""
    head = dice.choice([_length(10_000), CHUNKED])
    piece = b"1" if head.startswith(b"C") else b"1\r\n1\r\n"
    return Sending(iter([head, *[piece] * 1_000]), 0.5)


def _endless(dice: random.Random, body: bytes) -> Sending:
    """Chunks, or the extension of one, or what comes after them, or a header."""
    begin, more = dice.choice(
        [
            (CHUNKED, CHUNK),
            (CHUNKED, b"1\r\n1\r\n" * 1_000),
            (CHUNKED + b"1;", b"x" * 1_000),
            (CHUNKED + b"0\r\n", b"A: b\r\n" * 1_000),
            (CHUNKED, b"0" * 1_000),
            (b"X: ", b"x" * 1_000),
            (b"", b"X: y\r\n" * 1_000),
        ]
    )

    def pieces() -> Iterator[bytes]:
        yield begin
        while True:
            yield more

    return Sending(pieces())


def _larger(dice: random.Random, body: bytes) -> Sending:
    """Larger than any body may be, by what it says or has."""
    size = dice.choice([LENGTH_MAX + 1, 8 * LENGTH_MAX, 1 << 40, 10**30])
    return Sending(iter([_length(size), *[bytes(65_536)] * min(size >> 16, 256)]), then="end")


def _cut(dice: random.Random, body: bytes) -> Sending:
    """Less than it says, and no more is sent."""
    head = _length(len(body) + dice.choice([1, 100, 1_000_000]))
    if dice.random() < 0.4:
        head = CHUNKED + dice.choice([b"", b"5", b"5\r\nab", b"0\r\n"])
        body = b""
    return Sending(iter([head, body]), then="end")


def _gone(dice: random.Random, body: bytes) -> Sending:
    return _cut(dice, body)._replace(then="go")


def _misframed(dice: random.Random, body: bytes) -> Sending:
    chunked = b"Transfer-Encoding: chunked\r\n"
    return Sending(
        iter(
            [
                dice.choice(
                    [
                        chunked + _length(len(body)) + body,
                        chunked + b"\r\n-1\r\n" + body,
                        chunked + b"\r\nffffffffffffffffffff\r\n" + body,
                        chunked + b"\r\n%x\r\n%bxx0\r\n\r\n" % (len(body), body),
                        b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
                        b"Transfer-Encoding: nothing\r\n\r\n",
                        b"Content-Length: -1\r\n\r\n",
                        b"Content-Length: 1, 2\r\n\r\n",
                        b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
                        b"Content-Length: 0x10\r\n\r\n" + body,
                        b"Content-Length: \xb2\r\n\r\n",
                        b"Expect: 100-continue\r\n" + _length(len(body)) + body,
                    ]
                )
            ]
        ),
        then="end",
    )


KINDS = [_slow, _slower, _endless, _larger, _cut, _gone, _misframed]


@dataclass
class Bodies:
    """One after the other on each of some connections, until it is cancelled."""

    port: int
    seed: int
    rows: list[Row]
    answers: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    next_number: int = 0

    async def run(self, connections: int) -> None:
        await asyncio.gather(*(self._connection() for _ in range(connections)))

    async def _connection(self) -> None:
        while len(self.problems) < 5:
            number, self.next_number = self.next_number, self.next_number + 1
            await self.meet(number)

    async def meet(self, number: int) -> None:
        """The one with this number."""
        dice = random.Random(f"{self.seed} body {number}")
        kind = dice.choice(KINDS)
        row = dice.choice([row for row in self.rows if row.method in ("PUT", "POST")])
        head = f"{row.method} {a_path(dice, row)} HTTP/1.1\r\nHost: storm\r\n".encode("latin-1")
        sending = kind(dice, dice.choice(BODIES))
        name = kind.__name__[1:]
        taken, status, wrong = 0, 0, ""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        try:
            taken, status = await asyncio.wait_for(
                _send(reader, writer, head, sending), ANSWER_S_MAX
            )
        except (TimeoutError, asyncio.TimeoutError):
            wrong = f"no end after {ANSWER_S_MAX} s"
        except NoAnswer as error:
            wrong = "" if sending.then == "go" else str(error)
        finally:
            writer.close()
        if status >= 500 and status not in (501, 503):
            wrong = f"{status}"
        if taken > TAKEN_BYTES_MAX:
            wrong = f"{taken} bytes were taken"
        self.answers[f"{name} {status or '-'}"] += 1
        if wrong:
            self.problems.append(
                f"seed {self.seed}, body {number} ({name}): {head[:300]!r}: {wrong}"
            )


async def _send(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, sending: Sending
) -> tuple[int, int]:
    """Bytes that were sent before the answer came, and its status."""
    writer.write(head)
    taken = 0
    answer = asyncio.ensure_future(_status(reader))
    try:
        with contextlib.suppress(ConnectionError):
            for piece in sending.pieces:
                if sending.pause_s:
                    await asyncio.wait([answer], timeout=sending.pause_s)
                writer.write(piece)
                await _until_drained(writer, answer)
                taken += len(piece)
                if answer.done() or taken > TAKEN_BYTES_MAX:
                    break
            if sending.then == "go":
                raise NoAnswer("nobody listens")
            if sending.then == "end" and not answer.done():
                writer.write_eof()
        return taken, await answer
    finally:
        answer.cancel()


async def _until_drained(writer: asyncio.StreamWriter, answer: asyncio.Future[Any]) -> None:
    """Raises ConnectionError when nobody takes it any more."""
    drained: asyncio.Future[Any] = asyncio.ensure_future(writer.drain())
    try:
        await asyncio.wait({answer, drained}, return_when=asyncio.FIRST_COMPLETED)
        if drained.done():
            drained.result()
    finally:
        drained.cancel()


async def _status(reader: asyncio.StreamReader) -> int:
    """Of the answer, or of the one behind a 100."""
    status = 100
    while status == 100:
        status, _, _ = await an_answer(reader)
    return status
