"""What the broker knows of one connection's client, beside its producers and consumers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pyxbroker.base.errors import ServiceNotReady
from pyxbroker.connection import Connection

if TYPE_CHECKING:
    from pyxbroker.broker.commands.topic_list import TopicListWatcher


class Session:
    """One connection's client, from its CONNECT to the end."""

    __slots__ = (
        "address",
        "alive",
        "answered",
        "client_version",
        "opening",
        "ping_sent",
        "tasks",
        "watchers",
    )

    def __init__(self, address: str = "") -> None:
        self.address = address  # of the client, without its port
        self.client_version = ""
        self.ping_sent = False
        # While the client is asked whether it is there (liveness.py): the result, and its answer.
        self.alive: asyncio.Future[bool] | None = None
        self.answered: asyncio.Future[None] | None = None
        self.tasks: set[asyncio.Future[None]] = set()
        # ("producer", "consumer" or "watcher", id) -> the task that is opening it
        self.opening: dict[tuple[str, int], asyncio.Task[Any] | None] = {}
        self.watchers: dict[int, TopicListWatcher] = {}


class Opening:
    """Marks an id as being opened, so that nothing else of the client uses it meanwhile."""

    def __init__(self, connection: Connection, key: tuple[str, int]) -> None:
        """Raises ServiceNotReady when it is being opened already."""
        self._opening = connection.session.opening
        self._key = key
        if key in self._opening:
            raise ServiceNotReady(f"The {key[0]} {key[1]} is already being opened; wait for it.")

    def __enter__(self) -> None:
        self._opening[self._key] = asyncio.current_task()

    def __exit__(self, *_: object) -> None:
        del self._opening[self._key]


async def opened(connection: Connection, key: tuple[str, int]) -> None:
    """Waits until an id that is being opened is open, or is not going to be."""
    task = connection.session.opening.get(key)
    if task is not None:
        await asyncio.wait([task])
