"""Chunked messages on a Shared subscription: all chunks of a message go to one consumer, in order.

A chunk goes to the consumer that got the previous chunk. While that consumer can take nothing, the
chunks of its messages wait here; other entries do not. When the consumer leaves, its chunks are
redelivered, and the following chunks wait for them. A missing chunk blocks nothing: the broker
sends the chunks that exist, and the client decides. Mirrors SharedConsumerAssignor.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyxbroker.ackset import AckSet, PositionSet
    from pyxbroker.broker.subscriptions.consumer import Consumer

MESSAGES_MAX = 1_000  # messages per subscription whose last chunk is not sent yet
POSITIONS_MAX = 1_000  # chunks of one message
PLACES_MAX = 20_000  # chunks of all messages of a subscription, about 150 bytes each
PLACES_LEFT = 15_000  # above PLACES_MAX the oldest messages are dropped down to this
RELEASED_PER_CALL = 1_000  # positions; the last message is completed beyond it
UUID_BYTES_MAX = 32  # a longer uuid is replaced by its hash

Place = tuple[int, int]  # ledger id, entry id


class _Message:
    __slots__ = ("_order", "consumer", "new", "sent", "waiting")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer: Consumer | None = consumer  # None: the consumer of earlier chunks has left
        self.sent: set[Place] = set()
        self.waiting: set[Place] = set()  # to be sent before any later chunk
        self.new: list[Place] = []  # waiting ones that release() has not added yet, and stale ones
        self._order: list[Place] = []  # a heap of the waiting ones, and of stale ones

    def hold(self, place: Place) -> None:
        """Let a chunk wait; it is not in the replay."""
        self.new.append(place)
        if place not in self.waiting:
            self.waiting.add(place)
            heappush(self._order, place)

    def hold_sent(self) -> None:
        """Let all sent chunks wait for redelivery."""
        self.new += self.sent
        self.waiting |= self.sent
        self.sent.clear()
        self._order = list(self.waiting)
        heapify(self._order)

    def release(self, replay: PositionSet, acks: AckSet) -> int:
        """Add new waiting chunks to the replay. Return the number of checked chunks."""
        new, self.new = self.new, []
        for place in sorted(new):
            if place in self.waiting and not acks.is_acknowledged(*place):
                replay.add(*place)
        return len(new)

    def first(self, acks: AckSet) -> Place | None:
        """Return the first waiting chunk, or None."""
        while self._order:
            place = self._order[0]
            if place in self.waiting:
                if not acks.is_acknowledged(*place):
                    return place
                self.waiting.discard(place)
            heappop(self._order)
        return None

    def keep(self, waiting: set[Place]) -> None:
        """Replace the set of waiting chunks."""
        self.waiting = waiting
        self._order = list(waiting)
        heapify(self._order)


class ChunkedMessages:
    """The chunked messages of a subscription of which only some chunks are sent."""

    def __init__(self, acks: AckSet) -> None:
        self._acks = acks
        self._messages: dict[bytes, _Message] = {}  # by uuid, oldest first
        self._unreleased: dict[bytes, None] = {}  # messages with chunks for release()
        self._noted = 0  # positions: an upper bound of the number stored
        self._freed: set[Place] = set()  # chunks that waited for a message that was dropped

    def __len__(self) -> int:
        return len(self._messages)

    def consumer_for(
        self, uuid: bytes, place: Place, is_last: bool, candidate: Consumer
    ) -> Consumer | None:
        """Return the consumer of a chunk, by default the candidate; None: the chunk waits here."""
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
        """Drop the oldest messages, so that incomplete messages cannot fill the memory."""
        self._noted = sum(len(each.sent) + len(each.waiting) for each in self._messages.values())
        while self._noted > PLACES_LEFT:
            oldest = self._messages[next(iter(self._messages))]
            self._noted -= len(oldest.sent) + len(oldest.waiting)
            self._end(next(iter(self._messages)))

    def _end(self, uuid: bytes) -> None:
        """Drop a message. Its waiting chunks may go to any consumer."""
        message = self._messages.pop(uuid)
        # The other waiting chunks are in the replay already, or were sent again.
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
        """True if release() may have chunks to add."""
        return bool(self._unreleased or self._freed)

    @property
    def held_by(self) -> Consumer | None:
        """A consumer whose messages have chunks that wait until it can take them, or None."""
        for uuid in self._unreleased:
            consumer = self._messages[uuid].consumer
            if consumer is not None and not consumer.can_deliver:
                return consumer
        return None

    def release(self, replay: PositionSet) -> None:
        """Add a batch of chunks to the replay: those whose consumer can take entries again, or has
        left.
        """
        left = RELEASED_PER_CALL
        while self._freed and left > 0:
            replay.add(*self._freed.pop())
            left -= 1
        for uuid in list(self._unreleased):
            if left <= 0:
                break
            message = self._messages[uuid]
            if message.consumer is None or message.consumer.can_deliver:
                # Once per chunk: it stays in the replay until it is sent or held again.
                del self._unreleased[uuid]
                left -= message.release(replay, self._acks)

    def forget(self, consumer: Consumer) -> None:
        """Redeliver the chunks of a consumer that has left to another consumer."""
        for uuid, message in self._messages.items():
            if message.consumer is consumer:
                message.consumer = None
                message.hold_sent()
                self._unreleased[uuid] = None

    def pass_over(self, place: Place, last: int) -> None:
        """Stop waiting for entries up to the id last, which cannot be read."""
        ledger_id, first = place
        for message in self._messages.values():
            waiting = message.waiting
            gone = {each for each in waiting if each[0] == ledger_id and first <= each[1] <= last}
            if gone:
                message.keep(waiting - gone)

    def clear(self, acks: AckSet) -> None:
        """Drop everything, because all entries are read again. acks are the current
        acknowledgements.
        """
        self._acks = acks
        self._messages.clear()
        self._unreleased.clear()
        self._freed.clear()


def _hash_of(uuid: bytes) -> bytes:
    # Imported here: most subscriptions have no chunks, and most uuids are short.
    from hashlib import blake2b

    return blake2b(uuid, digest_size=UUID_BYTES_MAX).digest()
