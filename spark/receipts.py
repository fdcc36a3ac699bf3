"""Limits for the unacknowledged messages of a task: their number, their bytes and their time.

The official client has its own limits, which are turned off. When its send timeout is over, it
drops all waiting messages and continues with later ones. Then a later row would be stored without
earlier ones. A repeated task would take those for stored, because exactly once relies on the last
sequence id. Without a timeout the client sends all messages in order, however late; this module
ends the wait.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.official import SILENCE, close_client, reason_of
from pyxbroker.spark.options import Options

PENDING_BYTES_MAX = 64 << 20
"""The limit of unacknowledged payloads in one task."""


def send_timeout_s(options: Options) -> float:
    """Return how long the acknowledgement of a message may take."""
    own: float | None = options["pulsar.producer.sendTimeoutMs"]
    whole: float = options["pulsar.client.operationTimeoutMs"]
    return whole if own is None else own


@dataclass
class Pending:
    """The unacknowledged messages of one partition."""

    messages: int = 0
    pending_max: int = 0  # waiting threads are notified at this number
    answered_at: float = 0.0  # time.monotonic() of the last receipt


class Receipts:
    """A counter of unacknowledged messages. The client's threads deliver the receipts.

    The task fails when a partition acknowledges nothing within the timeout, or refuses a message.
    The client is closed then, so that it sends nothing after a missing message.
    """

    def __init__(self, options: Options, client: Any) -> None:
        self._options = options
        self._client = client
        self._timeout_s = send_timeout_s(options)
        self._messages_max: int = options["pulsar.producer.maxPendingMessages"]
        self._changed = threading.Condition()
        self._pending: dict[str, Pending] = defaultdict(Pending)
        self._bytes = 0
        self._failed = 0
        self._refusal = "", SILENCE  # the partition, and the client's result
        self._ending: threading.Thread | None = None

    @property
    def is_full(self) -> bool:
        """Return True if the task should wait for all receipts before it sends more."""
        return self._bytes > PENDING_BYTES_MAX

    def expect(self, partition: str, size: int) -> Callable[[Any, Any], None]:
        """Return the callback for a message's receipt, and wait first while too many are pending.

        Raises PulsarSparkError, also for an earlier message.
        """
        self._check()
        queue = self._pending[partition]
        if queue.messages >= self._messages_max:
            # Half the limit, so that the thread does not wake up for each message.
            self._wait(partition, self._messages_max // 2)
        with self._changed:
            queue.messages += 1
            self._bytes += size
        return partial(self._take, partition, size)

    def settle(self) -> None:
        """Wait until all is acknowledged. Raises PulsarSparkError."""
        for each in self._pending:
            self._wait(each, 0)
        self._check()

    def _take(self, partition: str, size: int, result: Any, _: Any) -> None:
        """Handle a receipt of the client."""
        import pulsar

        queue = self._pending[partition]
        with self._changed:
            queue.messages -= 1
            queue.answered_at = time.monotonic()
            self._bytes -= size
            if result != pulsar.Result.Ok:
                self._fail(1, partition, str(result))
            if self._failed or queue.messages <= queue.pending_max:
                self._changed.notify_all()

    def _wait(self, partition: str, pending_max: int) -> None:
        """Wait until at most `pending_max` messages are pending. Raises PulsarSparkError."""
        queue = self._pending[partition]
        begin = time.monotonic()
        with self._changed:
            queue.pending_max = pending_max
            while queue.messages > pending_max and not self._failed:
                left_s = max(begin, queue.answered_at) + self._timeout_s - time.monotonic()
                if left_s <= 0:
                    missing = sum(each.messages for each in self._pending.values())
                    self._fail(missing, partition, SILENCE)
                else:
                    self._changed.wait(left_s)
        self._check()

    def _fail(self, messages: int, partition: str, result: str) -> None:
        """Close the client in a new thread: one of the client's own threads may be the caller.

        Called with the lock.
        """
        self._failed += messages
        if self._ending is None:
            self._refusal = partition, result
            self._ending = threading.Thread(
                target=close_client, args=(self._client, False), daemon=True
            )
            self._ending.start()

    def _check(self) -> None:
        """Raise PulsarSparkError if a message was not acknowledged."""
        if self._ending is None:
            return
        self._ending.join()
        partition, result = self._refusal
        reason = reason_of(self._options, partition, result)
        raise PulsarSparkError(
            f"{self._failed} messages were not acknowledged: {partition} cannot be written:"
            f" {reason}."
        )
