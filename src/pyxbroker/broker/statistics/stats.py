"""Counters and rates of topics, their subscriptions and clients, for /metrics and REST."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pyxbroker.base.rates import Rates
from pyxbroker.base.slices import Steps
from pyxbroker.broker.subscriptions.consumer import Consumer
from pyxbroker.broker.subscriptions.subscription import COUNTED_PER_STEP, Subscription
from pyxbroker.broker.topics.producer import Producer
from pyxbroker.broker.topics.topic import Topic

if TYPE_CHECKING:
    from pyxbroker.broker.compaction.compaction import Compaction

# Read of one topic before the reader may pause.
SUBSCRIPTIONS_PER_STEP = 32
CLIENTS_PER_STEP = 32
DELAYED_ENTRY_BYTES = 20  # at most, of memory


class ConsumerStats(NamedTuple):
    """Statistics of a consumer; rates are per second, over the last measured minute."""

    name: str
    consumer_id: int
    unacked_messages: int
    is_blocked: int  # 1: too many unacknowledged messages; deliveries stop
    permits: int
    msg_out: int
    bytes_out: int
    rate_out: float
    throughput_out: float
    rate_redelivered: float
    rate_acked: float


class ProducerStats(NamedTuple):
    """Statistics of a producer; rates are per second."""

    name: str
    producer_id: int
    rate_in: float
    throughput_in: float
    message_size: float  # mean bytes


class SubscriptionStats(NamedTuple):
    """Statistics of a subscription since its topic was loaded; rates are per second."""

    name: str
    consumers: int
    backlog: int  # unacknowledged entries
    due_backlog: int  # entries of the backlog that are due
    delayed: int  # entries of the backlog that are not due
    unacked_messages: int  # sent to consumers, not acknowledged
    msg_out: int
    bytes_out: int
    rate_out: float
    throughput_out: float
    msg_drop: int  # messages of a non-persistent topic dropped for lack of permits
    stopped_by_damage: str | None  # reason, if too many lost entries have stopped it
    is_blocked: int  # 1: too many unacknowledged messages
    in_replay: int  # entries
    delayed_index_bytes: int
    rate_redelivered: float
    rate_acked: float
    rate_dropped: float
    rate_expired: float
    expired: int  # entries
    last_expired_ms: int  # since the epoch, as the next four; 0: never
    last_acked_ms: int
    last_flow_ms: int
    last_sent_ms: int
    last_advanced_ms: int
    backlog_age_s: int  # -1: no backlog, or unknown
    throttled: ThrottledStats | None  # None if no rate has delayed it
    ack_ranges: int  # of single entries, if requested
    consumer_stats: tuple[ConsumerStats, ...]  # if requested


class ThrottledStats(NamedTuple):
    """Number of delays of a subscription by each limit of dispatch rates."""

    msg_subscription: int
    msg_topic: int
    msg_broker: int
    bytes_subscription: int
    bytes_topic: int
    bytes_broker: int


class EvictionStats(NamedTuple):
    """Number of evictions of a topic's messages by each backlog quota."""

    size: int
    time: int


class TransactionStats(NamedTuple):
    """The transactions of a topic since it was loaded."""

    ongoing: int
    aborted: int
    committed: int


class CoordinatorStats(NamedTuple):
    """The transactions of a coordinator since it was opened."""

    id: int
    active: int
    created: int
    committed: int
    aborted: int
    timed_out: int
    appended: int  # records
    latencies: tuple[int, ...]  # ended transactions in each bucket of TRANSACTION_BOUNDS_MS


class CompactionStats(NamedTuple):
    """The compactions of a topic since it was loaded."""

    removed: int  # messages removed by the last one
    succeeded: int
    failed: int
    duration_ms: int  # of the last one
    entries: int  # of the compacted ledger
    size: int  # bytes of it


class TopicStats(NamedTuple):
    """Statistics of a topic since it was loaded; rates are per second."""

    name: str
    namespace: str
    is_system: bool  # a system topic
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
    backlog: int  # unacknowledged entries of all subscriptions
    delayed: int  # entries of the backlog that are not due
    backlog_size: int  # bytes not acknowledged by the slowest subscription
    publish_rate_limited: int  # times that a connection waited before it could publish more
    storage_write_rate: float  # entries
    storage_read_rate: float  # entries, from memory or from a disk
    read_miss_rate: float  # entries from a disk
    mean_size: float  # bytes of a message received
    backlog_age_s: int  # of the oldest subscription; -1: no backlog, or unknown
    delayed_index_bytes: int
    in_replay: int  # entries, of all subscriptions
    rate_acked: float  # of all subscriptions
    backlog_size_limit: int  # of the backlog quota, in bytes; -1: none
    backlog_age_limit: int  # of the backlog quota, in seconds; -1: none
    last_adds: tuple[int, ...]  # latencies and sizes, see add_stats.pyi
    subscriptions: tuple[SubscriptionStats, ...]
    producer_stats: tuple[ProducerStats, ...]  # if requested
    compaction: CompactionStats | None  # None without a compaction
    evictions: EvictionStats | None  # None without an eviction
    transactions: TransactionStats | None  # None without a transaction


