"""A patient client for showing single faults: publishes a number of messages, takes what comes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from harness import wire
from harness.client import Connection, Position, Refused

WINDOW = 500
OWN_SEQUENCES = 1_000_000  # what send_one sends has higher numbers than what publish does


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    """A connection that is closed at the end."""
    connection = await Connection.open(port)
    try:
        yield connection
    finally:
        connection.close()


async def publish(
    port: int,
    topic: str,
    count: int,
    body_bytes: int,
    stall_s: float = 10,
    subscription: str = "",
) -> dict[int, Position]:
    """Send messages 0 to ``count`` - 1; the receipts that came before ``stall_s`` without one.

    A ``subscription`` keeps the messages from being deleted as read by all.
    """
    received: dict[int, Position] = {}
    refused: list[int] = []
    async with connected(port) as connection:
        progress = asyncio.Event()

        def on_receipt(_: int, sequence: int, position: Position) -> None:
            received[sequence] = position
            progress.set()

        def on_refused(_: int) -> None:
            refused.append(1)
            progress.set()

        connection.on_receipt = on_receipt
        connection.on_send_error = lambda *_: progress.set()
        connection.on_close_producer = on_refused
        if subscription:
            fields = {3: wire.SHARED, 13: wire.EARLIEST}
            await connection.subscribe(topic, 1, subscription, fields=fields)
            await connection.request(wire.CLOSE_CONSUMER, 2, {1: 1})
        await connection.producer(topic, 1, "clerk")
        sent = 0
        while len(received) < count:
            while sent < count and sent - len(received) < WINDOW:
                metadata = wire.metadata("clerk", sent, int(time.time() * 1000))
                body = b"%d:" % sent + b"x" * body_bytes
                connection.write(wire.send(1, sent, metadata, body))
                sent += 1
            progress.clear()
            try:
                await asyncio.wait_for(progress.wait(), stall_s)
            except (TimeoutError, asyncio.TimeoutError):
                break
            if connection.send_errors or refused:
                break
    return received


async def send_one(
    connection: Connection, producer_id: int, sequence: int, body_bytes: int, timeout_s: float
) -> str:
    """What became of one message, in words."""
    outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def end(text: str) -> None:
        if not outcome.done():
            outcome.set_result(text)

    began = time.monotonic()
    connection.on_receipt = lambda *_: end("stored")
    connection.on_send_error = lambda *_: end(f"refused: {connection.send_errors[-1]}")
    connection.on_close_producer = lambda _: end("the producer was closed")
    metadata = wire.metadata("one", sequence, int(time.time() * 1000))
    body = f"{OWN_SEQUENCES + sequence}:".encode().ljust(body_bytes, b"x")
    connection.write(wire.send(producer_id, sequence, metadata, body))
    try:
        text = await asyncio.wait_for(outcome, timeout_s)
    except (TimeoutError, asyncio.TimeoutError):
        text = "no answer"
    return f"{text}, after {time.monotonic() - began:.1f} s"


async def take(
    connection: Connection,
    consumer_id: int,
    idle_s: float,
    on_each: Callable[[int, Position], None] = lambda *_: None,
    until: set[int] | None = None,
) -> dict[int, Position]:
    """Sequence numbers and positions of what comes until ``idle_s`` pass without a message.

    ``until``: all of these having come is the end as well, a moment later.
    """
    rest = set(until or ())
    got: dict[int, Position] = {}
    progress = asyncio.Event()

    def on_message(consumer: int, position: Position, payload: wire.Payload) -> None:
        if consumer != consumer_id:
            return
        sequence = int(payload.body.split(b":")[0])
        got[sequence] = position
        rest.discard(sequence)
        connection.flow(consumer_id, 1)
        on_each(sequence, position)
        progress.set()

    connection.on_message = on_message
    connection.flow(consumer_id, 1000)
    while True:
        progress.clear()
        try:
            done = until is not None and not rest
            await asyncio.wait_for(progress.wait(), 0.02 if done else idle_s)
        except (TimeoutError, asyncio.TimeoutError):
            return got


async def attempt(call: Awaitable[object]) -> str:
    """The outcome of a request in words."""
    began = time.monotonic()
    try:
        await asyncio.wait_for(call, 16)
        text = "done"
    except Refused as error:
        text = f"refused ({error.code}): {error}"
    except (TimeoutError, asyncio.TimeoutError):
        text = "no answer"
    except ConnectionError as error:
        text = f"the connection ended: {error}"
    return f"{text}, after {time.monotonic() - began:.1f} s"
