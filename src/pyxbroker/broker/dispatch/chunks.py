"""Messages in chunks on a Shared subscription: all chunks of one go to the same consumer, in order.

A chunk goes to who got the chunk before. When that consumer can take nothing now, its chunks wait
here, and only they wait. When it goes away, the chunks that it had come again, and
those that are behind wait for them. A chunk that never comes holds up nothing: what there is of its
message is sent, and the client decides. Mirrors SharedConsumerAssignor.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyxbroker.ackset import AckSet, PositionSet
    from pyxbroker.broker.subscriptions.consumer import Consumer

MESSAGES_MAX = 1_000  # whose last chunk has not come; of a subscription
POSITIONS_MAX = 1_000  # chunks of one message
PLACES_MAX = 20_000  # chunks of all messages of a subscription, of some 150 bytes each
PLACES_LEFT = 15_000  # when they are more, the oldest messages are forgotten down to this
RELEASED_AT_ONCE = 1_000  # places, and the rest of a message
UUID_BYTES_MAX = 32  # of a longer one its hash is kept

Place = tuple[int, int]  # ledger id, entry id


class _Message:
    __slots__ = ("_order", "consumer", "new", "sent", "waiting")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer: Consumer | None = consumer  # None: the one that had chunks is gone
        self.sent: set[Place] = set()
        self.waiting: set[Place] = set()  # to be sent before what is behind them
        self.new: list[Place] = []  # those of them that release() has not added yet, and others
        self._order: list[Place] = []  # a heap of those that wait, and of some that do no longer

    def hold(self, place: Place) -> None:
        """It waits, and is not among what comes again."""
        self.new.append(place)
        if place not in self.waiting:
            self.waiting.add(place)
            heappush(self._order, place)

    def hold_sent(self) -> None:
        """All that was sent comes again."""
        self.new += self.sent
        self.waiting |= self.sent
        self.sent.clear()
        self._order = list(self.waiting)
        heapify(self._order)

    def release(self, replay: PositionSet, acks: AckSet) -> int:
        """Adds to replay what waits and is not there yet; how many were looked at."""
        new, self.new = self.new, []
        for place in sorted(new):
            if place in self.waiting and not acks.is_acknowledged(*place):
                replay.add(*place)
        return len(new)

    def first(self, acks: AckSet) -> Place | None:
        """The first one that waits, and None when none does any more."""
        while self._order:
            place = self._order[0]
            if place in self.waiting:
                if not acks.is_acknowledged(*place):
                    return place
                self.waiting.discard(place)
            heappop(self._order)
        return None

    def keep(self, waiting: set[Place]) -> None:
        """No more than those wait."""
        self.waiting = waiting
        self._order = list(waiting)
        heapify(self._order)


class ChunkedMessages:
    """The messages of a subscription of which some chunks are sent, and some are not."""

    def __init__(self, acks: AckSet) -> None:
        self._acks = acks
        self._messages: dict[bytes, _Message] = {}  # by uuid, the oldest one first
        self._unreleased: dict[bytes, None] = {}  # those with chunks that release() may add
        self._noted = 0  # places, at least as many as there are
        self._freed: set[Place] = set()  # waited for a message that is forgotten

    def __len__(self) -> int:
        return len(self._messages)

    def taker(
        self, uuid: bytes, place: Place, is_last: bool, candidate: Consumer
    ) -> Consumer | None:
        """Who gets a chunk now, if not the candidate, whose turn it is; None: it waits here."""
        if len(uuid) > UUID_BYTES_MAX:
            uuid = _hash_of(uuid)
        self._noted += 1
        if self._noted > PLACES_MAX:
            self._forget_oldest()
        message = self._messages.get(uuid)
        if message is None:
            message = self._begin(uuid, candidate)
        first = message.first(self._acks)
        if first is not None and first < place:
            self._hold(uuid, message, place)
            return None
        consumer = message.consumer
        if consumer is None:
            consumer = message.consumer = candidate
        elif consumer is not candidate and not consumer.can_deliver:
            self._hold(uuid, message, place)
            return None
        message.waiting.discard(place)
        message.sent.add(place)
        if message.first(self._acks) is None:
            self._unreleased.pop(uuid, None)
            message.new.clear()
            if is_last or len(message.sent) >= POSITIONS_MAX:
                del self._messages[uuid]
        return consumer

    def _begin(self, uuid: bytes, consumer: Consumer) -> _Message:
        if len(self._messages) >= MESSAGES_MAX:
            self._end(next(iter(self._messages)))
        message = self._messages[uuid] = _Message(consumer)
        return message

    def _forget_oldest(self) -> None:
        """Messages that never come whole must not cost without end."""
        self._noted = sum(len(each.sent) + len(each.waiting) for each in self._messages.values())
        while self._noted > PLACES_LEFT:
            oldest = self._messages[next(iter(self._messages))]
            self._noted -= len(oldest.sent) + len(oldest.waiting)
            self._end(next(iter(self._messages)))

    def _end(self, uuid: bytes) -> None:
        """Forgets a message; what waited is sent to anybody."""
        message = self._messages.pop(uuid)
        # The others are among what comes again already, or were sent again by now.
        self._freed.update(each for each in message.new if each in message.waiting)
        self._unreleased.pop(uuid, None)

    def _hold(self, uuid: bytes, message: _Message, place: Place) -> None:
        message.hold(place)
        self._unreleased[uuid] = None
        if len(message.waiting) > POSITIONS_MAX:
            acks = self._acks
            message.keep({each for each in message.waiting if not acks.is_acknowledged(*each)})
            if len(message.waiting) > POSITIONS_MAX:
                self._end(uuid)

    @property
    def waits(self) -> bool:
        """Whether there are chunks that release() may add."""
        return bool(self._unreleased or self._freed)

    def release(self, replay: PositionSet) -> None:
        """Adds to replay some of what waits no longer: its consumer can take some, or another one
        shall.
        """
        left = RELEASED_AT_ONCE
        while self._freed and left > 0:
            replay.add(*self._freed.pop())
            left -= 1
        for uuid in list(self._unreleased):
            if left <= 0:
                break
            message = self._messages[uuid]
            if message.consumer is None or message.consumer.can_deliver:
                # Each once: until it is sent, or held again, it is among what comes again.
                del self._unreleased[uuid]
                left -= message.release(replay, self._acks)

    def forget(self, consumer: Consumer) -> None:
        """A consumer is gone: the chunks that it had come again, and go to another one."""
        for uuid, message in self._messages.items():
            if message.consumer is consumer:
                message.consumer = None
                message.hold_sent()
                self._unreleased[uuid] = None

    def pass_over(self, place: Place, last: int) -> None:
        """Entries up to the id last cannot be read, so nothing may wait for them."""
        ledger_id, first = place
        for message in self._messages.values():
            waiting = message.waiting
            gone = {each for each in waiting if each[0] == ledger_id and first <= each[1] <= last}
            if gone:
                message.keep(waiting - gone)

    def clear(self, acks: AckSet) -> None:
        """Everything is read again, as the acknowledgements have it by now."""
        self._acks = acks
        self._messages.clear()
        self._unreleased.clear()
        self._freed.clear()


def _hash_of(uuid: bytes) -> bytes:
    # Clients of most subscriptions have no chunks, and those that have use short uuids.
    from hashlib import blake2b

    return blake2b(uuid, digest_size=UUID_BYTES_MAX).digest()
