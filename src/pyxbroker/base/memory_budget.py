"""What clients make the broker remember, in bytes: one budget for all connections, and for each.

Producers, consumers, watchers, commands under way and answers that wait to be read are charged when
they come and given back when they go; no message is. Sizes are estimates, rather too large than too
small. A connection over its own limit is refused. When it is all of them together, who has most
pays: it is closed, or refused when it is the one that asks, so that nobody with little is kept out
by somebody with much.

Strangers, whose CONNECTs or requests by HTTP are looked at, have a part of the budget at most; of
them, too, who has most gives way. Where a client that is known needs room, they come before all
others.

Answers of REST are counted apart, while they are written, and so are the bodies of its requests,
from when they come until they are answered. Each of the two has a part of the budget at most, and
of that what connections leave of the whole; neither makes any of these give way. An answer that is
too much is refused. Where bodies are too much, the longest that is still to come gives way: its
request is refused, and the connection that it comes on is closed.
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

# Answers of REST have one in so many parts of the budget.
ANSWERS_PART = 4
STRANGERS_PART = 4  # the same of CONNECTs, and requests, whose senders are not known yet
ANSWER_FREE_BYTES = 64 << 10  # up to here an answer costs nothing: also what tells of this trouble

# The same of bodies of requests of REST.
BODIES_PART = 4
BODY_FREE_BYTES = 64 << 10
BODY_STEP_BYTES = 64 << 10  # it is charged by so many

SWEPT_FROM = 64  # places in a heap that nobody has any more, before it is made anew

TOTAL_SETTING = "maxClientStateSizeInMB"
CONNECTION_SETTING = "maxClientStateSizeInMBPerConnection"


class Client(Protocol):
    """A connection of the binary protocol."""

    @property
    def peer(self) -> str:
        """Address and port of the client, for the log."""

    @property
    def session(self) -> Any:
        """Its `memory` is a ConnectionMemory, its `address` that of the client."""

    @property
    def group(self) -> Any:
        """The connections that it belongs to; they have the event loop's turn."""

    def __hash__(self) -> int: ...

    def send_frame(self, frame: bytes) -> None: ...

    def close(self) -> None: ...


