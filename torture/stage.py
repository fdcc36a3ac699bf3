"""A broker with messages that were acknowledged, for the tests of the fault table.

A session makes one data directory; each row gets copies of it.  What was acknowledged is known, so
everything can be asked for after each error.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from harness import wire
from harness.brokers import Broker, BrokerFailed
from harness.client import Connection, Position, Refused
from harness.errors import Errors

from torture.clerk import connected, publish, take
from torture.log_judge import Output, refusal_problems

# Small files and caches, so that each call can be caused soon.
SETTINGS = {
    "journalMaxSizeMB": "16",
    "dbStorage_writeCacheMaxSizeMb": "2",
    "dbStorage_readAheadCacheMaxSizeMb": "1",
}
PREFIX = "persistent://public/default/"
REST = "/admin/v2/persistent/public/default"
HEALTH = "/admin/v2/brokers/health"
OLD, NEW, SUBSCRIPTION = "old", "new", "audit"
DELETED = [f"deleted-{number}" for number in range(2)]
BODY_BYTES = 8000
SERVED_S = 6.0  # an error that is over is noticed by a retry within about a second

# A data directory after a kill; by topic what has a receipt; what consumers acknowledged.
Pristine = tuple[Path, dict[str, dict[int, Position]], set[Position]]


def make_pristine(folder: Path) -> Pristine:
    """(data directory after a kill, by topic what has a receipt, what consumers acknowledged)."""
    broker = Broker("pyxbroker", folder / "maker", settings=SETTINGS)
    broker.data = folder / "pristine"
    acked: set[Position] = set()

    async def first() -> dict[str, dict[int, Position]]:
        async with connected(broker.port) as connection:
            made = {}
            for topic, count in (*((topic, 40) for topic in DELETED), (OLD, 500)):
                made[topic] = await _publish(broker.port, topic, count, BODY_BYTES)
            fields = {3: wire.SHARED}
            await connection.subscribe(PREFIX + OLD, 1, SUBSCRIPTION, fields=fields)
            acked.update(made[OLD][number] for number in range(0, 400, 2))
            await connection.ack_with_receipt(1, sorted(acked))
        return made

    broker.start()
    sent = asyncio.run(first())
    broker.stop()
    broker.start()
    sent[NEW] = asyncio.run(_publish(broker.port, NEW, 50, 500))
    broker.kill()
    return broker.data, sent, acked


async def _publish(
    port: int, topic: str, count: int, body_bytes: int, stall_s: float = 10
) -> dict[int, Position]:
    return await publish(port, PREFIX + topic, count, body_bytes, stall_s, SUBSCRIPTION)


class Stage:
    """One copy of the pristine directory, a broker on it, and the rules of its errors."""

    def __init__(
        self,
        folder: Path,
        library: Path,
        pristine: Pristine,
    ) -> None:
        self.pristine, self._sent, self.acked = pristine
        self.sent = {topic: dict(each) for topic, each in self._sent.items()}
        self.broker = Broker("pyxbroker", folder / "broker", settings=SETTINGS)
        self.broker.data = folder / "data"
        shutil.copytree(self.pristine, self.broker.data)
        self.errors = Errors(library, self.broker.data, folder / "errors")
        self.broker.environment = self.errors.environment()
        self.topic = ""  # the last one that ``send`` made
        self.created: set[str] = set()
        self._numbers = itertools.count()

    def output(self) -> Output:
        """What the broker says from now on."""
        return Output(self.broker.directory / "output.log")

    def again(self, empty: bool = False) -> None:
        """The data directory as it was, or an empty one."""
        self.broker.kill()
        self.errors.forget()
        self.sent = {topic: dict(each) for topic, each in self._sent.items()}
        self.created.clear()
        shutil.rmtree(self.broker.data)
        if empty:
            self.broker.data.mkdir()
        else:
            shutil.copytree(self.pristine, self.broker.data)
        if empty:
            self.sent = {}

    def close(self) -> None:
        """End it."""
        self.broker.close()
        self.errors.close()

    def lives(self) -> bool:
        """Whether the process runs."""
        return self.broker.process is not None and self.broker.process.poll() is None

    # --- work -------------------------------------------------------------------------------------

    async def send(self, count: int, body_bytes: int = 100, stall_s: float = 10) -> int:
        """Publish to a topic of its own; what got a receipt is promised. How many did."""
        topic = self.topic = f"more-{next(self._numbers)}"
        try:
            made = await _publish(self.broker.port, topic, count, body_bytes, stall_s)
        except (Refused, ConnectionError, TimeoutError, asyncio.TimeoutError):
            return 0
        self.sent[topic] = made
        return len(made)

    async def create_topics(self, count: int) -> None:
        """Make topics; each that is answered must be there from now on."""
        for _ in range(count):
            name = f"created-{next(self._numbers)}"
            status, _ = await self.rest("PUT", f"{REST}/{name}")
            if status < 300:
                self.created.add(name)

    async def check_topics(self) -> list[str]:
        """Is every topic there whose creation was answered?"""
        status, names = await self.rest("GET", REST)
        if status != 200 or not isinstance(names, list):
            return [f"topics cannot be listed: {status} {names}"]
        lost = self.created - {name.rpartition("/")[2] for name in names}
        return [f"{len(lost)} topics are lost, first {min(lost)}"] if lost else []

    async def becomes_healthy(self) -> bool:
        """Whether health is 200 soon."""
        deadline = time.monotonic() + SERVED_S
        while await self.health() != 200:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True

    async def send_until_served(self) -> float:
        """Seconds until a message is taken again; a failure when that takes too long."""
        began = time.monotonic()
        while await self.send(1, stall_s=1) == 0:
            assert self.lives(), self.broker.output()
            assert time.monotonic() - began < SERVED_S, f"not served again: {self.broker.output()}"
            await asyncio.sleep(0.05)
        return time.monotonic() - began

    async def read_all(self, topics: list[str] | None = None, idle_s: float = 4.0) -> list[str]:
        """Read topics from the first message on; what is wrong."""
        wrong = []
        async with connected(self.broker.port) as connection:
            for topic in topics or sorted(self.sent):
                wrong += await self._read(connection, topic, idle_s)
        return wrong

    async def _read(self, connection: Connection, topic: str, idle_s: float) -> list[str]:
        promised = self.sent[topic]
        try:
            await connection.reader(PREFIX + topic, 1)
        except Refused as error:
            return [f"{topic} cannot be read: {error}"]
        got = await take(connection, 1, idle_s, until=set(promised))
        await connection.request(wire.CLOSE_CONSUMER, 2, {1: 1})
        lost = {number for number in promised if number not in got}
        moved = {n for n in promised if n in got and got[n] != promised[n]}
        order = list(got.values())
        wrong = []
        if lost:
            wrong.append(f"{topic}: {len(lost)} of {len(promised)} are not read, first {min(lost)}")
        if moved:
            wrong.append(f"{topic}: {len(moved)} are not at their position")
        if order != sorted(order):
            wrong.append(f"{topic}: messages came out of order")
        return wrong

    async def check_subscription(self) -> list[str]:
        """Does it deliver all that is open, and nothing whose acknowledgement was answered?"""
        wanted = {n for n, position in self.sent[OLD].items() if position not in self.acked}
        async with connected(self.broker.port) as connection:
            fields = {3: wire.SHARED}
            await connection.subscribe(PREFIX + OLD, 1, SUBSCRIPTION, fields=fields)
            got = await take(connection, 1, 4.0, until=wanted)
        wrong = []
        if lost := wanted - got.keys():
            wrong.append(f"{len(lost)} open messages are not delivered, first {min(lost)}")
        if again := {n for n, position in got.items() if position in self.acked}:
            wrong.append(f"{len(again)} acknowledged messages come again, first {min(again)}")
        return wrong

    async def rest(self, method: str, path: str) -> tuple[int, object]:
        """A request to the admin port."""
        return await asyncio.to_thread(self.broker.rest, method, path)

    async def health(self) -> int:
        """The status of the health page."""
        return await asyncio.to_thread(self.broker.http_status, HEALTH)

    async def wait_for(self, check: Callable[[], bool], timeout_s: float) -> bool:
        """Whether it came true in time."""
        deadline = time.monotonic() + timeout_s
        while not check():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    # --- starts -----------------------------------------------------------------------------------

    async def attempt_start(self, limit_s: float = 30.0) -> tuple[bool, list[str]]:
        """(whether it serves, what is wrong with how it was refused)."""
        output = self.output()
        self.broker.spawn()
        deadline = time.monotonic() + limit_s
        while not await asyncio.to_thread(self.broker.answers):
            assert self.broker.process is not None
            status = self.broker.process.poll()
            if status is not None:
                self.broker.kill()
                return False, refusal_problems(status, output)
            if time.monotonic() > deadline:
                self.broker.kill()
                return False, [f"neither serves nor ends within {limit_s:g} s: {output.text()}"]
            await asyncio.sleep(0.005)
        return True, []

    async def must_start(self) -> None:
        """Start; nothing fails now."""
        try:
            await asyncio.to_thread(self.broker.start)
        except BrokerFailed as error:
            raise AssertionError(f"it does not start although nothing fails: {error}") from None
