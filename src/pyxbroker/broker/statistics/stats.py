"""The counters and rates of topics and what they have, as /metrics and REST tell them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pyxbroker.base.rates import Rates
from pyxbroker.base.slices import Steps
from pyxbroker.broker.subscriptions.consumer import Consumer
from pyxbroker.broker.subscriptions.subscription import COUNTED_AT_ONCE, Subscription
from pyxbroker.broker.topics.producer import Producer
from pyxbroker.broker.topics.topic import Topic

if TYPE_CHECKING:
    from pyxbroker.broker.compaction.compaction import Compaction

# What is read of one topic before the reader may yield.
SUBSCRIPTIONS_PER_STEP = 32
CLIENTS_PER_STEP = 32


class ConsumerStats(NamedTuple):
    """One consumer; rates are per second, over the last minute that was looked at."""

    name: str
    consumer_id: int
    unacked_messages: int
    is_blocked: int  # 1: it has too many unacknowledged messages, and gets no more
    permits: int
    msg_out: int
    bytes_out: int
    rate_out: float
    throughput_out: float
    rate_redelivered: float
    rate_acked: float


class ProducerStats(NamedTuple):
    """One producer; rates are per second."""

    name: str
    producer_id: int
    rate_in: float
    throughput_in: float
    message_size: float  # mean bytes


class SubscriptionStats(NamedTuple):
    """One subscription since its topic was opened; rates are per second."""

    name: str
    consumers: int
    backlog: int  # entries that are not acknowledged
    due_backlog: int  # of them, those that are due
    delayed: int  # and those that are not
    unacked_messages: int  # sent to consumers, not acknowledged
    msg_out: int
    bytes_out: int
    rate_out: float
    throughput_out: float
    msg_drop: int  # of a non-persistent topic: that no consumer could take
    stopped_by_damage: str | None  # why nothing more is read, where that is so
    consumer_stats: tuple[ConsumerStats, ...]  # where asked for


class CompactionStats(NamedTuple):
    """The compactions of one topic since it was opened."""

    removed: int  # messages, by the last one
    succeeded: int
    failed: int
    duration_ms: int  # of the last one
    entries: int  # of the compacted ledger
    size: int  # bytes of it


class TopicStats(NamedTuple):
    """One topic since it was opened; rates are per second."""

    name: str
    namespace: str
    producers: int
    consumers: int
    subscription_count: int
    msg_in: int
    bytes_in: int
    rate_in: float
    throughput_in: float
    msg_out: int
    bytes_out: int
    rate_out: float
    throughput_out: float
    storage_size: int  # bytes
    backlog: int  # entries that are not acknowledged, of all subscriptions
    delayed: int  # of them, those that are not due yet
    backlog_size: int  # bytes that the slowest subscription has not acknowledged
    publish_rate_limited: int  # times that a connection had to wait before it could publish more
    storage_write_rate: float  # entries
    storage_read_rate: float  # entries, from memory or from a disk
    backlog_size_limit: int  # bytes of the backlog quota, -1: none
    backlog_age_limit: int  # seconds of it, -1: none
    last_adds: tuple[int, ...]  # latencies and sizes, see add_stats.pyi
    subscriptions: tuple[SubscriptionStats, ...]
    producer_stats: tuple[ProducerStats, ...]  # where asked for
    compaction: CompactionStats | None  # where there was one


class Detail(NamedTuple):
    """What else is read than topics and subscriptions."""

    producers: bool = False
    consumers: bool = False


NO_DETAIL = Detail()


def read_stats(topics: Iterable[Topic], detail: Detail = NO_DETAIL) -> Iterator[TopicStats | None]:
    """All topics, one after the other; None is a place to stop within one that takes long."""
    for topic in topics:
        subscriptions: list[SubscriptionStats] = []
        slowest = 0
        for each in topic.all_subscriptions():
            stats = yield from _subscription_stats(each, detail)
            subscriptions.append(stats)
            if stats.backlog > slowest and each.is_durable:
                slowest = stats.backlog
            if len(subscriptions) % SUBSCRIPTIONS_PER_STEP == 0:
                yield None
        now = time.monotonic()
        # Most have no producer, or a few.
        if len(topic.producers) < CLIENTS_PER_STEP:
            received = topic.received()
        else:
            received = yield from topic.count_received()
        producers = (yield from _producers(topic, now)) if detail.producers else ()
        outgoing = (yield from _outgoing(subscriptions)) if subscriptions else NOTHING_GOES_OUT
        yield _topic_stats(topic, now, received, tuple(subscriptions), outgoing, slowest, producers)


def topic_stats(topic: Topic, detail: Detail = NO_DETAIL) -> TopicStats:
    """One topic, at once."""
    [stats] = [each for each in read_stats((topic,), detail) if each is not None]
    return stats


def _topic_stats(
    topic: Topic,
    now: float,
    received: tuple[int, int],
    subscriptions: tuple[SubscriptionStats, ...],
    outgoing: Outgoing,
    slowest: int,
    producers: tuple[ProducerStats, ...],
) -> TopicStats:
    name = topic.name
    msg_in, bytes_in = received
    rate_in, throughput_in, write_rate, read_rate = topic_rates(topic, now, received)
    policies = topic.policies
    size = topic.storage_size
    # Entries are of about one size in most topics; the exact bytes would need a read of each.
    entries = topic.entries if slowest else 0
    backlog_size = size * slowest // entries if entries else 0
    consumers, msg_out, bytes_out, rate_out, throughput_out, backlog, delayed = outgoing
    return TopicStats(
        str(name),
        str(name.namespace_name),
        len(topic.producers),
        consumers,
        len(subscriptions),
        msg_in,
        bytes_in,
        rate_in,
        throughput_in,
        msg_out,
        bytes_out,
        rate_out,
        throughput_out,
        size,
        backlog,
        delayed,
        backlog_size,
        topic.publish_rate_limited,
        write_rate,
        read_rate,
        policies.backlog_size.limit,
        policies.backlog_age.limit,
        topic.last_adds(),
        subscriptions,
        producers,
        None if topic.compaction is None else _compaction(topic, topic.compaction),
    )


def _compaction(topic: Topic, compaction: Compaction) -> CompactionStats:
    compacted = topic.compacted
    return CompactionStats(
        compaction.removed,
        compaction.succeeded,
        compaction.failed,
        compaction.duration_ms,
        0 if compacted is None else compacted.last_index + 1,
        0 if compacted is None else compacted.size,
    )


Outgoing = tuple[int, int, int, float, float, int, int]
NOTHING_GOES_OUT: Outgoing = (0, 0, 0, 0.0, 0.0, 0, 0)


def _outgoing(subscriptions: list[SubscriptionStats]) -> Steps[Outgoing]:
    """The sums that a topic has of its subscriptions."""
    if len(subscriptions) == 1:
        [only] = subscriptions
        return (
            only.consumers,
            only.msg_out,
            only.bytes_out,
            only.rate_out,
            only.throughput_out,
            only.backlog,
            only.delayed,
        )
    consumers, msg_out, bytes_out, rate_out, throughput_out, backlog, delayed = NOTHING_GOES_OUT
    for number, each in enumerate(subscriptions, 1):
        consumers += each.consumers
        msg_out += each.msg_out
        bytes_out += each.bytes_out
        rate_out += each.rate_out
        throughput_out += each.throughput_out
        backlog += each.backlog
        delayed += each.delayed
        if number % COUNTED_AT_ONCE == 0:
            yield
    return consumers, msg_out, bytes_out, rate_out, throughput_out, backlog, delayed


def _subscription_stats(subscription: Subscription, detail: Detail) -> Steps[SubscriptionStats]:
    consumers = subscription.consumers[:]
    now = time.monotonic()
    msg_out, bytes_out = yield from subscription.count_sent()
    unacked_messages = 0
    consumer_stats: list[ConsumerStats] = []
    for number, each in enumerate(consumers, 1):
        unacked_messages += each.unacked_messages
        if detail.consumers:
            consumer_stats.append(_consumer_stats(each))
        if number % CLIENTS_PER_STEP == 0:
            yield
    rate_out, throughput_out = per_second(subscription, now, msg_out, bytes_out)
    backlog, delayed = subscription.backlog, subscription.dispatcher.delayed_entries
    return SubscriptionStats(
        subscription.name,
        len(consumers),
        backlog,
        backlog - delayed,
        delayed,
        unacked_messages,
        msg_out,
        bytes_out,
        rate_out,
        throughput_out,
        subscription.msg_drop,
        subscription.dispatcher.stopped_by_damage,
        tuple(consumer_stats),
    )


def _consumer_stats(consumer: Consumer) -> ConsumerStats:
    rates = consumer.rates()
    return ConsumerStats(
        name=consumer.name,
        consumer_id=consumer.consumer_id,
        unacked_messages=consumer.unacked_messages,
        is_blocked=int(consumer.is_at_limit),
        permits=consumer.permits,
        msg_out=consumer.msg_out,
        bytes_out=consumer.bytes_out,
        rate_out=rates.msg_out,
        throughput_out=rates.bytes_out,
        rate_redelivered=rates.redelivered,
        rate_acked=rates.acked,
    )


def _producers(topic: Topic, now: float) -> Steps[tuple[ProducerStats, ...]]:
    found: list[ProducerStats] = []
    for each in list(topic.producers.values()):
        found.append(_producer_stats(each, now))
        if len(found) % CLIENTS_PER_STEP == 0:
            yield
    return tuple(found)


def _producer_stats(producer: Producer, now: float) -> ProducerStats:
    rate, throughput, _ = producer_rates(producer, now)
    mean = throughput / rate if rate else 0.0
    return ProducerStats(producer.name, producer.producer_id, rate, throughput, mean)


def note_rates(topic: Topic, now: float) -> Steps[None]:
    """Lets a minute of rates end, so that who asks next is told of the last one: of a topic, or of
    one or a few of its clients and subscriptions in a step. Who goes meanwhile is of no interest.
    """
    topic_rates(topic, now, (yield from topic.count_received()))
    for producer in list(topic.producers.values()):
        producer_rates(producer, now)
        yield
    for subscription in topic.all_subscriptions():
        per_second(subscription, now, *(yield from subscription.count_sent()))
        if subscription.expired_rates is not None:
            subscription.expired_rate(now)
        yield
        for consumer in subscription.consumers[:]:
            consumer.rates()
            yield


def topic_rates(topic: Topic, now: float, received: tuple[int, int]) -> tuple[float, ...]:
    """Messages and bytes that came, entries that were written and that were read."""
    return per_second(topic, now, *received, topic.entries_added, topic.entries_read)


def producer_rates(producer: Producer, now: float) -> tuple[float, ...]:
    """Messages, bytes, and chunks of messages that it brought."""
    return per_second(producer, now, producer.msg_in, producer.bytes_in, producer.chunks_in)


def per_second(
    owner: Topic | Subscription | Producer, now: float, *counters: int
) -> tuple[float, ...]:
    """The rates of its counters; they are measured from the first time that one asks."""
    if owner.rates is None:
        owner.rates = Rates(now, *counters)
    return owner.rates.per_second(now, *counters)
