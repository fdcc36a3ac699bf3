"""Topic statistics for REST: the fields of Pulsar's TopicStatsImpl and its parts, in the order in
which Pulsar writes them.

Rates are per second, averaged over about the last minute. Features that this broker does not have
(offloading, entry filters, replication) appear as zero or empty. Backlog sizes assume
that all entries of a ledger have the same size.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from pyxbroker.base.slices import Slices, run_in_slices
from pyxbroker.base.times import iso_ms
from pyxbroker.broker.client_memory import texts_bytes
from pyxbroker.broker.dispatch.choosers import SingleActive
from pyxbroker.broker.dispatch.key_shared import KeySlots
from pyxbroker.broker.statistics.stats import (
    DELAYED_ENTRY_BYTES,
    per_second,
    producer_rates,
    topic_rates,
)
from pyxbroker.broker.subscriptions.consumer import Consumer
from pyxbroker.broker.subscriptions.expiry import slowest_of
from pyxbroker.broker.subscriptions.subscription import Subscription, SubscriptionType
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.producer import Producer
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore

ACCESS_MODES = ("Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing")
NO_COMPACTION = {
    "lastCompactionRemovedEventCount": 0,
    "lastCompactionSucceedTimestamp": 0,
    "lastCompactionFailedTimestamp": 0,
    "lastCompactionDurationTimeInMills": 0,
}
NO_OFFLOADING_AND_NO_TRANSACTIONS = {
    "offloadedStorageSize": 0,
    "lastOffloadLedgerId": 0,
    "lastOffloadSuccessTimeStamp": 0,
    "lastOffloadFailureTimeStamp": 0,
    "ongoingTxnCount": 0,
    "abortedTxnCount": 0,
    "committedTxnCount": 0,
}
LIMITS = ("SubscriptionLimit", "TopicLimit", "BrokerLimit")
THROTTLED = {
    f"dispatchThrottled{what}EventsBy{limit}": 0 for limit in LIMITS for what in ("Msg", "Bytes")
}
OUTGOING = ("msgRateOut", "msgThroughputOut", "bytesOutCounter", "msgOutCounter")
DELETED_AND_DELAYED = (
    "nonContiguousDeletedMessagesRanges",
    "nonContiguousDeletedMessagesRangesSerializedSize",
    "delayedMessageIndexSizeInBytes",
)

SORTED_PER_STEP = 1024  # names of producers, per step

# Memory for the statistics and their text.
SUBSCRIPTION_BYTES = 6 << 10
COST_FACTOR = 2  # per byte charged for a producer or a consumer
RANGE_BYTES = 200  # per range of hashes

Json = dict[str, Any]


class StatisticsOptions(NamedTuple):
    """Options of a request for statistics."""

    backlog_sizes: bool = True
    earliest_times: bool = False
    publishers: bool = True
    consumers: bool = True


async def weigh(topic: Topic, asked: StatisticsOptions) -> int:
    """Estimate the memory for the statistics of a topic, in bytes."""
    slices = Slices()
    size = 0
    if asked.publishers:
        for producer in list(topic.producers.values()):
            size += COST_FACTOR * producer.cost
            await slices.pause()
    for subscription in topic.all_subscriptions():
        size += SUBSCRIPTION_BYTES + 2 * texts_bytes(subscription.properties)
        if asked.consumers:
            chooser = subscription.dispatcher.chooser
            if isinstance(chooser, KeySlots):
                size += RANGE_BYTES * len(chooser.selector.owners()[0])
            for consumer in list(subscription.consumers):
                size += COST_FACTOR * consumer.cost
                await slices.pause()
        await slices.pause()
    return size


async def topic_statistics(
    topic: Topic, asked: StatisticsOptions, owner: str, store: MetadataStore
) -> dict[str, Any]:
    """Return the statistics of a topic. owner: the id of this broker. The caller releases them with
    forget(). Raises LedgerError, MetadataError.
    """
    answer: Json = {"publishers": [], "subscriptions": {}}
    try:
        return await _fill(answer, topic, asked, owner, store)
    except BaseException:
        await forget(answer)
        raise


def without_partitions(*, is_persistent: bool) -> Json:
    """Return the statistics of a partitioned topic without existing partitions: every merged field,
    zero or empty.
    """
    answer: Json = {
        "msgRateIn": 0.0,
        "msgThroughputIn": 0.0,
        "msgRateOut": 0.0,
        "msgThroughputOut": 0.0,
        "bytesInCounter": 0,
        "msgInCounter": 0,
        "systemTopicBytesInCounter": 0,
        "bytesOutCounter": 0,
        "msgOutCounter": 0,
        "bytesOutInternalCounter": 0,
        "averageMsgSize": 0.0,
        "msgChunkPublished": False,
        "storageSize": 0,
        "backlogSize": 0,
        "backlogQuotaLimitSize": 0,
        "backlogQuotaLimitTime": 0,
        "oldestBacklogMessageAgeSeconds": 0,
        "publishRateLimitedTimes": 0,
        "earliestMsgPublishTimeInBacklogs": 0,
        **NO_OFFLOADING_AND_NO_TRANSACTIONS,
        "publishers": [],
        "waitingPublishers": 0,
        "subscriptions": {},
        "replication": {},
        **dict.fromkeys(DELETED_AND_DELAYED, 0),
        "compaction": dict(NO_COMPACTION),
        "topicCreationTimeStamp": 0,
        "lastPublishTimeStamp": 0,
    }
    return answer if is_persistent else answer | {"msgDropRate": 0.0}


async def forget(answer: Json) -> None:
    """Free statistics in steps: thousands of consumers or producers take tens of milliseconds."""
    slices = Slices()
    publishers, subscriptions = answer.get("publishers", []), answer.get("subscriptions", {})
    while publishers:
        publishers.pop()
        await slices.pause()
    while subscriptions:
        _, each = subscriptions.popitem()
        consumers = each.get("consumers", [])
        while consumers:
            consumers.pop()
            await slices.pause()
        await slices.pause()


async def _fill(
    stats: Json, topic: Topic, asked: StatisticsOptions, owner: str, store: MetadataStore
) -> Json:
    """Fill the lists, and add the other fields."""
    slices = Slices()
    now = time.monotonic()
    publishers: list[Json] = stats["publishers"]
    if asked.publishers:
        async for producer in producers_by_name(topic, slices):
            publishers.append(publisher_statistics(producer, now))
    subscriptions: dict[str, Json] = stats["subscriptions"]
    for subscription in topic.all_subscriptions():
        found = await subscription_statistics(topic, subscription, asked, slices, now)
        subscriptions[subscription.name] = found
        await slices.pause()
    answer = await rates_and_sizes(topic, subscriptions, slices, now)
    answer |= await _backlog(topic, subscriptions, asked)
    answer["publishers"] = publishers
    answer["waitingPublishers"] = 0 if topic.access is None else topic.access.waiting
    answer["subscriptions"] = subscriptions
    answer["replication"] = {}
    if topic.name.is_persistent:
        answer["deduplicationStatus"] = "Disabled" if topic.deduplication is None else "Enabled"
    if topic.epoch is not None:
        answer["topicEpoch"] = topic.epoch
    answer |= await _sums_of(subscriptions, DELETED_AND_DELAYED, slices)
    answer["compaction"] = _compaction(topic)
    answer["ownerBroker"] = owner
    answer |= await _times(topic, store)
    if not topic.name.is_persistent:
        answer |= await _sums_of(subscriptions, ("msgDropRate",), slices)
    return answer


def _compaction(topic: Topic) -> Json:
    """Return the results of compactions since the topic was loaded."""
    done = topic.compaction if isinstance(topic, PersistentTopic) else None
    if done is None:
        return dict(NO_COMPACTION)
    return {
        "lastCompactionRemovedEventCount": done.removed,
        "lastCompactionSucceedTimestamp": done.succeeded_ms,
        "lastCompactionFailedTimestamp": done.failed_ms,
        "lastCompactionDurationTimeInMills": done.duration_ms,
    }


async def producers_by_name(topic: Topic, slices: Slices) -> AsyncIterator[Producer]:
    """Yield the producers ordered by name, except those that leave meanwhile."""
    names = list(topic.producers)
    parts = []
    for at in range(0, len(names), SORTED_PER_STEP):
        parts.append(sorted(names[at : at + SORTED_PER_STEP]))
        await slices.pause()
    for name in heapq.merge(*parts):
        producer = topic.producers.get(name)
        if producer is not None:
            yield producer
        await slices.pause()


async def rates_and_sizes(
    topic: Topic, subscriptions: dict[str, Json], slices: Slices, now: float
) -> Json:
    messages, size = received = await run_in_slices(topic.count_received(), slices)
    rate, throughput, *_ = topic_rates(topic, now, received)
    outgoing = await _sums_of(subscriptions, OUTGOING, slices)
    return {
        "msgRateIn": rate,
        "msgThroughputIn": throughput,
        "msgRateOut": outgoing["msgRateOut"] or 0.0,
        "msgThroughputOut": outgoing["msgThroughputOut"] or 0.0,
        "bytesInCounter": size,
        "msgInCounter": messages,
        "systemTopicBytesInCounter": size if topic.name.is_system else 0,
        "bytesOutCounter": outgoing["bytesOutCounter"],
        "msgOutCounter": outgoing["msgOutCounter"],
        "bytesOutInternalCounter": 0,
        "averageMsgSize": throughput / rate if rate else 0.0,
        "msgChunkPublished": await run_in_slices(topic.find_chunks(), slices),
        "storageSize": topic.storage_size,
    }


async def _backlog(topic: Topic, subscriptions: dict[str, Json], asked: StatisticsOptions) -> Json:
    """Return the fields about the slowest subscription."""
    found: Json = {
        "backlogSize": 0,
        "backlogQuotaLimitSize": 0,
        "backlogQuotaLimitTime": 0,
        "oldestBacklogMessageAgeSeconds": 0,
    }
    earliest = 0
    if isinstance(topic, PersistentTopic):
        found["backlogQuotaLimitSize"] = max(topic.policies.backlog_size.limit, -1)
        found["backlogQuotaLimitTime"] = topic.policies.backlog_age.limit or -1
        found["oldestBacklogMessageAgeSeconds"] = -1
        durable = list(topic.subscriptions.values())
        slowest = await slowest_of(durable)
        if slowest is not None:
            found["backlogSize"] = topic.bytes_after(slowest.mark)
            oldest_ms = await topic.time_after(slowest.mark)
            if oldest_ms is not None:
                age = int(topic.wall_clock()) - oldest_ms // 1000
                found["oldestBacklogMessageAgeSeconds"] = max(age, 0)
                found["oldestBacklogMessageSubscriptionName"] = slowest.subscription.name
        if asked.earliest_times:
            times = [each["earliestMsgPublishTimeInBacklog"] for each in subscriptions.values()]
            earliest = min((each for each in times if each > 0), default=-1)
    found["publishRateLimitedTimes"] = topic.publish_rate_limited
    found["earliestMsgPublishTimeInBacklogs"] = earliest
    found |= NO_OFFLOADING_AND_NO_TRANSACTIONS
    if isinstance(topic, PersistentTopic) and topic.transactions is not None:
        found["ongoingTxnCount"] = topic.transactions.ongoing
        found["abortedTxnCount"] = topic.transactions.aborted
        found["committedTxnCount"] = topic.transactions.committed
    return found


async def _sums_of(subscriptions: dict[str, Json], names: Sequence[str], slices: Slices) -> Json:
    sums: Json = dict.fromkeys(names, 0)
    for each in subscriptions.values():
        for name in names:
            sums[name] += each[name]
        await slices.pause()
    return sums


async def _times(topic: Topic, store: MetadataStore) -> Json:
    created_ms = published_ms = 0
    if isinstance(topic, PersistentTopic):
        node = await store.get(paths.managed_ledger(topic.name.managed_ledger_name))
        created_ms = 0 if node is None else node.created_ms
        published_ms = int(topic.managed_ledger.last_added_s * 1000)
    return {"topicCreationTimeStamp": created_ms, "lastPublishTimeStamp": published_ms}


# --- publishers -------------------------------------------------------------------------------


def publisher_statistics(producer: Producer, now: float) -> Json:
    rate, throughput, chunks = producer_rates(producer, now)
    session = producer.connection.session
    answer: Json = {
        "accessMode": ACCESS_MODES[producer.access_mode],
        "msgRateIn": rate,
        "msgThroughputIn": throughput,
        "averageMsgSize": throughput / rate if rate else 0.0,
        "chunkedMessageRate": chunks,
        "producerId": producer.producer_id,
        "supportsPartialProducer": session.supports_partial_producers,
        "producerName": producer.name,
        "address": f"/{producer.connection.peer}",
        "connectedSince": datetime.fromtimestamp(producer.connected_s, timezone.utc)
        .isoformat()
        .replace("+00:00", "Z"),
    }
    if session.client_version:
        answer["clientVersion"] = session.client_version
    answer["metadata"] = producer.metadata
    if not producer.topic.name.is_persistent:
        answer["msgDropRate"] = 0.0
    return answer


# --- subscriptions ----------------------------------------------------------------------------


async def subscription_statistics(
    topic: Topic, subscription: Subscription, asked: StatisticsOptions, slices: Slices, now: float
) -> Json:
    messages, size = await run_in_slices(subscription.count_sent(), slices)
    rate, throughput = per_second(subscription, now, messages, size)
    last_sent_ms = await run_in_slices(subscription.find_last_sent(), slices)
    consumers = []
    redelivered = acked = chunks = 0.0
    unacked_messages = 0
    chooser = subscription.dispatcher.chooser
    slots = chooser if isinstance(chooser, KeySlots) else None
    ranges_of = None if slots is None else await slots.ranges_by_slot(slices)
    draining_of = {} if slots is None else await _draining(slots, slices)
    # Consumers may join and leave meanwhile.
    for each in subscription.consumers[:]:
        rates = each.rates()
        redelivered += rates.redelivered
        acked += rates.acked
        chunks += rates.chunks
        if each.tracks_pending:
            unacked_messages += each.unacked_messages
        if asked.consumers:
            consumers.append(_consumer(each, ranges_of, draining_of))
        await slices.pause()
    answer: Json = {
        "msgRateOut": rate,
        "msgThroughputOut": throughput,
        "bytesOutCounter": size,
        "msgOutCounter": messages,
        "msgRateRedeliver": redelivered,
        "messageAckRate": acked,
        "chunkedMessageRate": chunks,
        **await _backlog_fields(topic, subscription, asked, unacked_messages),
        **_history(subscription, now, last_sent_ms),
        "consumers": consumers,
        **_kind(subscription, slots),
        **_acknowledged(subscription, slots, draining_of),
    }
    if not topic.name.is_persistent:
        answer["msgDropRate"] = subscription.drop_rate(now)
    return answer | {"durable": subscription.is_durable, "replicated": subscription.replicated}


async def _backlog_fields(
    topic: Topic, subscription: Subscription, asked: StatisticsOptions, unacked_messages: int
) -> Json:
    """Return the fields about the backlog, the deliveries and the active consumer."""
    backlog_size, earliest_ms = await _backlog_size_and_time(topic, subscription, asked)
    dispatcher = subscription.dispatcher
    replay = dispatcher.replay
    delayed = dispatcher.delayed_entries
    answer: Json = {
        "msgBacklog": subscription.backlog,
        "backlogSize": backlog_size,
        "earliestMsgPublishTimeInBacklog": earliest_ms,
        "msgBacklogNoDelayed": subscription.backlog - delayed,
        "blockedSubscriptionOnUnackedMsgs": dispatcher.limits.unacked.blocked,
        "msgDelayed": delayed,
        "msgInReplay": 0 if replay is None else len(replay.positions),
        "unackedMessages": unacked_messages,
        "type": str(subscription.kind) if subscription.was_used else "None",
    }
    active = _active(subscription)
    if active is not None:
        answer["activeConsumerName"] = active.name
    return answer


def _history(subscription: Subscription, now: float, last_sent_ms: int) -> Json:
    """Return the fields about expiry, and the times of the last events."""
    return {
        "msgRateExpired": subscription.expired_rate(now),
        "msgExpired": subscription.expired,
        "totalMsgExpired": subscription.expired,
        "lastExpireTimestamp": _ms(subscription.last_expired_s),
        "lastConsumedFlowTimestamp": _ms(subscription.last_flow_s),
        "lastConsumedTimestamp": last_sent_ms,
        "lastAckedTimestamp": _ms(subscription.last_acked_s),
        "lastMarkDeleteAdvancedTimestamp": _ms(subscription.last_advanced_s),
    }


def _kind(subscription: Subscription, slots: KeySlots | None) -> Json:
    answer: Json = {
        "isDurable": subscription.is_durable,
        "isReplicated": subscription.replicated,
        "allowOutOfOrderDelivery": False,
    }
    if slots is not None:
        answer["allowOutOfOrderDelivery"] = slots.policy.out_of_order
        answer["keySharedMode"] = slots.policy.mode.name
    return answer


async def _draining(slots: KeySlots, slices: Slices) -> dict[int, list[Json]]:
    """Return Pulsar's DrainingHash records by slot: entries of hashes that have a new owner."""
    found: dict[int, list[Json]] = {}
    for slot, hash, held, waiting in slots.keys.draining():
        # Each waiting entry counts as one blocked attempt.
        each = {"hash": hash, "unackMsgs": held, "blockedAttempts": waiting}
        found.setdefault(slot, []).append(each)
        await slices.pause()
    return found


