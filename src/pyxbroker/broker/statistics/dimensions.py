"""Topic statistics in the form of Pulsar's broker-stats: fewer fields than the statistics of the
topic itself, some under other names. They need only memory, no reads.
"""

from __future__ import annotations

import time
from typing import Any

from pyxbroker.base.slices import Slices
from pyxbroker.broker.statistics.internal_stats import entries_since, pending_adds
from pyxbroker.broker.statistics.statistics import (
    StatisticsOptions,
    producers_by_name,
    publisher_statistics,
    rates_and_sizes,
    subscription_statistics,
)
from pyxbroker.broker.subscriptions.expiry import slowest_of
from pyxbroker.broker.subscriptions.subscription import Subscription
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.topic import Topic

Json = dict[str, Any]

ASKED = StatisticsOptions(backlog_sizes=False)
PUBLISHER = (
    *("msgRateIn", "msgThroughputIn", "averageMsgSize", "address", "producerId", "producerName"),
    *("connectedSince", "clientVersion", "metadata"),
)
CONSUMER = (
    *("address", "consumerName", "availablePermits", "connectedSince", "msgRateOut"),
    *("msgThroughputOut", "msgRateRedeliver", "avgMessagesPerEntry", "messageAckRate"),
    *("clientVersion", "metadata"),
)
RATES = (
    *("msgBacklog", "msgRateExpired", "msgRateOut", "messageAckRate", "msgThroughputOut"),
    "msgRateRedeliver",
)
FILTERS = tuple(f"filter{each}MsgCount" for each in ("Processed", "Accepted", "Rejected"))


async def dimension_statistics(topic: Topic, slices: Slices) -> Json:
    """Return the statistics of a loaded topic. The caller releases them with
    statistics.forget().
    """
    now = time.monotonic()
    publishers = []
    async for producer in producers_by_name(topic, slices):
        publishers.append(_selected(publisher_statistics(producer, now), PUBLISHER))
    found: dict[str, Json] = {}
    subscriptions: dict[str, Json] = {}
    for each in topic.all_subscriptions():
        found[each.name] = await subscription_statistics(topic, each, ASKED, slices, now)
        subscriptions[each.name] = await _subscription(topic, each, found[each.name], slices)
        await slices.pause()
    whole = await rates_and_sizes(topic, found, slices, now)
    answer: Json = {
        "publishers": publishers,
        "replication": {},
        "subscriptions": subscriptions,
        "producerCount": len(topic.producers),
        **_selected(whole, ("averageMsgSize", "msgRateIn", "msgRateOut")),
        "msgInCount": whole["msgInCounter"],
        "bytesInCount": whole["bytesInCounter"],
        "msgOutCount": whole["msgOutCounter"],
        "bytesOutCount": whole["bytesOutCounter"],
        **_selected(whole, ("msgThroughputIn", "msgThroughputOut")),
    }
    if isinstance(topic, PersistentTopic):
        slowest = await slowest_of(list(topic.subscriptions.values()))
        answer["storageSize"] = whole["storageSize"]
        answer["backlogSize"] = 0 if slowest is None else topic.bytes_after(slowest.mark)
        answer["pendingAddEntriesCount"] = pending_adds(topic)
    return answer | {"filteredEntriesCount": 0}


async def _subscription(
    topic: Topic, subscription: Subscription, found: Json, slices: Slices
) -> Json:
    consumers = found.pop("consumers")
    for at, each in enumerate(consumers):
        # Frees the unused fields one by one.
        consumers[at] = _selected(each, CONSUMER)
        await slices.pause()
    answer: Json = {"consumers": consumers, **_selected(found, RATES)}
    if isinstance(topic, PersistentTopic):
        since = entries_since(topic, subscription)
        answer["numberOfEntriesSinceFirstNotAckedMessage"] = since
        ranges = found["nonContiguousDeletedMessagesRanges"]
        answer["totalNonContiguousDeletedMessagesRange"] = ranges
    answer["type"] = found["type"]
    answer |= _selected(found, (*FILTERS, "filterRescheduledMsgCount"))
    return answer | _selected(found, ("msgDropRate",))


def _selected(fields: Json, names: tuple[str, ...]) -> Json:
    """Return those of the named fields that exist, in this order."""
    return {name: fields[name] for name in names if name in fields}