class Detail(NamedTuple):
    """Optional parts of the statistics."""

    producers: bool = False
    consumers: bool = False
    cursors: bool = False


NO_DETAIL = Detail()


def read_stats(
    topics: Iterable[Topic],
    detail: Detail = NO_DETAIL,
    undated: list[Subscription] | None = None,
) -> Iterator[TopicStats | None]:
    """Yield the statistics of all topics; None marks a point where the caller may pause.

    undated: collects the subscriptions whose first backlog message must be read from a disk for its
    publish time; see Topic.find_backlog_time.
    """
    for topic in topics:
        oldest_s = -1
        subscriptions: list[SubscriptionStats] = []
        slowest = 0
        for each in topic.all_subscriptions():
            stats = yield from _subscription_stats(each, detail, undated)
            subscriptions.append(stats)
            if stats.backlog and each.is_durable:
                slowest = max(stats.backlog, slowest)
                oldest_s = max(stats.backlog_age_s, oldest_s)
            if len(subscriptions) % SUBSCRIPTIONS_PER_STEP == 0:
                yield None
        now = time.monotonic()
        # Most topics have few producers.
        if len(topic.producers) < CLIENTS_PER_STEP:
            received = topic.received()
        else:
            received = yield from topic.count_received()
        producers = (yield from _producers(topic, now)) if detail.producers else ()
        outgoing = (yield from _outgoing(subscriptions)) if subscriptions else NOTHING_GOES_OUT
        behind = slowest, oldest_s
        yield _topic_stats(topic, now, received, tuple(subscriptions), outgoing, behind, producers)


def _topic_stats(
    topic: Topic,
    now: float,
    received: tuple[int, int],
    subscriptions: tuple[SubscriptionStats, ...],
    outgoing: Outgoing,
    behind: tuple[int, int],
    producers: tuple[ProducerStats, ...],
) -> TopicStats:
    """Combine statistics. behind: entries and seconds of the slowest subscription; -1 s:
    unknown.
    """
    name = topic.name
    msg_in, bytes_in = received
    rate_in, throughput_in, write_rate, read_rate, miss_rate = topic_rates(topic, now, received)
    policies = topic.policies
    size = topic.storage_size
    # Assumes entries of equal size; the exact number of bytes would need reads.
    slowest, oldest_s = behind
    entries = topic.entries if slowest else 0
    backlog_size = size * slowest // entries if entries else 0
    evictions = topic.evictions
    (
        consumers,
        msg_out,
        bytes_out,
        rate_out,
        throughput_out,
        backlog,
        delayed,
        in_replay,
        rate_acked,
    ) = outgoing
    return TopicStats(
        str(name),
        str(name.namespace_name),
        name.is_system,
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
        miss_rate,
        throughput_in / rate_in if rate_in else 0.0,
        oldest_s,
        delayed * DELAYED_ENTRY_BYTES,
        in_replay,
        rate_acked,
        policies.backlog_size.limit,
        policies.backlog_age.limit,
        topic.last_adds(),
        subscriptions,
        producers,
        None if topic.compaction is None else _compaction(topic, topic.compaction),
        None if evictions is None else EvictionStats(evictions["size"], evictions["time"]),
        _transactions(topic),
    )


def _transactions(topic: Topic) -> TransactionStats | None:
    buffer = topic.transactions
    if buffer is None:
        return None
    return TransactionStats(buffer.ongoing, buffer.aborted, buffer.committed)


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


class Outgoing(NamedTuple):
    """Sums over the subscriptions of a topic."""

    consumers: int = 0
    msg_out: int = 0
    bytes_out: int = 0
    rate_out: float = 0.0
    throughput_out: float = 0.0
    backlog: int = 0
    delayed: int = 0
    in_replay: int = 0
    rate_acked: float = 0.0


NOTHING_GOES_OUT = Outgoing()


