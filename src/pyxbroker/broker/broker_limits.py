"""What all topics of a broker share: its rates, and the largest message that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.policies.values import DispatchRate, Rate
from pyxbroker.settings.config import Config

if TYPE_CHECKING:
    from pyxbroker.broker.dispatch.throttle import DispatchLimiter
    from pyxbroker.broker.topics.publish_rate import PublishLimiter
    from pyxbroker.turn import Turn


class BrokerLimits:
    """Those that the settings say."""

    def __init__(self) -> None:
        self.publish: PublishLimiter | None = None  # where there is such a rate
        self.dispatch: DispatchLimiter | None = None
        self.message_bytes_max = 2**32 - 1


NO_BROKER_LIMITS = BrokerLimits()


def broker_limits(config: Config, turn: Turn) -> BrokerLimits:
    """What the settings say."""
    limits = BrokerLimits()
    limits.message_bytes_max = config.maxMessageSize
    publish = Rate(
        config.brokerPublisherThrottlingMaxMessageRate, config.brokerPublisherThrottlingMaxByteRate
    )
    if publish != Rate():
        # Most brokers have no rates.
        from pyxbroker.broker.topics.publish_rate import PublishLimiter

        limits.publish = PublishLimiter(turn, publish)
    dispatch = DispatchRate(config.dispatchThrottlingRateInMsg, config.dispatchThrottlingRateInByte)
    if dispatch != DispatchRate():
        from pyxbroker.broker.dispatch.throttle import DispatchLimiter

        limits.dispatch = DispatchLimiter(turn, dispatch)
    return limits