def _drained(count: int, draining: list[Json]) -> Json:
    return {
        "drainingHashesCount": len(draining),
        "drainingHashesClearedTotal": count,
        "drainingHashesUnackedMessages": sum(each["unackMsgs"] for each in draining),
    }


def _acknowledged(
    subscription: Subscription, slots: KeySlots | None, draining_of: dict[int, list[Json]]
) -> Json:
    """Return the fields about single acknowledgements, and those of unsupported features."""
    acks = subscription.acks
    ranges = acks.count_ranges() if acks.holes else 0
    drained = 0 if slots is None else slots.keys.drained_total
    return {
        "consumersAfterMarkDeletePosition": {},
        **_drained(drained, [each for some in draining_of.values() for each in some]),
        "nonContiguousDeletedMessagesRanges": ranges,
        "nonContiguousDeletedMessagesRangesSerializedSize": 8 * acks.longs_size() if ranges else 0,
        "delayedMessageIndexSizeInBytes": subscription.dispatcher.delayed_entries
        * DELAYED_ENTRY_BYTES,
        "subscriptionProperties": subscription.properties,
        "filterProcessedMsgCount": 0,
        "filterAcceptedMsgCount": 0,
        "filterRejectedMsgCount": 0,
        "filterRescheduledMsgCount": 0,
        **THROTTLED,
        **(subscription.throttled or {}),
    }


