"""How much may be published, sent and asked for in a second."""

from __future__ import annotations

from pyxbroker.settings.schema import LONG_MAX, Section, setting


class Rates(Section, title="Rates"):
    maxPublishRatePerTopicInMessages: int = setting(
        0, "Messages that may be published to a topic in a second; 0 is no limit."
    )
    maxPublishRatePerTopicInBytes: int = setting(
        0, "Bytes that may be published to a topic in a second; 0 is no limit.", maximum=LONG_MAX
    )
    brokerPublisherThrottlingMaxMessageRate: int = setting(
        0, "Messages that may be published to this broker in a second; 0 is no limit."
    )
    brokerPublisherThrottlingMaxByteRate: int = setting(
        0,
        "Bytes that may be published to this broker in a second; 0 is no limit.",
        maximum=LONG_MAX,
    )
    dispatchThrottlingRateInMsg: int = setting(
        0, "Messages that this broker may send to consumers in a second; 0 is no limit."
    )
    dispatchThrottlingRateInByte: int = setting(
        0,
        "Bytes that this broker may send to consumers in a second; 0 is no limit.",
        maximum=LONG_MAX,
    )
    dispatchThrottlingRatePerTopicInMsg: int = setting(
        0, "Messages that the consumers of a topic may be sent in a second; 0 is no limit."
    )
    dispatchThrottlingRatePerTopicInByte: int = setting(
        0,
        "Bytes that the consumers of a topic may be sent in a second; 0 is no limit.",
        maximum=LONG_MAX,
    )
    dispatchThrottlingRatePerSubscriptionInMsg: int = setting(
        0, "Messages that the consumers of a subscription may be sent in a second; 0 is no limit."
    )
    dispatchThrottlingRatePerSubscriptionInByte: int = setting(
        0,
        "Bytes that the consumers of a subscription may be sent in a second; 0 is no limit.",
        maximum=LONG_MAX,
    )
    dispatchThrottlingOnNonBacklogConsumerEnabled: bool = setting(
        True, "Whether these rates also hold for subscriptions that have caught up."
    )
    dispatchThrottlingOnBatchMessageEnabled: bool = setting(
        False, "Whether these rates count a batch as one message."
    )
    subscribeThrottlingRatePerConsumer: int = setting(
        0, "How often one consumer may subscribe in each period; 0 is no limit."
    )
    subscribeRatePeriodPerConsumerInSecond: int = setting(
        30, "The period of that.", unit="s", minimum=1
    )