def _outgoing(subscriptions: list[SubscriptionStats]) -> Steps[Outgoing]:
    """Return the sums over the subscriptions of a topic."""
    if len(subscriptions) == 1:
        [only] = subscriptions
        return Outgoing(
            only.consumers,
            only.msg_out,
            only.bytes_out,
            only.rate_out,
            only.throughput_out,
            only.backlog,
            only.delayed,
            only.in_replay,
            only.rate_acked,
        )
    consumers = msg_out = bytes_out = backlog = delayed = in_replay = 0
    rate_out = throughput_out = rate_acked = 0.0
    for number, each in enumerate(subscriptions, 1):
        consumers += each.consumers
        msg_out += each.msg_out
        bytes_out += each.bytes_out
        rate_out += each.rate_out
        throughput_out += each.throughput_out
        backlog += each.backlog
        delayed += each.delayed
        in_replay += each.in_replay
        rate_acked += each.rate_acked
        if number % COUNTED_PER_STEP == 0:
            yield
    sent = consumers, msg_out, bytes_out, rate_out, throughput_out
    return Outgoing(*sent, backlog, delayed, in_replay, rate_acked)


def _subscription_stats(
    subscription: Subscription, detail: Detail, undated: list[Subscription] | None
) -> Steps[SubscriptionStats]:
    consumers = subscription.consumers[:]
    now = time.monotonic()
    msg_out, bytes_out = yield from subscription.count_sent()
    unacked_messages = last_sent_ms = 0
    rate_redelivered = rate_acked = 0.0
    consumer_stats: list[ConsumerStats] = []
    for number, each in enumerate(consumers, 1):
        unacked_messages += each.unacked_messages
        last_sent_ms = max(last_sent_ms, each.last_sent_ms)
        rates = each.rates()
        rate_redelivered += rates.redelivered
        rate_acked += rates.acked
        if detail.consumers:
            consumer_stats.append(_consumer_stats(each))
        if number % CLIENTS_PER_STEP == 0:
            yield
    rate_out, throughput_out = per_second(subscription, now, msg_out, bytes_out)
    dispatcher = subscription.dispatcher
    backlog, delayed = subscription.backlog, dispatcher.delayed_entries
    replay, throttled = dispatcher.replay, subscription.throttled
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
        dispatcher.stopped_by_damage,
        int(dispatcher.limits.unacked.blocked),
        0 if replay is None else len(replay.positions),
        delayed * DELAYED_ENTRY_BYTES,
        rate_redelivered,
        rate_acked,
        subscription.drop_rate(now) if subscription.msg_drop else 0.0,
        subscription.expired_rate(now) if subscription.expired else 0.0,
        subscription.expired,
        int(subscription.last_expired_s * 1000),
        int(subscription.last_acked_s * 1000),
        int(subscription.last_flow_s * 1000),
        last_sent_ms or subscription.past_sent_ms,
        int(subscription.last_advanced_s * 1000),
        _backlog_age_s(subscription, undated) if backlog else -1,
        None if throttled is None else _throttled(throttled),
        subscription.acks.count_ranges() if detail.cursors else 0,
        tuple(consumer_stats),
    )


def _backlog_age_s(subscription: Subscription, undated: list[Subscription] | None) -> int:
    """Return the age of the first backlog message, or -1 if it would have to be read."""
    topic = subscription.topic
    time_ms = topic.backlog_time_ms(subscription)
    if time_ms is not None:
        return max(int(topic.wall_clock() - time_ms / 1000), 0)
    if undated is not None:
        undated.append(subscription)
    return -1


def _throttled(events: Counter[str]) -> ThrottledStats:
    return ThrottledStats(
        *(
            events[f"dispatchThrottled{what}EventsBy{limit}"]
            for what in ("Msg", "Bytes")
            for limit in ("SubscriptionLimit", "TopicLimit", "BrokerLimit")
        )
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
    """Complete a minute of all rates of a topic, so that the next reader gets recent values. Each
    step handles the topic, or a few of its clients and subscriptions. Clients that leave meanwhile
    are ignored.
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
    """Return rates: received messages and bytes, entries written, read, and read from a disk."""
    written, read, missed = topic.entries_added, topic.entries_read, topic.entries_read_from_disk
    return per_second(topic, now, *received, written, read, missed)


def producer_rates(producer: Producer, now: float) -> tuple[float, ...]:
    """Return rates of messages, bytes, and chunks received from a producer."""
    return per_second(producer, now, producer.msg_in, producer.bytes_in, producer.chunks_in)


def per_second(
    owner: Topic | Subscription | Producer, now: float, *counters: int
) -> tuple[float, ...]:
    """Return the rates of counters, which are measured from the first call on."""
    if owner.rates is None:
        owner.rates = Rates(now, *counters)
    return owner.rates.per_second(now, *counters)
