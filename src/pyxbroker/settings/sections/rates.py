"""Settings that limit how much clients publish, receive and request per second."""

from __future__ import annotations

from pyxbroker.settings.schema import LONG_MAX, Section, limit, setting


def _messages(what: str, dynamic: bool = False) -> int:
    return limit(0, f"Messages per second that {what}; 0 is no limit.", dynamic=dynamic)


def _bytes(what: str, dynamic: bool = False) -> int:
    about = f"Bytes per second that {what}; 0 is no limit."
    return limit(0, about, maximum=LONG_MAX, dynamic=dynamic)


class Rates(Section, title="Rates"):
    maxPublishRatePerTopicInMessages: int = _messages("may be published to a topic", dynamic=True)
    maxPublishRatePerTopicInBytes: int = _bytes("may be published to a topic", dynamic=True)
    brokerPublisherThrottlingMaxMessageRate: int = _messages(
        "may be published to this broker", dynamic=True
    )
    brokerPublisherThrottlingMaxByteRate: int = _bytes(
        "may be published to this broker", dynamic=True
    )
    dispatchThrottlingRateInMsg: int = _messages("this broker may send to consumers", dynamic=True)
    dispatchThrottlingRateInByte: int = _bytes("this broker may send to consumers", dynamic=True)
    dispatchThrottlingRatePerTopicInMsg: int = _messages(
        "the consumers of a topic may receive", dynamic=True
    )
    dispatchThrottlingRatePerTopicInByte: int = _bytes(
        "the consumers of a topic may receive", dynamic=True
    )
    dispatchThrottlingRatePerSubscriptionInMsg: int = _messages(
        "the consumers of a subscription may receive", dynamic=True
    )
    dispatchThrottlingRatePerSubscriptionInByte: int = _bytes(
        "the consumers of a subscription may receive", dynamic=True
    )
    dispatchThrottlingOnNonBacklogConsumerEnabled: bool = setting(
        True,
        "If true, dispatch rates also limit subscriptions that have caught up.",
        dynamic=True,
    )
    dispatchThrottlingOnBatchMessageEnabled: bool = setting(
        False,
        "If true, dispatch rates count a batch as one message.",
        dynamic=True,
    )
    subscribeThrottlingRatePerConsumer: int = limit(
        0,
        "How often one consumer may subscribe in each period; 0 is no limit.",
        dynamic=True,
    )
    subscribeRatePeriodPerConsumerInSecond: int = setting(
        30,
        "Length of the period for subscribeThrottlingRatePerConsumer.",
        unit="s",
        minimum=1,
        dynamic=True,
    )
