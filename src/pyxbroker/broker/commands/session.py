"""What the broker knows of one connection's client, besides its producers and consumers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyxbroker.auth.principal import ANONYMOUS
from pyxbroker.base.errors import ServiceNotReady
from pyxbroker.base.memory_budget import ConnectionMemory, MemoryBudget
from pyxbroker.base.pacing import Pace
from pyxbroker.connection import Connection

if TYPE_CHECKING:
    from pyxbroker.base.half_open import PendingConnection
    from pyxbroker.broker.commands.exclusive_producers import WaitingProducer
    from pyxbroker.broker.commands.login import Login
    from pyxbroker.broker.commands.seek import KeptReader
    from pyxbroker.broker.commands.topic_list import TopicListWatcher
    from pyxbroker.broker.subscriptions.subscription import Subscription


class Session:
    """One connection's client, from its CONNECT to the end."""

    __slots__ = (
        "_listing",
        "address",
        "alive",
        "answered",
        "client_version",
        "ended",
        "kept_readers",
        "line",
        "listener",
        "login",
        "memory",
        "moves",
        "opening",
        "pending_connection",
        "ping_sent",
        "principal",
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
        self.listener = listener  # of the port that it came by
        self.client_version = ""
        self.memory = ConnectionMemory(budget or MemoryBudget(), address)
        self.line = (pace or Pace()).line()  # of its commands; another once it is known
        self.pending_connection: PendingConnection | None = None  # until it logs in
        self.principal = ANONYMOUS
        # What the principal was made of, from the CONNECT on; None while authentication is off.
        self.login: Login | None = None
        self.supports_partial_producers = False  # it makes those of partitions when it needs them
        self.takes_entry_metadata = False  # what the broker has put before entries
        self.ping_sent = False
        # While the client is asked whether it is there (liveness.py): the result, and its answer.
        self.alive: asyncio.Future[bool] | None = None
        self.answered: asyncio.Future[None] | None = None
        self.tasks: set[asyncio.Future[None]] = set()
        self._listing: asyncio.Lock | None = None
        self.unread = 0  # bytes that wait for it and are charged (unread.py)
        # ("producer", "consumer" or "watcher", id)
        self.opening: dict[tuple[str, int], Opening] = {}
        # Ids of consumers that a seek has sent away -> what resolves when that seek is done.
        self.moves: dict[int, asyncio.Future[None]] = {}
        # Readers that a seek of this client has sent away, until they are back (seek.py).
        self.kept_readers: dict[Subscription, KeptReader] = {}
        # Resolves when the connection is closed; made by the first command that waits for another.
        self.ended: asyncio.Future[None] | None = None
        self.watchers: dict[int, TopicListWatcher] = {}
        self.waiting_producers: dict[int, WaitingProducer] = {}

    @property
    def listing(self) -> asyncio.Lock:
        """A list of topics may have 100,000 names: of those that a client asks for one is made at a
        time, and none while another waits to be read, however long that takes.
        """
        if self._listing is None:
            self._listing = asyncio.Lock()
        return self._listing

    def end(self) -> None:
        """The connection is closed: nobody waits for the sake of its client any more."""
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)

    @property
    def has_more(self) -> bool:
        """Whether the client has something besides producers and consumers."""
        return bool(self.watchers or self.waiting_producers or self.kept_readers)

    def forget_one(self) -> None:
        """The connection is closed: one thing of those leaves."""
        if self.watchers:
            self.watchers.popitem()[1].forget()
        elif self.waiting_producers:
            self.waiting_producers.popitem()[1].leave()
        elif self.kept_readers:
            self.kept_readers.popitem()[1].forget()


class Opening:
    """Marks an id as being opened, so that nothing else of the client uses it meanwhile.

    One that its client has closed already gives way: the next opening of the id waits for its end.
    """

    def __init__(self, connection: Connection, key: tuple[str, int]) -> None:
        """Raises ServiceNotReady when it is being opened already."""
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
        """Whether the client does not want it any more."""
        return self.closed.done()

    def close(self) -> None:
        """The client does not want it any more; what it waits for need not come."""
        if not self.closed.done():
            self.closed.set_result(None)

    async def turn(self) -> None:
        """Waits for the end of an opening of this id that was closed. Raises ServiceNotReady."""
        if self._before is not None:
            await asyncio.wait([self._before.task])
            self._before = None
        self.check_wanted()

    def check_wanted(self) -> None:
        """Raises ServiceNotReady when the client has closed what it opens."""
        if self.is_closed:
            raise ServiceNotReady(
                f"The {self._key[0]} {self._key[1]} was closed before it was open."
            )


async def opened(connection: Connection, key: tuple[str, int]) -> None:
    """Waits until an id that is being opened is open, or is not going to be."""
    opening = connection.session.opening.get(key)
    if opening is not None:
        await asyncio.wait([opening.task])


async def wait_for(
    connection: Connection,
    done: asyncio.Future[None],
    timeout_s: float | None,
    *others: asyncio.Future[None],
) -> bool:
    """Waits until something is done, and no longer than its connection is open or any of others
    takes. Returns whether it is done.
    """
    if connection.closed:
        return done.done()
    session = connection.session
    if session.ended is None:
        session.ended = done.get_loop().create_future()
    waited = [done, session.ended, *others]
    await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    return done.done()
