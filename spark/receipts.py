"""What a task has sent and brokers have not acknowledged: how much it may be, and for how long.

The official client has bounds of its own, which are turned off: where its time for a message is
over it gives up all that waits, and goes on with what is sent next. A later row would be stored
without those before it, which are taken for stored when Spark runs the task again, as exactly once
goes by the last id. Without a time it sends all in order, however late; who waits here ends that.
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
"""Of payloads under way, in one task."""


def send_timeout_s(options: Options) -> float:
    """How long the acknowledgement of a message may take."""
    own: float | None = options["pulsar.producer.sendTimeoutMs"]
    whole: float = options["pulsar.client.operationTimeoutMs"]
    return whole if own is None else own


@dataclass
class UnderWay:
    """What was sent to one partition and is not answered."""

    messages: int = 0
    wanted_max: int = 0  # who waits is told when there are no more
    answered_at: float = 0.0  # on time.monotonic()


class Receipts:
    """Counts what was sent and what was answered; the client's threads answer.

    All is given up when a partition has answered nothing for as long as a message may take, or when
    a message was refused. The client is let go then: nothing is sent behind what is missing.
    """

    def __init__(self, options: Options, client: Any) -> None:
        self._options = options
        self._client = client
        self._timeout_s = send_timeout_s(options)
        self._messages_max: int = options["pulsar.producer.maxPendingMessages"]
        self._changed = threading.Condition()
        self._under_way: dict[str, UnderWay] = defaultdict(UnderWay)
        self._bytes = 0
        self._failed = 0
        self._refusal = "", SILENCE  # the partition, and what the client says
        self._ending: threading.Thread | None = None

    @property
    def is_much(self) -> bool:
        """Whether it is better to wait for all."""
        return self._bytes > PENDING_BYTES_MAX

    def expect(self, partition: str, size: int) -> Callable[[Any, Any], None]:
        """What takes the answer for a message that is to be sent to a partition, when there is room
        for it. Raises PulsarSparkError, also for what was sent before.
        """
        self._check()
        queue = self._under_way[partition]
        if queue.messages >= self._messages_max:
            # Half, so that no thread has to wake up for each message.
            self._wait(partition, self._messages_max // 2)
        with self._changed:
            queue.messages += 1
            self._bytes += size
        return partial(self._take, partition, size)

    def settle(self) -> None:
        """Wait until all is acknowledged. Raises PulsarSparkError."""
        for each in self._under_way:
            self._wait(each, 0)
        self._check()

    def _take(self, partition: str, size: int, result: Any, _: Any) -> None:
        """An answer of the client."""
        import pulsar

        queue = self._under_way[partition]
        with self._changed:
            queue.messages -= 1
            queue.answered_at = time.monotonic()
            self._bytes -= size
            if result != pulsar.Result.Ok:
                self._fail(1, partition, str(result))
            if self._failed or queue.messages <= queue.wanted_max:
                self._changed.notify_all()

    def _wait(self, partition: str, wanted_max: int) -> None:
        """Until there are no more messages under way to a partition. Raises PulsarSparkError."""
        queue = self._under_way[partition]
        begin = time.monotonic()
        with self._changed:
            queue.wanted_max = wanted_max
            while queue.messages > wanted_max and not self._failed:
                left_s = max(begin, queue.answered_at) + self._timeout_s - time.monotonic()
                if left_s <= 0:
                    missing = sum(each.messages for each in self._under_way.values())
                    self._fail(missing, partition, SILENCE)
                else:
                    self._changed.wait(left_s)
        self._check()

    def _fail(self, messages: int, partition: str, result: str) -> None:
        """Called with the lock, perhaps by a thread of the client, which cannot end that itself."""
        self._failed += messages
        if self._ending is None:
            self._refusal = partition, result
            self._ending = threading.Thread(
                target=close_client, args=(self._client, False), daemon=True
            )
            self._ending.start()

    def _check(self) -> None:
        """Raises PulsarSparkError if a message was not acknowledged."""
        if self._ending is None:
            return
        self._ending.join()
        partition, result = self._refusal
        reason = reason_of(self._options, partition, result)
        raise PulsarSparkError(
            f"{self._failed} messages were not acknowledged: {partition} cannot be written:"
            f" {reason}."
        )