async def _backlog_size_and_time(
    topic: Topic, subscription: Subscription, asked: StatisticsOptions
) -> tuple[int, int]:
    """Return the size of the backlog in bytes (-1: not requested), and the publish time of its
    first message (0: not requested, -1: no backlog).
    """
    if not isinstance(topic, PersistentTopic):
        return 0, 0
    mark = subscription.acks.mark_delete
    size = topic.bytes_after(mark) if asked.backlog_sizes else -1
    if not asked.earliest_times:
        return size, 0
    if not subscription.backlog:
        return size, -1
    earliest = await topic.time_after(mark)
    return size, -1 if earliest is None else earliest


def _active(subscription: Subscription) -> Consumer | None:
    """Return the consumer that gets all entries, if there is only one such."""
    chooser = subscription.dispatcher.chooser
    if isinstance(chooser, SingleActive):
        return chooser.active
    if subscription.kind is SubscriptionType.EXCLUSIVE and subscription.topic.name.is_persistent:
        return next(iter(subscription.consumers), None)
    return None


def _consumer(
    consumer: Consumer,
    ranges_of: dict[int, list[list[int]]] | None,
    draining_of: dict[int, list[Json]],
) -> Json:
    rates = consumer.rates()
    draining = draining_of.get(consumer.slot, [])
    drained = 0 if consumer.keys is None else consumer.keys.drained.get(consumer.slot, 0)
    session = consumer.connection.session
    answer: Json = {
        "msgRateOut": rates.msg_out,
        "msgThroughputOut": rates.bytes_out,
        "bytesOutCounter": consumer.bytes_out,
        "msgOutCounter": consumer.msg_out,
        "msgRateRedeliver": rates.redelivered,
        "messageAckRate": rates.acked,
        "chunkedMessageRate": rates.chunks,
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked_messages if consumer.tracks_pending else 0,
        "avgMessagesPerEntry": round(consumer.messages_per_entry),
        "blockedConsumerOnUnackedMsgs": consumer.is_at_limit,
        **_drained(drained, draining),
    }
    if ranges_of is not None:
        answer["drainingHashes"] = draining
    answer |= {
        "address": f"/{consumer.connection.peer}",
        "connectedSince": consumer.connected_since,
    }
    if session.client_version:
        answer["clientVersion"] = session.client_version
    answer |= {
        "lastAckedTimestamp": _ms(consumer.last_acked_s),
        "lastConsumedTimestamp": consumer.last_sent_ms,
        "firstMessagesSentTimestamp": consumer.first_sent_ms,
        "lastConsumedFlowTimestamp": _ms(consumer.last_flow_s),
        "firstConsumedFlowTimestamp": _ms(consumer.first_flow_s),
    }
    if ranges_of is not None:
        answer["keyHashRangeArrays"] = ranges_of.get(consumer.slot, [])
    return answer | {
        "metadata": consumer.metadata,
        "lastAckedTime": iso_ms(_ms(consumer.last_acked_s)),
        "lastConsumedTime": iso_ms(consumer.last_sent_ms),
    }


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
