"""The state of one connection's client, except its producers and consumers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from pyxbroker.auth.principal import ANONYMOUS
from pyxbroker.base.errors import ServiceNotReady
from pyxbroker.base.memory_budget import ConnectionMemory, MemoryBudget
from pyxbroker.base.pacing import Pace
from pyxbroker.connection import Connection

if TYPE_CHECKING:
    from pyxbroker.base.half_open import PendingConnection
    from pyxbroker.broker.commands.exclusive_producers import WaitingProducer
    from pyxbroker.broker.commands.login import Login
    from pyxbroker.broker.subscriptions.subscription import Subscription


class Forgettable(Protocol):
    """A watcher or a reader that the broker keeps for a client."""

    def forget(self) -> None:
        """End it, because the connection is closed."""


class Session:
    """One connection's client, from CONNECT until the connection ends."""

    __slots__ = (
        "_listing",
        "address",
        "alive",
        "answered",
        "client_version",
        "ended",
        "kept_readers",
        "listener",
        "login",
        "memory",
        "moves",
        "opening",
        "pending_connection",
        "ping_sent",
        "principal",
        "step_queue",
        "supports_partial_producers",
        "takes_entry_metadata",
        "tasks",
        "unread",
        "waiting_producers",
        "watchers",
    )

    def __init__(
        self,
        address: str = "",
        budget: MemoryBudget | None = None,
        pace: Pace | None = None,
        listener: str = "",
    ) -> None:
        self.address = address  # of the client, without its port
        self.listener = listener  # name of the listener that accepted the connection
        self.client_version = ""
        self.memory = ConnectionMemory(budget or MemoryBudget(), address)
        self.step_queue = (pace or Pace()).queue()  # of commands; another after login
        self.pending_connection: PendingConnection | None = None  # until login
        self.principal = ANONYMOUS
        # How the principal was authenticated; None while authentication is off.
        self.login: Login | None = None
        self.supports_partial_producers = False  # the client opens producers of partitions lazily
        self.takes_entry_metadata = False  # the client accepts broker entry metadata
        self.ping_sent = False
        # During a liveness check (liveness.py): its result, and the client's answer.
        self.alive: asyncio.Future[bool] | None = None
        self.answered: asyncio.Future[None] | None = None
        self.tasks: set[asyncio.Future[None]] = set()
        self._listing: asyncio.Lock | None = None
        self.unread = 0  # charged bytes that wait to be sent (unread.py)
        # ("producer", "consumer" or "watcher", id)
        self.opening: dict[tuple[str, int], Opening] = {}
        # Consumers that a seek has disconnected: id -> completion of the seek.
        self.moves: dict[int, asyncio.Future[None]] = {}
        # Readers that a seek of this client has disconnected, until they are back (seek.py).
        self.kept_readers: dict[Subscription, Forgettable] = {}
        # Completed when the connection is closed. Created by the first command that waits.
        self.ended: asyncio.Future[None] | None = None
        self.watchers: dict[int, Forgettable] = {}
        self.waiting_producers: dict[int, WaitingProducer] = {}

    @property
    def listing(self) -> asyncio.Lock:
        """Lock for long answers: a list of topics may have 100,000 names. The broker builds one
        list at a time per client, and none while the client has not read the previous one.
        """
        if self._listing is None:
            self._listing = asyncio.Lock()
        return self._listing

    def end(self) -> None:
        """End the waits of commands, because the connection is closed."""
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)

    @property
    def has_more(self) -> bool:
        """True if the client has watchers, waiting producers or kept readers."""
        return bool(self.watchers or self.waiting_producers or self.kept_readers)

    def forget_one(self) -> None:
        """Remove a watcher, waiting producer or kept reader of a closed connection."""
        if self.watchers:
            self.watchers.popitem()[1].forget()
        elif self.waiting_producers:
            self.waiting_producers.popitem()[1].leave()
        elif self.kept_readers:
            self.kept_readers.popitem()[1].forget()


class Opening:
    """Marks an id as being opened, so that no other command of the client uses it meanwhile.

    If the client has closed it already, the next opening of the id waits until this one has ended.
    """

    def __init__(self, connection: Connection, key: tuple[str, int]) -> None:
        """Check the id. Raises ServiceNotReady if it is being opened already."""
        self._openings = connection.session.opening
        self._key = key
        self._before = self._openings.get(key)
        if self._before is not None and not self._before.is_closed:
            raise ServiceNotReady(f"The {key[0]} {key[1]} is already being opened; wait for it.")
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.closed: asyncio.Future[None] = task.get_loop().create_future()

    def __enter__(self) -> Opening:
        self._openings[self._key] = self
        return self

    def __exit__(self, *_: object) -> None:
        if self._openings.get(self._key) is self:
            del self._openings[self._key]

    @property
    def is_closed(self) -> bool:
        """True if the client has closed the id meanwhile."""
        return self.closed.done()

    def close(self) -> None:
        """Cancel the opening for the client, and end its waits."""
        if not self.closed.done():
            self.closed.set_result(None)

    async def turn(self) -> None:
        """Wait until a closed opening of the same id has ended. Raises ServiceNotReady."""
        if self._before is not None:
            await asyncio.wait([self._before.task])
            self._before = None
        self.check_wanted()

    def check_wanted(self) -> None:
        """Raise ServiceNotReady if the client has closed the id meanwhile."""
        if self.is_closed:
            raise ServiceNotReady(
                f"The {self._key[0]} {self._key[1]} was closed before it was open."
            )


async def wait_opened(connection: Connection, key: tuple[str, int]) -> None:
    """Wait until the opening of an id has ended."""
    opening = connection.session.opening.get(key)
    if opening is not None:
        await asyncio.wait([opening.task])


async def wait_for(
    connection: Connection,
    done: asyncio.Future[None],
    timeout_s: float | None,
    *others: asyncio.Future[None],
) -> bool:
    """Wait until a future is done, the connection is closed, or one of the others is done. Return
    True if the future is done.
    """
    if connection.closed:
        return done.done()
    session = connection.session
    if session.ended is None:
        session.ended = done.get_loop().create_future()
    waited = [done, session.ended, *others]
    await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    return done.done()
