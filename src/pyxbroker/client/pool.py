"""The connections of a client: one for each address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

from pyxbroker.client.addresses import Address, ServiceUrl
from pyxbroker.client.connection import Connection
from pyxbroker.client.errors import Closed, ConnectionFailed, ConnectionRefused
from pyxbroker.client.settings import ClientSettings

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class ConnectionPool:
    """Opens a connection when it is first needed, and again after it ended."""

    def __init__(self, settings: ClientSettings) -> None:
        """Create an empty pool. Raises BadSetting."""
        self.settings = settings
        self._service = ServiceUrl(settings.service_url)
        self._connections: dict[Address, Connection] = {}
        self._opening: dict[Address, asyncio.Task[Connection]] = {}
        self._is_closed = False

    async def to(self, address: Address) -> Connection:
        """Return the connection to an address. Raises what `Connection.open` raises."""
        found = self._connections.get(address)
        if found is not None and found.is_open:
            return found
        return await shared(self._opening, address, lambda: self._open(address))

    async def to_service(self) -> Connection:
        """Return a connection to the first host of the service URL that answers."""
        failure: ConnectionFailed | ConnectionRefused | None = None
        for _ in range(len(self._service.urls)):
            try:
                return await self.to(Address(self._service.current))
            except (ConnectionFailed, ConnectionRefused) as error:
                if isinstance(error, ConnectionRefused) and not error.is_retriable:
                    raise
                failure = failure or error
                self._service.rotate()
        assert failure is not None
        raise failure

    def close(self) -> None:
        """Close all connections permanently."""
        self._is_closed = True
        for task in self._opening.values():
            task.cancel()
        for each in self._connections.values():
            each.close()
        self._connections.clear()

    async def _open(self, address: Address) -> Connection:
        if self._is_closed:
            raise Closed("the client is closed")
        found = await Connection.open(address, self.settings)
        self._connections[address] = found
        return found


def _ignore(task: asyncio.Task[Any]) -> None:
    """Mark the error of a task as retrieved, also if all its callers were cancelled."""
    if not task.cancelled():
        task.exception()


async def shared(
    running: dict[K, asyncio.Task[T]], key: K, start: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """Return the result of the task that runs for a key, which is started if none exists.

    Callers that ask for the same while a task runs share it. A cancelled caller does not end it.
    """
    task = running.get(key)
    if task is None:
        task = running[key] = asyncio.ensure_future(start())
        task.add_done_callback(lambda _: running.pop(key, None))
        task.add_done_callback(_ignore)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise Closed("the client is closed") from None
        raise
