"""Received messages of a consumer and the permits for more, without a socket or a clock."""

from __future__ import annotations

from collections import deque

from pyxbroker.base.signed import words_of
from pyxbroker.client.entries import Message, MessageId


class ReceiveQueue:
    """Messages in the order of their arrival. Permits are granted when half of them are used."""

    def __init__(self, size: int) -> None:
        """size: how many messages the broker may send ahead; at least one."""
        self._size = max(1, size)
        self._messages: deque[Message] = deque()
        self._used = 0

    def __len__(self) -> int:
        return len(self._messages)

    def restart(self) -> int:
        """Drop all messages, which the broker sends again, and return the first permits."""
        self._messages.clear()
        self._used = 0
        return self._size

    def drop(self) -> int:
        """Drop all messages, which the broker sends again, and return the permits to grant."""
        granted, self._used = len(self._messages) + self._used, 0
        self._messages.clear()
        return granted

    def add(self, messages: list[Message], permits: int) -> None:
        """Add an entry's messages. Permits of messages that it lacks count as used."""
        self._messages.extend(messages)
        self._used += max(0, permits - len(messages))

    def pop(self) -> Message:
        self._used += 1
        return self._messages.popleft()

    def permits(self) -> int:
        """Return how many permits to grant now; 0: too few were used."""
        if self._used < (self._size + 1) // 2:
            return 0
        granted, self._used = self._used, 0
        return granted


class BatchAcks:
    """The unacknowledged messages of batches."""

    def __init__(self) -> None:
        self._left: dict[tuple[int, int], int] = {}

    def arrived(self, messages: list[Message]) -> None:
        """Note a batch that came without its acknowledged or compacted messages."""
        if messages and messages[0].id.batch_size > len(messages):
            self._left[messages[0].id.entry_key] = sum(1 << each.id.batch for each in messages)

    def acknowledge(self, id: MessageId) -> list[int]:
        """Return the ack set to send with one message's acknowledgement; empty: the whole entry."""
        if id.batch < 0 or id.batch_size <= 1:
            return []
        left = self._left.get(id.entry_key, (1 << id.batch_size) - 1) & ~(1 << id.batch)
        if left:
            self._left[id.entry_key] = left
            return words_of(left)
        self._left.pop(id.entry_key, None)
        return []

    def acknowledge_up_to(self, id: MessageId) -> list[int]:
        """Return the ack set of a cumulative acknowledgement up to a message."""
        for key in [each for each in self._left if each < id.entry_key]:
            del self._left[key]
        if id.batch < 0 or id.batch + 1 >= id.batch_size:
            self._left.pop(id.entry_key, None)
            return []
        behind = ((1 << id.batch_size) - 1) >> (id.batch + 1) << (id.batch + 1)
        left = self._left.get(id.entry_key, behind) & behind
        self._left[id.entry_key] = left
        return words_of(left)

    def clear(self) -> None:
        self._left.clear()
