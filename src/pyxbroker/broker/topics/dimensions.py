"""The statistics of a topic as Pulsar's broker-stats tell them: fewer fields than those of the
topic itself, some of them under names of their own. Nothing is read for them but memory.
"""

from __future__ import annotations

import time
from typing import Any

from pyxbroker.base.slices import Slices
from pyxbroker.broker.topics.internal_stats import entries_since, pending_adds
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.statistics import (
    Asked,
    publisher_statistics,
    rates_and_sizes,
    subscription_statistics,
)
from pyxbroker.broker.topics.subscription import Subscription
from pyxbroker.broker.topics.topic import Topic

Json = dict[str, Any]

ASKED = Asked(backlog_sizes=False)
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
    """One topic that is open."""
    now = time.monotonic()
    publishers = []
    for producer in sorted(topic.producers.values(), key=lambda each: each.name):
        publishers.append(_some(publisher_statistics(producer, now), PUBLISHER))
        await slices.pause()
    found: dict[str, Json] = {}
    told: dict[str, Json] = {}
    for each in topic.all_subscriptions():
        found[each.name] = await subscription_statistics(topic, each, ASKED, slices, now)
        told[each.name] = _subscription(topic, each, found[each.name])
        await slices.pause()
    whole = rates_and_sizes(topic, list(found.values()), now)
    answer: Json = {
        "publishers": publishers,
        "replication": {},
        "subscriptions": told,
        "producerCount": len(topic.producers),
        **_some(whole, ("averageMsgSize", "msgRateIn", "msgRateOut")),
        "msgInCount": whole["msgInCounter"],
        "bytesInCount": whole["bytesInCounter"],
        "msgOutCount": whole["msgOutCounter"],
        "bytesOutCount": whole["bytesOutCounter"],
        **_some(whole, ("msgThroughputIn", "msgThroughputOut")),
    }
    if isinstance(topic, PersistentTopic):
        marks = [each.acks.mark_delete for each in topic.subscriptions.values()]
        answer["storageSize"] = whole["storageSize"]
        answer["backlogSize"] = topic.bytes_after(min(marks)) if marks else 0
        answer["pendingAddEntriesCount"] = pending_adds(topic)
    return answer | {"filteredEntriesCount": 0}


def _subscription(topic: Topic, subscription: Subscription, found: Json) -> Json:
    answer: Json = {"consumers": [_some(each, CONSUMER) for each in found["consumers"]]}
    answer |= _some(found, RATES)
    if isinstance(topic, PersistentTopic):
        since = entries_since(topic, subscription)
        answer["numberOfEntriesSinceFirstNotAckedMessage"] = since
        ranges = found["nonContiguousDeletedMessagesRanges"]
        answer["totalNonContiguousDeletedMessagesRange"] = ranges
    answer["type"] = found["type"]
    answer |= _some(found, (*FILTERS, "filterRescheduledMsgCount"))
    return answer | _some(found, ("msgDropRate",))


def _some(fields: Json, names: tuple[str, ...]) -> Json:
    """Those fields that there are, in this order."""
    return {name: fields[name] for name in names if name in fields}
