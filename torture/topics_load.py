"""Topics that are made, filled and deleted by requests, and held to each answer."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import time

from harness import wire
from harness.brokers import Broker
from harness.client import Connection, Position, Refused

from torture.stubborn import GONE

NAMESPACE = "/admin/v2/persistent/public/default"
MESSAGES = 40
BODY_BYTES = 8000  # large enough that a deletion frees blocks of an entry log


class TopicsLoad:
    """Runs beside the other load; ``check`` holds the broker to what it answered."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.gone: set[str] = set()
        self.refused: list[str] = []
        self._numbers = itertools.count(1)
        self._stopping = False

    def stop(self) -> None:
        """Let ``run`` end soon."""
        self._stopping = True

    async def run(self, broker: Broker) -> None:
        """Make a topic, fill it, delete an older one; again until ``stop``."""
        self._stopping = False
        while not self._stopping:
            name = f"made-{next(self._numbers)}"
            try:
                await self._make(broker, name)
                await self._fill(broker.port, name)
                if len(self.there) > 4:
                    await self._delete(broker, min(self.there, key=lambda n: int(n[5:])))
            except (Refused, http.client.HTTPException, *GONE) as error:
                self.refused.append(str(error))
            await asyncio.sleep(0.1)

    async def _make(self, broker: Broker, name: str) -> None:
        status, answer = await asyncio.to_thread(broker.rest, "PUT", f"{NAMESPACE}/{name}")
        if 200 <= status < 300:
            self.there.add(name)
        else:
            self.refused.append(f"{status} {answer}")

    async def _delete(self, broker: Broker, name: str) -> None:
        self.there.discard(name)  # Until it is answered the outcome is not known.
        path = f"{NAMESPACE}/{name}?force=true"
        status, answer = await asyncio.to_thread(broker.rest, "DELETE", path)
        if 200 <= status < 300:
            self.gone.add(name)
        else:
            self.refused.append(f"{status} {answer}")

    async def _fill(self, port: int, name: str) -> None:
        connection = await Connection.open(port)
        all_came = asyncio.Event()

        def on_receipt(_number: int, sequence: int, _position: Position) -> None:
            if sequence == MESSAGES - 1:
                all_came.set()

        connection.on_receipt = on_receipt
        try:
            await connection.producer(f"persistent://public/default/{name}", 1, f"of-{name}")
            for sequence in range(MESSAGES):
                metadata = wire.metadata(f"of-{name}", sequence, int(time.time() * 1000))
                data = b"x" * BODY_BYTES
                connection.write(wire.send(1, sequence, metadata, data))
            await asyncio.wait_for(all_came.wait(), 0.5)
        finally:
            connection.close()

    async def check(self, broker: Broker) -> list[str]:
        """Is there what was made, and not what was deleted?"""
        status, names = await asyncio.to_thread(broker.rest, "GET", NAMESPACE)
        if status != 200:
            return [f"topics cannot be listed: {status} {names}"]
        listed = {name.rpartition("/")[2] for name in names}
        wrong = []
        if lost := self.there - listed:
            wrong.append(f"{len(lost)} topics are lost whose creation was answered: {min(lost)}")
        if back := self.gone & listed:
            wrong.append(f"{len(back)} topics are back whose deletion was answered: {min(back)}")
        return wrong
