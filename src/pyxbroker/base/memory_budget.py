"""Memory that clients use in the broker: a budget for all connections, and one for each.

Producers, consumers, watchers, commands in progress and unread answers are charged when they are
created, and released when they end. Messages are not charged. Sizes are estimates that err on the
high side. A connection above its own limit is refused. When the total is reached, the connection
with the largest charge is closed, or refused if it is the one that asks. So a client with little is
never refused because of a client with much.

Unauthenticated clients, whose CONNECTs or HTTP requests wait for authentication, share a part of
the budget. The largest of them is closed first, also when an authenticated client needs room.

Answers of REST are counted separately, until they are written. So are request bodies, from their
arrival until the answer. Each of the two is limited to a part of the budget, and to what
connections leave of the whole; neither closes a connection of the binary protocol. An answer beyond
the limit is refused. For a body beyond the limit, the largest incomplete body is rejected: its
request is refused, and its connection closed.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Hashable
from typing import Any, Generic, Protocol, TypeVar

from pyxbroker.base.errors import AnswersNotRead, NotAllowed, TooManyBodies, TooManyRequests
from pyxbroker.base.eviction_queue import network_of
from pyxbroker.base.log import get_logger

log = get_logger("pyxbroker.connection")

K = TypeVar("K", bound=Hashable)

COMMAND_BYTES = 4 << 10  # a task
COMMAND_FACTOR = 4  # bytes in memory for each of a command's on the wire

# Answers of REST may use one of so many parts of the budget.
ANSWERS_PART = 4
UNAUTHENTICATED_PART = 4  # likewise for CONNECTs and requests of unauthenticated clients
ANSWER_FREE_BYTES = 64 << 10  # smaller answers cost nothing, so errors can always be sent

# Likewise for bodies of REST requests.
BODIES_PART = 4
BODY_FREE_BYTES = 64 << 10
BODY_STEP_BYTES = 64 << 10  # unit of charges

SWEPT_FROM = 64  # stale elements of a heap before it is rebuilt

TOTAL_SETTING = "maxClientStateSizeInMB"
CONNECTION_SETTING = "maxClientStateSizeInMBPerConnection"


class Client(Protocol):
    """A connection of the binary protocol."""

    @property
    def peer(self) -> str:
        """Address and port of the client, for the log."""

    @property
    def session(self) -> Any:
        """The session: its `memory` is a ConnectionMemory, its `address` that of the client."""

    @property
    def group(self) -> Any:
        """The connections that it belongs to; they have the event loop's turn."""

    def __hash__(self) -> int: ...

    def send_frame(self, frame: bytes) -> None: ...

    def close(self) -> None: ...


