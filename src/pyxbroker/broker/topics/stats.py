"""The counters of topics and subscriptions, as /metrics and REST tell them."""

from __future__ import annotations

from typing import NamedTuple

from pyxbroker.broker.topics.subscription import Subscription
from pyxbroker.broker.topics.topic import Topic


class SubscriptionStats(NamedTuple):
    """One subscription since its topic was opened."""

    name: str
    consumers: int
    backlog: int  # entries that are not acknowledged
    unacked_messages: int  # sent to consumers, not acknowledged
    msg_out: int
    bytes_out: int
    msg_drop: int = 0  # of a non-persistent topic: that no consumer could take
    stopped_by_damage: str | None = None  # why nothing more is read, where that is so


class TopicStats(NamedTuple):
    """One topic since it was opened."""

    name: str
    namespace: str
    producers: int
    consumers: int
    subscriptions: tuple[SubscriptionStats, ...]
    msg_in: int
    bytes_in: int
    msg_out: int
    bytes_out: int
    storage_size: int  # bytes
    backlog_size: int  # bytes that the slowest subscription has not acknowledged


def subscription_stats(subscription: Subscription) -> SubscriptionStats:
    """The counters of one subscription."""
    consumers = subscription.consumers
    return SubscriptionStats(
        name=subscription.name,
        consumers=len(consumers),
        backlog=subscription.backlog,
        unacked_messages=sum(each.unacked_messages for each in consumers),
        msg_out=subscription.msg_out,
        bytes_out=subscription.bytes_out,
        msg_drop=subscription.msg_drop,
        stopped_by_damage=subscription.dispatcher.stopped_by_damage,
    )


def topic_stats(topic: Topic) -> TopicStats:
    """The counters of one topic."""
    subscriptions = tuple(subscription_stats(each) for each in topic.all_subscriptions())
    backlog = max((each.backlog for each in topic.subscriptions.values()), default=0)
    entries = topic.entries
    return TopicStats(
        name=str(topic.name),
        namespace=topic.name.namespace,
        producers=len(topic.producers),
        consumers=sum(each.consumers for each in subscriptions),
        subscriptions=subscriptions,
        msg_in=topic.msg_in,
        bytes_in=topic.bytes_in,
        msg_out=sum(each.msg_out for each in subscriptions),
        bytes_out=sum(each.bytes_out for each in subscriptions),
        storage_size=topic.storage_size,
        # Entries are of about one size in most topics; the exact bytes would need a read of each.
        backlog_size=topic.storage_size * backlog // entries if entries else 0,
    )
