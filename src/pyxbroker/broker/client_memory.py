"""Memory that clients occupy in the broker: sizes of charged objects, and the budget of them all.

The budget itself and its limits are in base/memory_budget.py.
"""

from __future__ import annotations

from pyxbroker import ackset, bitmap, delayed_index
from pyxbroker.base.errors import NotAllowed
from pyxbroker.base.memory_budget import Client, MemoryBudget

# Size of each object without its text.
PRODUCER_BYTES = 2 << 10
CLOSED_PRODUCER_BYTES = 120  # the id of a closed producer
CONSUMER_BYTES = 2 << 10
READER_BYTES = 2 << 10  # a subscription that ends with its consumers, without these
KEY_SHARED_BYTES = 5 << 10  # in addition, for as long as the subscription exists
WATCHER_BYTES = 1 << 10
WATCHED_NAME_BYTES = 64  # an entry of a set; the namespace owns the name
HASH_RANGE_BYTES = 40  # including the owner, and the gap to the next range
LISTED_NAME_BYTES = 600  # per name of a list being built: name, source, answer
TEXT_BYTES = 100  # a string object, and its entry


def texts_bytes(texts: dict[str, str]) -> int:
    """Estimate the memory of a dict of strings."""
    return sum(len(key) + len(value) + 2 * TEXT_BYTES for key, value in texts.items())


class ClientMemory(MemoryBudget):
    """The budget of a broker's connections, and the memory that subscriptions use for clients."""

    @property
    def batch_ack_bytes(self) -> int:
        """Memory for partly acknowledged batches. It outlives connections, so no connection is
        closed for it.
        """
        return ackset.batches_bytes()

    @property
    def batch_acks_refused(self) -> int:
        """Number of acknowledgements refused for lack of memory."""
        return ackset.batches_refused()

    @property
    def entry_set_bytes(self) -> int:
        """Memory for individually acknowledged entries and for redeliveries. It has no limit,
        because no acknowledgement may be lost. A subscription needs at most a bit for each stored
        entry of its topic.
        """
        return bitmap.held_bytes()

    @property
    def delayed_bytes(self) -> int:
        """Memory for delayed messages of subscriptions."""
        return delayed_index.held_bytes()

    def end(self, connection: Client, reason: str) -> None:
        """Send the reason to the client in an ERROR, and close its connection."""
        from pyxbroker.broker.commands import replies

        connection.send_frame(replies.error(replies.NO_REQUEST, NotAllowed.code, reason))
        connection.group.turn.run(connection.close)
