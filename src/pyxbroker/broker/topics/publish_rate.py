"""Publish rate limits: messages and bytes per second to a topic, and to the broker.

SENDs that exceed a rate are stored nevertheless. Then their connection is not read until the rate
allows more; connections that wait for the same rate take turns. As in Pulsar, this holds up all
producers of the connection. A run is limited to a hundredth of a second's share, so that SENDs that
were already read are delayed too, and a second's share is not used up in one burst.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyxbroker.broker.rate_limiter import RateLimiter

if TYPE_CHECKING:
    from pyxbroker.broker.broker_limits import BrokerLimits
    from pyxbroker.connection import Connection, ProducerState
    from pyxbroker.entry import EntryRun
    from pyxbroker.policies.values import Rate
    from pyxbroker.turn import Turn

RUN_S = 0.01  # a run has at most this time's share of the rate, not counting its last entry
NO_MAX = 2**64 - 1


class PublishLimiter(RateLimiter):
    """The rate of a topic, or of the broker."""

    __slots__ = ("rate",)

    def __init__(self, turn: Turn, rate: Rate) -> None:
        super().__init__(turn, rate.messages, rate.bytes)
        self.rate = rate

    def change(self, rate: Rate) -> None:
        """Apply a changed rate."""
        self.rate = rate
        self.set_rates(rate.messages, rate.bytes)

    def hold(self, connection: Connection) -> None:
        """Stop reading a connection until it may publish again."""
        if self.wait(connection.end_throttling):
            connection.begin_throttling()

    def release(self, connection: Connection) -> None:
        """Stop limiting a connection, since one of its producers was closed."""
        if self.leave(connection.end_throttling):
            connection.end_throttling()


class PublishRate:
    """The rates that apply to one topic."""

    def __init__(self, turn: Turn, of_broker: BrokerLimits) -> None:
        self.limited = 0
        """The number of times that these rates have stopped reading a connection."""
        self._turn = turn
        self._of_broker = of_broker
        self._of_topic: PublishLimiter | None = None
        self._limiters: list[PublishLimiter] = []

    @property
    def is_limit(self) -> bool:
        """True if any rate applies now."""
        return bool(self._limiters)

    def change(self, rate: Rate) -> bool:
        """Apply a changed rate of the topic, and the current one of the broker.

        Return True if the set of limiters that apply to the topic has changed.
        """
        topic = self._of_topic
        if not (rate.messages or rate.bytes):
            self._of_topic = None
            for resume in () if topic is None else topic.stop():
                resume()
        elif topic is None:
            self._of_topic = PublishLimiter(self._turn, rate)
        elif rate != topic.rate:
            topic.change(rate)
        both = (self._of_broker.publish, self._of_topic)
        limiters = [each for each in both if each is not None]
        if limiters == self._limiters:
            return False
        self._limiters = limiters
        return True

    def limit(self, publish: Callable[[EntryRun], None]) -> Callable[[EntryRun], None]:
        """Return a function that publishes a run, and stops reading its connection if the run
        exceeds a rate.
        """
        limiters = tuple(self._limiters)

        def spend_and_publish(run: EntryRun) -> None:
            messages, size = run.messages, run.bytes
            for limiter in limiters:
                if not limiter.spend(messages, size):
                    self.limited += 1
                    limiter.hold(run.owner.connection)
            publish(run)

        return spend_and_publish

    def cut_runs(self, producer: ProducerState) -> None:
        """Limit the size of a producer's runs to a part of the rates."""
        messages = [each.rate.messages for each in self._limiters if each.rate.messages]
        sizes = [each.rate.bytes for each in self._limiters if each.rate.bytes]
        producer.run_messages_max = max(int(min(messages) * RUN_S), 1) if messages else NO_MAX
        producer.run_bytes_max = max(int(min(sizes) * RUN_S), 1) if sizes else NO_MAX

    def holds(self, connection: Connection) -> tuple[Rate | None, Rate | None]:
        """Return the rates of the broker and of the topic that a connection waits for."""

        def rate_of(limiter: PublishLimiter | None) -> Rate | None:
            is_held = limiter is not None and limiter.is_waiting(connection.end_throttling)
            return limiter.rate if limiter is not None and is_held else None

        return rate_of(self._of_broker.publish), rate_of(self._of_topic)

    def release(self, connection: Connection) -> None:
        """Stop limiting a connection, since one of its producers was closed."""
        for limiter in self._limiters:
            limiter.release(connection)
