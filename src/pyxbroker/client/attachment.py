"""The attachment of a producer or consumer to the broker that owns its topic."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from pyxbroker.base.backoff import pauses_s
from pyxbroker.client.addresses import Address
from pyxbroker.client.connection import Connection, Handler
from pyxbroker.client.errors import (
    BUSY_CODES,
    AnswerTimeout,
    BrokerRefused,
    ClientError,
    Closed,
    ConnectionFailed,
    IssuerUnreachable,
)
from pyxbroker.client.lookup import Lookup
from pyxbroker.client.pool import ConnectionPool


class Attachment:
    """A producer or a consumer. A lost one is looked up and opened again until it is closed."""

    def __init__(self, pool: ConnectionPool, lookup: Lookup, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        """The producer id or consumer id, unique in the client."""
        self.error: ClientError | None = None
        """The error that ended the attachment permanently."""
        self.last_failure: ClientError | None = None
        """The error of the last attempt to attach, for messages about time-outs."""
        self._pool = pool
        self._lookup = lookup
        self._connection: Connection | None = None
        self._registered_at: Connection | None = None
        self._has_been_open = False
        self._reopening: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The URL of the broker that serves the topic; empty while none exists."""
        return self._connection.url if self._connection is not None else ""

    async def open(self) -> None:
        """Attach for the first time, within the operation timeout. Raises ClientError."""
        end = time.monotonic() + self._pool.settings.operation_timeout_s
        for pause_s in pauses_s():
            try:
                return await self._attach(None)
            except (BrokerRefused, ConnectionFailed) as error:
                is_final = isinstance(error, BrokerRefused) and not error.is_retriable
                if is_final or time.monotonic() + pause_s > end:
                    self.end(error)
                    raise
            except ClientError as error:
                self.end(error)
                raise
            await asyncio.sleep(pause_s)

    async def attached(self) -> Connection:
        """Return the connection; wait for it while it is opened again.

        Raises what ended the attachment, ConnectionFailed.
        """
        self.raise_if_ended()
        if self._connection is None and self._reopening is not None:
            timeout_s = self._pool.settings.operation_timeout_s
            await asyncio.wait((self._reopening,), timeout=timeout_s)
            self.raise_if_ended()
        if self._connection is None:
            raise ConnectionFailed(self._pool.settings.service_url, f"{self.topic} is not attached")
        return self._connection

    def end(self, error: ClientError) -> None:
        """Detach permanently; only the first reason counts."""
        if self.error is None:
            self.error = error
            self._forget()
            if self._reopening is not None and self._reopening is not asyncio.current_task():
                self._reopening.cancel()
            self._on_end(error)

    def raise_if_ended(self) -> None:
        if self.error is not None:
            raise self.error

    def on_connection_lost(self, error: ClientError) -> None:
        if isinstance(error, Closed):
            self.end(error)
        else:
            self._reopen(None)

    # --- for the subclasses ---------------------------------------------------------------------

    def _handlers_of(self, connection: Connection) -> dict[int, Handler]:
        """Return the connection's table of producers or of consumers."""
        raise NotImplementedError

    async def _register(self, connection: Connection) -> None:
        """Ask the broker for the producer or consumer. Raises ClientError."""
        raise NotImplementedError

    def _close_command(self) -> Any:
        """Return the command that closes it at the broker."""
        raise NotImplementedError

    def _on_attached(self, connection: Connection) -> None:
        """Send the commands that wait for the connection."""

    def _on_end(self, error: ClientError) -> None:
        """Fail the operations that wait."""

    async def _leave(self) -> None:
        """Drop the state of the previous connection before the next one is used."""

    def on_command(self, kind: int, body: Any, section: bytes) -> None:
        """Handle a command with its number."""
        raise NotImplementedError

    async def _close(self, error: ClientError) -> None:
        """End it, and close it at the broker."""
        connection = self._connection
        self.end(error)
        if connection is not None and connection.is_open:
            await close_at(connection, self._close_command())

    def _moved(self, close: Any) -> None:
        """Reopen after the broker's CLOSE_PRODUCER or CLOSE_CONSUMER, which may name another."""
        url = close.assignedBrokerServiceUrl
        if self._connection is not None and self._connection.address.is_tls:
            url = close.assignedBrokerServiceUrlTls
        # Through a proxy the assigned broker cannot be reached directly.
        is_proxied = self._connection is not None and self._connection.address.proxied
        self._reopen(Address(url) if url and not is_proxied else None)

    def _reopen(self, assigned: Address | None) -> None:
        self._forget()
        if self.error is None and self._reopening is None and self._has_been_open:
            self._reopening = asyncio.ensure_future(self._reattach(assigned))
            self._reopening.add_done_callback(self._on_reopened)

    # --- attaching ------------------------------------------------------------------------------

    async def _attach(self, assigned: Address | None) -> None:
        address = assigned or await self._lookup.owner_of(self.topic)
        connection = await self._pool.to(address)
        self.raise_if_ended()
        handlers = self._handlers_of(connection)
        handlers[self.number] = self
        self._registered_at = connection
        try:
            await self._register(connection)
            if handlers.get(self.number) is not self:
                # The broker closed it, or the connection was lost, right after the answer.
                raise ConnectionFailed(connection.url, "the broker gave the topic away")
        except BaseException as error:
            self._forget()
            if isinstance(error, (AnswerTimeout, asyncio.CancelledError)):
                connection.notify(self._close_command())
            raise
        self._has_been_open = True
        self.last_failure = None
        self._connection = connection
        self._on_attached(connection)

    def _forget(self) -> None:
        """Remove the handler from the connection, if there is one."""
        if self._registered_at is not None:
            self._handlers_of(self._registered_at).pop(self.number, None)
        self._connection = self._registered_at = None

    async def _reattach(self, assigned: Address | None) -> None:
        await self._leave()
        for pause_s in pauses_s():
            try:
                return await self._attach(assigned)
            except BrokerRefused as error:
                self.last_failure = error
                if not error.is_retriable and error.code not in BUSY_CODES:
                    return self.end(error)
            except (ConnectionFailed, IssuerUnreachable) as error:
                self.last_failure = error
            except ClientError as error:
                return self.end(error)
            assigned = None
            await asyncio.sleep(pause_s)

    def _on_reopened(self, task: asyncio.Task[None]) -> None:
        self._reopening = None
        if task.cancelled() or self.error is not None:
            return
        if task.exception() is not None:
            self.end(ClientError(f"{self.topic} cannot be opened again: {task.exception()!r}"))
        elif self._connection is None:
            self._reopen(None)  # it was lost before the task had ended


async def close_at(connection: Connection, command: Any) -> None:
    """Ask for a close, which a lost connection makes unnecessary."""
    try:
        await connection.ask(command)
    except (BrokerRefused, ConnectionFailed, Closed):
        return
