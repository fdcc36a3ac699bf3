"""What clients of the broker make it remember: the budget of all connections, and what is charged.

The budget itself, and what a connection over its limit meets, is in base/memory_budget.py.
"""

from __future__ import annotations

from pyxbroker import ackset, bitmap, delayed_index
from pyxbroker.base.errors import NotAllowed
from pyxbroker.base.memory_budget import Client, MemoryBudget

# What one of them takes besides its text.
PRODUCER_BYTES = 2 << 10
CLOSED_PRODUCER_BYTES = 120  # the id of one that is closed
CONSUMER_BYTES = 2 << 10
READER_BYTES = 2 << 10  # a subscription that goes with its consumers, besides those
KEY_SHARED_BYTES = 5 << 10  # what one of that kind has more, whatever becomes of it
WATCHER_BYTES = 1 << 10
WATCHED_NAME_BYTES = 64  # a place in a set; the name itself is the namespace's
HASH_RANGE_BYTES = 40  # with who has which, where nobody has what is between them
LISTED_NAME_BYTES = 600  # of a list while it is told: the name, what it was made of, the answer
TEXT_BYTES = 100  # an object for a text, and its place


def texts_bytes(texts: dict[str, str]) -> int:
    """About what a dict of texts takes."""
    return sum(len(key) + len(value) + 2 * TEXT_BYTES for key, value in texts.items())


class ClientMemory(MemoryBudget):
    """The budget of a broker's connections, and what its subscriptions remember for clients."""

    @property
    def batch_ack_bytes(self) -> int:
        """What subscriptions remember of batches that are acknowledged in part; it outlives
        connections, so nobody's is closed for it.
        """
        return ackset.batches_bytes()

    @property
    def batch_acks_refused(self) -> int:
        """Acknowledgements that were too much to be remembered."""
        return ackset.batches_refused()

    @property
    def entry_set_bytes(self) -> int:
        """What subscriptions remember of entries that are acknowledged one by one, and of those
        that come again. It is not refused: no acknowledgement of an entry is ever forgotten, and a
        subscription has a bit for each entry that its topic keeps at most.
        """
        return bitmap.held_bytes()

    @property
    def delayed_bytes(self) -> int:
        """What subscriptions remember of messages that are not due."""
        return delayed_index.held_bytes()

    def end(self, connection: Client, told: str) -> None:
        """Send the client the sentence in an ERROR, and close its connection."""
        from pyxbroker.broker.commands import replies

        connection.send_frame(replies.error(replies.NO_REQUEST, NotAllowed.code, told))
        connection.group.turn.run(connection.close)
