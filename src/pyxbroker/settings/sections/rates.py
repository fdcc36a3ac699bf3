"""How much may be published, sent and asked for in a second."""

from __future__ import annotations

from pyxbroker.settings.schema import LONG_MAX, Section, setting


def _messages(what: str) -> int:
    return setting(0, f"Messages that {what} in a second; 0 is no limit.")


def _bytes(what: str) -> int:
    return setting(0, f"Bytes that {what} in a second; 0 is no limit.", maximum=LONG_MAX)


class Rates(Section, title="Rates"):
    maxPublishRatePerTopicInMessages: int = _messages("may be published to a topic")
    maxPublishRatePerTopicInBytes: int = _bytes("may be published to a topic")
    brokerPublisherThrottlingMaxMessageRate: int = _messages("may be published to this broker")
    brokerPublisherThrottlingMaxByteRate: int = _bytes("may be published to this broker")
    dispatchThrottlingRateInMsg: int = _messages("this broker may send to consumers")
    dispatchThrottlingRateInByte: int = _bytes("this broker may send to consumers")
    dispatchThrottlingRatePerTopicInMsg: int = _messages("the consumers of a topic may be sent")
    dispatchThrottlingRatePerTopicInByte: int = _bytes("the consumers of a topic may be sent")
    dispatchThrottlingRatePerSubscriptionInMsg: int = _messages(
        "the consumers of a subscription may be sent"
    )
    dispatchThrottlingRatePerSubscriptionInByte: int = _bytes(
        "the consumers of a subscription may be sent"
    )
    dispatchThrottlingOnNonBacklogConsumerEnabled: bool = setting(
        True,
        "Whether these rates also hold for subscriptions that have caught up.",
        dynamic=True,
    )
    dispatchThrottlingOnBatchMessageEnabled: bool = setting(
        False,
        "Whether these rates count a batch as one message.",
        dynamic=True,
    )
    subscribeThrottlingRatePerConsumer: int = setting(
        0,
        "How often one consumer may subscribe in each period; 0 is no limit.",
        dynamic=True,
    )
    subscribeRatePeriodPerConsumerInSecond: int = setting(
        30,
        "The period of that.",
        unit="s",
        minimum=1,
        dynamic=True,
    )
