"""How much may be published in a second: to a topic, and to the broker.

What a client has sent is stored, also what is too much. Then its connection is not read until the
rate allows more, in its turn among all that wait for it; others go on. As in Pulsar that holds for
all producers of the connection. A run is cut where it takes more than a hundredth of a second's
share, so what was read waits as well, and no second begins with all that it may have.
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

RUN_S = 0.01  # of the rate: what one run takes at most, but for its last entry
NO_MAX = 2**64 - 1


class PublishLimiter(RateLimiter):
    """The rate of a topic, or of the broker."""

    __slots__ = ("rate",)

    def __init__(self, turn: Turn, rate: Rate) -> None:
        super().__init__(turn, rate.messages, rate.bytes)
        self.rate = rate

    def change(self, rate: Rate) -> None:
        """From now on it is another one."""
        self.rate = rate
        self.set_rates(rate.messages, rate.bytes)

    def hold(self, connection: Connection) -> None:
        """A connection is not read until it may publish again."""
        if self.wait(connection.end_throttling):
            connection.begin_throttling()

    def release(self, connection: Connection) -> None:
        """A connection does not publish any more."""
        if self.leave(connection.end_throttling):
            connection.end_throttling()


class PublishRate:
    """The rates that hold for one topic."""

    def __init__(self, turn: Turn, of_broker: BrokerLimits) -> None:
        self.limited = 0
        """How often a connection was not read for them."""
        self._turn = turn
        self._of_broker = of_broker
        self._of_topic: PublishLimiter | None = None
        self._limiters: list[PublishLimiter] = []

    @property
    def is_limit(self) -> bool:
        """Whether there is any rate now."""
        return bool(self._limiters)

    def change(self, rate: Rate) -> bool:
        """From now on this is the topic's, and the broker's is that of now; whether others limit it
        than before.
        """
        topic = self._of_topic
        if not (rate.messages or rate.bytes):
            self._of_topic = None
            for go_on in () if topic is None else topic.stop():
                go_on()
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

    def before(self, publish: Callable[[EntryRun], None]) -> Callable[[EntryRun], None]:
        """Publishes a run, and has its connection wait when that was too much."""
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
        """No run of a producer takes much more than its part of the rates."""
        messages = [each.rate.messages for each in self._limiters if each.rate.messages]
        sizes = [each.rate.bytes for each in self._limiters if each.rate.bytes]
        producer.run_messages_max = max(int(min(messages) * RUN_S), 1) if messages else NO_MAX
        producer.run_bytes_max = max(int(min(sizes) * RUN_S), 1) if sizes else NO_MAX

    def release(self, connection: Connection) -> None:
        """One of its producers is gone."""
        for limiter in self._limiters:
            limiter.release(connection)