class MemoryBudget:
    """The budget of all connections. A limit of 0 means unlimited."""

    def __init__(
        self,
        total_max: int = 0,
        connection_max: int = 0,
        live: Callable[[], Collection[Client]] = lambda: (),
    ) -> None:
        self.total_max = total_max
        self.connection_max = connection_max
        self.used = 0
        self.answer_bytes = 0  # of REST, not yet sent to clients; not in `used`
        self.answers_refused = 0
        self.body_bytes = 0  # of unanswered REST requests; not in `used`
        self.bodies_refused = 0
        # Incomplete bodies.
        self._coming: Costs[WebBody] = Costs()
        self._coming_bytes = 0
        self.refused = 0  # refused commands
        self.closed = 0  # closed connections
        self.unauthenticated_bytes = 0  # of CONNECTs and requests before authentication; in `used`
        # Unauthenticated clients, and the charge of each.
        self._unauthenticated: Costs[Client | UnauthenticatedRequest] = Costs()
        self._live = live
        # An upper bound of all charges; a request beyond it is refused without a search.
        self.most = 0

    @property
    def answers_max(self) -> int:
        """Limit for answers of REST; 0: unlimited."""
        return self.total_max // ANSWERS_PART

    def charge_answer(self, size: int) -> int:
        """Charge an answer of REST. Return the charge, to be released when the client has read it.

        Raises AnswersNotRead above the limit; nothing is charged then.
        """
        if not self.total_max or size <= ANSWER_FREE_BYTES:
            return 0
        answers = self.answer_bytes + size
        if answers > self.answers_max or self.used + answers > self.total_max:
            self.answers_refused += 1
            log.warning("an answer is refused: those that are not read yet hold too much",
                        bytes=self.answer_bytes, asked=size, setting=TOTAL_SETTING)  # fmt: skip
            raise AnswersNotRead(
                f"The broker holds {self.answer_bytes} bytes of answers that clients have not read"
                f" yet, and {size} more are over the limit ({TOTAL_SETTING}); try again later."
            )
        self.answer_bytes = answers
        return size

    def release_answer(self, cost: int) -> None:
        """Release the charge of an answer: the client has read it, or is gone."""
        self.answer_bytes -= cost

    def charge_body(self, body: WebBody, size: int) -> None:
        """Charge more of a request body, or of the objects made from it. Above the limit, the
        largest incomplete body is rejected; for a complete body each incomplete one is. Raises
        TooManyBodies; nothing is charged then.
        """
        its_own = body.cost if body.is_coming else 0
        least = its_own + size if body.is_coming else 0
        # If rejecting all incomplete bodies would not suffice, none is rejected.
        is_of_use = not self._is_too_much(self.body_bytes - self._coming_bytes + its_own + size)
        while self._is_too_much(self.body_bytes + size):
            costliest, cost = self._coming.costliest()
            reason = (
                f"The broker holds {self.body_bytes} bytes of requests that are not answered yet,"
                f" and {size} more are over the limit ({TOTAL_SETTING}); try again later."
            )
            self.bodies_refused += 1
            log.warning("a request is refused: bodies of requests hold too much",
                        bytes=self.body_bytes, asked=size, setting=TOTAL_SETTING)  # fmt: skip
            if costliest is None or cost <= least or not is_of_use:
                raise TooManyBodies(reason)
            self.release_body(costliest)
            costliest.refuse(reason)
        self.body_bytes += size
        body.cost += size
        if body.is_coming:
            self._coming.remove(body)
            self._coming.add(body, body.cost)
            self._coming_bytes += size

    def _is_too_much(self, bodies: int) -> bool:
        most = self.total_max
        return most > 0 and (bodies > most // BODIES_PART or self.used + bodies > most)

    def end_body(self, body: WebBody) -> None:
        """Note that a body is complete, and so cannot be rejected any more."""
        self._coming_bytes -= self._coming.remove(body)

    def release_body(self, body: WebBody) -> None:
        """Release the charge of a body: its request is answered, or will not be read."""
        self._coming_bytes -= self._coming.remove(body)
        self.body_bytes -= body.cost
        body.cost = 0

    def charge_unauthenticated(self, client: Client | UnauthenticatedRequest, size: int) -> None:
        """Charge a client that waits for authentication. Raises TooManyRequests or NotAllowed above
        the limit; nothing is charged then.
        """
        memory = (
            client.memory if isinstance(client, UnauthenticatedRequest) else client.session.memory
        )
        most = self.total_max // UNAUTHENTICATED_PART
        while self.total_max and self.unauthenticated_bytes + size > most:
            if not self._close_unauthenticated(size):
                self.note_refused(memory, size, TOTAL_SETTING)
                raise TooManyRequests(
                    f"The broker remembers {self.unauthenticated_bytes} bytes of unauthenticated"
                    f" clients, which is their limit (a part of {TOTAL_SETTING}); try again later."
                )
        memory.charge(size)
        self._unauthenticated.add(client, self._unauthenticated.remove(client) + size)
        self.unauthenticated_bytes += size

    def forget_unauthenticated(self, client: Client | UnauthenticatedRequest) -> None:
        """Stop counting a client as unauthenticated: it is authenticated, refused, or gone."""
        self.unauthenticated_bytes -= self._unauthenticated.remove(client)

    def _close_unauthenticated(self, least: int) -> bool:
        """Close the unauthenticated client with the largest charge above `least`. Return False if
        none.
        """
        costliest, size = self._unauthenticated.costliest()
        if costliest is None or size <= least:
            return False
        if isinstance(costliest, UnauthenticatedRequest):
            self._close_request(costliest)
        else:
            self.close(costliest, TOTAL_SETTING)
        return True

    def _close_request(self, client: UnauthenticatedRequest) -> None:
        log.warning("closed: it uses too much memory", peer=client.memory.address,
                    bytes=client.memory.used, setting=TOTAL_SETTING)  # fmt: skip
        self.closed += 1
        self.forget_unauthenticated(client)
        client.memory.end()
        client.close()

    def make_room(self, asker: ConnectionMemory, size: int) -> None:
        """Close the largest connections. Raises TooManyRequests if the asker is the largest."""
        while self.used + size > self.total_max:
            if self._close_unauthenticated(0 if asker.is_known else asker.used + size):
                continue
            costliest = self._costliest(asker.used + size)
            if costliest is None:
                self.note_refused(asker, size, TOTAL_SETTING)
                raise TooManyRequests(
                    f"The broker remembers {self.used} bytes for its clients, {asker.used} of them"
                    f" for this connection, which is its limit ({TOTAL_SETTING}); close some of"
                    " what is open."
                )
            self.close(costliest, TOTAL_SETTING)

    def _costliest(self, least: int) -> Client | None:
        """Return the connection with the largest charge above `least`, or None. The search result
        is stored as an upper bound, so that repeated requests of a refused client cause no further
        search.
        """
        if self.most <= least:
            return None
        costliest = max(self._live(), key=lambda each: each.session.memory.used, default=None)
        self.most = 0 if costliest is None else costliest.session.memory.used
        return costliest if self.most > least else None

    def note_refused(self, asker: ConnectionMemory, size: int, setting: str) -> None:
        """Count and log a refused command."""
        self.refused += 1
        log.warning("refused: a connection uses too much memory", address=asker.address,
                    bytes=asker.used, asked=size, setting=setting)  # fmt: skip

    def close_unfinished(self, connections: Collection[Client]) -> None:
        """Close one of the connections that have sent only a part of a large CONNECT: the oldest
        one of the network that has most of them. `connections` is a short list, ordered by age.
        """
        networks = [network_of(each.session.address) for each in connections]
        [(most, _)] = Counter(networks).most_common(1)
        closed = next(each for each, at in zip(connections, networks, strict=True) if at == most)
        log.warning("closed: its CONNECT is incomplete, and newer connections wait",
                    peer=closed.peer)  # fmt: skip
        self.closed += 1
        closed.close()

    def close(self, connection: Client, setting: str) -> None:
        """Close a connection that uses too much memory, and release its charges."""
        used = connection.session.memory.used
        log.warning("closed: it uses too much memory", peer=connection.peer, bytes=used,
                    setting=setting)  # fmt: skip
        self.closed += 1
        reason = f"Connection closed: the broker remembers {used} bytes for it ({setting})."
        self.end(connection, reason)

    def end(self, connection: Client, reason: str) -> None:
        """Close a connection, after the sentence where there is a way to send it."""
        connection.close()


class Costs(Generic[K]):
    """Charges by owner. Finds the largest charge, of equal ones the oldest, without a search,
    because there may be thousands.
    """

    def __init__(self) -> None:
        self._places: dict[K, tuple[int, int]] = {}
        self._keys: dict[int, K] = {}  # by order of arrival
        # The places of all owners, and stale ones of removed owners. These are skipped, or removed
        # when the heap is rebuilt. The heap refers to no owner.
        self._heap: list[tuple[int, int]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, key: K, size: int) -> None:
        """Add an owner, which must be new."""
        self._count += 1
        place = (-size, self._count)
        self._places[key] = place
        self._keys[self._count] = key
        heapq.heappush(self._heap, place)

    def remove(self, key: K) -> int:
        """Remove an owner. Return its charge, or 0."""
        place = self._places.pop(key, None)
        if place is None:
            return 0
        size, count = place
        del self._keys[count]
        if len(self._heap) > SWEPT_FROM + 2 * len(self._places):
            self._heap = list(self._places.values())
            heapq.heapify(self._heap)
        return -size

    def costliest(self) -> tuple[K | None, int]:
        """Return the owner with the largest charge, and the charge; (None, 0) without owners."""
        while self._heap:
            size, count = self._heap[0]
            if count in self._keys:
                return self._keys[count], -size
            heapq.heappop(self._heap)
        return None, 0


class ConnectionMemory:
    """The memory charged to one connection."""

    __slots__ = ("_budget", "_ended", "address", "is_known", "used")

    def __init__(self, budget: MemoryBudget, address: str) -> None:
        self._budget = budget
        self.address = address  # of the client, for the log
        self.is_known = False  # the client is authenticated
        self._ended = False
        self.used = 0

    def charge(self, size: int) -> None:
        """Add a charge. Raises NotAllowed or TooManyRequests above a limit; nothing is charged
        then.
        """
        budget = self._budget
        if self._ended:
            return
        if budget.connection_max and self.used + size > budget.connection_max:
            budget.note_refused(self, size, CONNECTION_SETTING)
            raise NotAllowed(
                f"The broker remembers {self.used} bytes for this connection, and {size} more are"
                f" over its limit ({CONNECTION_SETTING}); close some of what is open."
            )
        if budget.total_max and budget.used + size > budget.total_max:
            budget.make_room(self, size)
        self._add(size)

    def take_over(self, size: int) -> None:
        """Add a charge for objects that exist already. It is never refused, but may cause the
        refusal of the next charge.
        """
        if not self._ended:
            self._add(size)

    def _add(self, size: int) -> None:
        budget = self._budget
        self.used += size
        budget.used += size
        if self.used > budget.most:
            budget.most = self.used

    def release(self, size: int) -> None:
        """Subtract a charge."""
        if not self._ended:
            self.used -= size
            self._budget.used -= size

    def end(self) -> None:
        """Release all charges, because the connection is closed."""
        self.release(self.used)
        self._ended = True


class UnauthenticatedRequest:
    """The sender of an HTTP request, until it is authenticated."""

    __slots__ = ("close", "memory")

    def __init__(self, budget: MemoryBudget, address: str, close: Callable[[], object]) -> None:
        self.memory = ConnectionMemory(budget, address)
        self.close = close  # closes its connection


class WebBody:
    """The memory of a request body, charged beyond BODY_FREE_BYTES.

    refuse: called with the reason when the body is rejected and its charge is released.
    """

    __slots__ = ("_budget", "_is_over", "cost", "is_coming", "refuse")

    def __init__(self, budget: MemoryBudget, refuse: Callable[[str], object]) -> None:
        self._budget = budget
        self._is_over = False
        self.cost = 0
        self.is_coming = True
        self.refuse = refuse

    def take_in(self, size: int) -> None:
        """Charge for a body of so many bytes. Raises TooManyBodies."""
        more = size - BODY_FREE_BYTES - self.cost
        if more > 0 and not self._is_over:
            self._budget.charge_body(self, -(-more // BODY_STEP_BYTES) * BODY_STEP_BYTES)

    def hold(self, size: int) -> None:
        """Charge for objects made from the body. Raises TooManyBodies."""
        if size > BODY_FREE_BYTES and not self._is_over:
            self._budget.charge_body(self, size)

    def end(self) -> None:
        """Note that the body is complete."""
        self.is_coming = False
        self._budget.end_body(self)

    def release(self) -> None:
        """Release the charge: the request is answered, or will not be read."""
        self._is_over = True
        self._budget.release_body(self)