class MemoryBudget:
    """The budget of all connections. A limit of 0 is none."""

    def __init__(
        self,
        total_max: int = 0,
        connection_max: int = 0,
        live: Callable[[], Collection[Client]] = lambda: (),
    ) -> None:
        self.total_max = total_max
        self.connection_max = connection_max
        self.used = 0
        self.answer_bytes = 0  # of REST, that clients have not taken yet; not in `used`
        self.answers_refused = 0
        self.body_bytes = 0  # of requests of REST that are not answered yet; not in `used`
        self.bodies_refused = 0
        # Those of them that are not there as a whole.
        self._coming: Costs[WebBody] = Costs()
        self._coming_bytes = 0
        self.refused = 0  # commands that were
        self.closed = 0  # connections that were
        self.stranger_bytes = 0  # of CONNECTs and requests that are looked at; in `used`
        # Whose they are, and what each costs.
        self._strangers: Costs[Client | WebStranger] = Costs()
        self._live = live
        # No connection has more; one that asks for as much is refused without a look at all.
        self.most = 0

    @property
    def answers_max(self) -> int:
        """The part of answers of REST; 0 is no limit."""
        return self.total_max // ANSWERS_PART

    def charge_answer(self, size: int) -> int:
        """What an answer of REST costs until its client has taken it: to be released then.

        Raises AnswersNotRead where that is too much; nothing is charged then.
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
        """The client has taken the answer, or has gone."""
        self.answer_bytes -= cost

    def charge_body(self, body: WebBody, size: int) -> None:
        """More comes of the body of a request of REST, or more is made of it. Where that is too
        much, the one that has most gives way, of those that are still to come: for one that is
        there as a whole, each does. Raises TooManyBodies; nothing is charged then.
        """
        its_own = body.cost if body.is_coming else 0
        least = its_own + size if body.is_coming else 0
        # Where it would not be enough nobody gives way.
        is_of_use = not self._is_too_much(self.body_bytes - self._coming_bytes + its_own + size)
        while self._is_too_much(self.body_bytes + size):
            costliest, cost = self._coming.costliest()
            told = (
                f"The broker holds {self.body_bytes} bytes of requests that are not answered yet,"
                f" and {size} more are over the limit ({TOTAL_SETTING}); try again later."
            )
            self.bodies_refused += 1
            log.warning("a request is refused: bodies of requests hold too much",
                        bytes=self.body_bytes, asked=size, setting=TOTAL_SETTING)  # fmt: skip
            if costliest is None or cost <= least or not is_of_use:
                raise TooManyBodies(told)
            self.release_body(costliest)
            costliest.refuse(told)
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
        """It is there as a whole, and gives way to nobody."""
        self._coming_bytes -= self._coming.remove(body)

    def release_body(self, body: WebBody) -> None:
        """Its request is answered, or nobody will read it."""
        self._coming_bytes -= self._coming.remove(body)
        self.body_bytes -= body.cost
        body.cost = 0

    def charge_stranger(self, stranger: Client | WebStranger, size: int) -> None:
        """The CONNECT of a client is looked at, or its request, or more has come of that. Raises
        TooManyRequests or NotAllowed where that is too much; nothing is charged then.
        """
        memory = stranger.memory if isinstance(stranger, WebStranger) else stranger.session.memory
        most = self.total_max // STRANGERS_PART
        while self.total_max and self.stranger_bytes + size > most:
            if not self._close_stranger(size):
                self.note_refused(memory, size, TOTAL_SETTING)
                raise TooManyRequests(
                    f"The broker remembers {self.stranger_bytes} bytes of clients that wait to be"
                    f" let in, which is their limit (a part of {TOTAL_SETTING}); try again later."
                )
        memory.charge(size)
        self._strangers.add(stranger, self._strangers.remove(stranger) + size)
        self.stranger_bytes += size

    def forget_stranger(self, stranger: Client | WebStranger) -> None:
        """It is known now, was refused, or has gone."""
        self.stranger_bytes -= self._strangers.remove(stranger)

    def _close_stranger(self, least: int) -> bool:
        """Closes the one that has most, where that is more than `least`; whether it did."""
        costliest, size = self._strangers.costliest()
        if costliest is None or size <= least:
            return False
        if isinstance(costliest, WebStranger):
            self._close_request(costliest)
        else:
            self.close(costliest, TOTAL_SETTING)
        return True

    def _close_request(self, stranger: WebStranger) -> None:
        log.warning("closed: too much is remembered for it", peer=stranger.memory.address,
                    bytes=stranger.memory.used, setting=TOTAL_SETTING)  # fmt: skip
        self.closed += 1
        self.forget_stranger(stranger)
        stranger.memory.end()
        stranger.close()

    def make_room(self, asker: ConnectionMemory, size: int) -> None:
        """Closes who has most. Raises TooManyRequests when that is who asks."""
        while self.used + size > self.total_max:
            if self._close_stranger(0 if asker.is_known else asker.used + size):
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
        """Who has most, where that is more than `least`. Where it is not, nobody is looked at the
        next time: somebody who is refused may go on asking, beside thousands of others.
        """
        if self.most <= least:
            return None
        costliest = max(self._live(), key=lambda each: each.session.memory.used, default=None)
        self.most = 0 if costliest is None else costliest.session.memory.used
        return costliest if self.most > least else None

    def note_refused(self, asker: ConnectionMemory, size: int, setting: str) -> None:
        """A command is refused."""
        self.refused += 1
        log.warning("refused: too much is remembered for a connection", address=asker.address,
                    bytes=asker.used, asked=size, setting=setting)  # fmt: skip

    def close_unfinished(self, connections: Collection[Client]) -> None:
        """Too many have sent no more than a part of a large CONNECT, who was first comes first: of
        the network that has most of them, that one is closed. They are few.
        """
        networks = [network_of(each.session.address) for each in connections]
        [(most, _)] = Counter(networks).most_common(1)
        closed = next(each for each, at in zip(connections, networks, strict=True) if at == most)
        log.warning("closed: others have come since it sent a part of its CONNECT",
                    peer=closed.peer)  # fmt: skip
        self.closed += 1
        closed.close()

    def close(self, connection: Client, setting: str) -> None:
        """A connection has cost too much: it ends, and what was remembered for it is free."""
        used = connection.session.memory.used
        log.warning("closed: too much is remembered for it", peer=connection.peer, bytes=used,
                    setting=setting)  # fmt: skip
        self.closed += 1
        told = f"Connection closed: the broker remembers {used} bytes for it ({setting})."
        self.end(connection, told)

    def end(self, connection: Client, told: str) -> None:
        """Close a connection, after the sentence where there is a way to send it."""
        connection.close()


class Costs(Generic[K]):
    """Who costs how much. Who costs most, of equals who came first, is found without a look at all:
    there may be thousands, and one more each moment.
    """

    def __init__(self) -> None:
        self._places: dict[K, tuple[int, int]] = {}
        self._keys: dict[int, K] = {}  # by how many came before
        # The places of all of those, and of some that were removed since: they are passed over, or
        # swept out. Nothing of who has gone is in it but these numbers.
        self._heap: list[tuple[int, int]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, key: K, size: int) -> None:
        """It must not be there."""
        self._count += 1
        place = (-size, self._count)
        self._places[key] = place
        self._keys[self._count] = key
        heapq.heappush(self._heap, place)

    def remove(self, key: K) -> int:
        """What it cost; nothing where it is not there."""
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
        """Who costs most, and how much; None and 0 where nobody is there."""
        while self._heap:
            size, count = self._heap[0]
            if count in self._keys:
                return self._keys[count], -size
            heapq.heappop(self._heap)
        return None, 0


class ConnectionMemory:
    """One connection's part of it."""

    __slots__ = ("_budget", "_ended", "address", "is_known", "used")

    def __init__(self, budget: MemoryBudget, address: str) -> None:
        self._budget = budget
        self.address = address  # of the client, for the log
        self.is_known = False  # its client was let in
        self._ended = False
        self.used = 0

    def charge(self, size: int) -> None:
        """Raises NotAllowed or TooManyRequests where that is too much; nothing is charged then."""
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
        """The same for what is there already and has nobody else to pay: it is not refused, and
        counts at the next charge.
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
        """What was charged is forgotten."""
        if not self._ended:
            self.used -= size
            self._budget.used -= size

    def end(self) -> None:
        """The connection is closed, and all that it had is forgotten."""
        self.release(self.used)
        self._ended = True


class WebStranger:
    """Who sends a request by HTTP, while it is not known who that is."""

    __slots__ = ("close", "memory")

    def __init__(self, budget: MemoryBudget, address: str, close: Callable[[], object]) -> None:
        self.memory = ConnectionMemory(budget, address)
        self.close = close  # ends its connection


class WebBody:
    """The account of a request's body, which costs what it has beyond BODY_FREE_BYTES.

    refuse: told why it has to give way, when nothing of it is charged any more.
    """

    __slots__ = ("_budget", "_is_over", "cost", "is_coming", "refuse")

    def __init__(self, budget: MemoryBudget, refuse: Callable[[str], object]) -> None:
        self._budget = budget
        self._is_over = False
        self.cost = 0
        self.is_coming = True
        self.refuse = refuse

    def take_in(self, size: int) -> None:
        """It is to have so many bytes. Raises TooManyBodies."""
        more = size - BODY_FREE_BYTES - self.cost
        if more > 0 and not self._is_over:
            self._budget.charge_body(self, -(-more // BODY_STEP_BYTES) * BODY_STEP_BYTES)

    def hold(self, size: int) -> None:
        """So much is made of it besides. Raises TooManyBodies."""
        if size > BODY_FREE_BYTES and not self._is_over:
            self._budget.charge_body(self, size)

    def end(self) -> None:
        """It is there as a whole."""
        self.is_coming = False
        self._budget.end_body(self)

    def release(self) -> None:
        """Its request is answered, or nobody will read it: nothing is charged any more."""
        self._is_over = True
        self._budget.release_body(self)
