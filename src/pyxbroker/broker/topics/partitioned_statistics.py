"""The statistics of a partitioned topic: those of its partitions together."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

LATEST = frozenset(
    {
        *("lastPublishTimeStamp", "lastExpireTimestamp", "lastConsumedFlowTimestamp"),
        *("lastConsumedTimestamp", "lastAckedTimestamp", "lastMarkDeleteAdvancedTimestamp"),
        *("firstMessagesSentTimestamp", "firstConsumedFlowTimestamp"),
        *("lastOffloadLedgerId", "lastOffloadSuccessTimeStamp", "lastOffloadFailureTimeStamp"),
        *("lastCompactionSucceedTimestamp", "lastCompactionFailedTimestamp"),
        *("lastCompactionDurationTimeInMills", "lastCompactionRemovedEventCount"),
        *("backlogQuotaLimitSize", "backlogQuotaLimitTime", "oldestBacklogMessageAgeSeconds"),
        *("avgMessagesPerEntry", "lastAckedTime", "lastConsumedTime", "topicEpoch"),
    }
)
"""Of these the highest one counts, of other numbers the sum."""

EARLIEST = frozenset(
    {
        *("earliestMsgPublishTimeInBacklog", "earliestMsgPublishTimeInBacklogs"),
        "topicCreationTimeStamp",
    }
)
"""Of these the lowest one that says a time."""

OF_ONE = frozenset(
    {
        *("ownerBroker", "deduplicationStatus", "oldestBacklogMessageSubscriptionName"),
        *("producerName", "address", "connectedSince", "clientVersion", "accessMode", "producerId"),
        *("activeConsumerName", "metadata", "keyHashRangeArrays"),
    }
)
"""What partitions, their producers and consumers do not share."""


def together(partitions: list[Json]) -> Json:
    """All partitions as if they were one topic."""
    whole: Json = {}
    for each in partitions:
        whole = _merged(whole, each)
    rate = whole.get("msgRateIn")
    whole["averageMsgSize"] = whole["msgThroughputIn"] / rate if rate else 0.0
    return whole


def _merged(whole: Json, part: Json) -> Json:
    """Both, field by field, in the order of the first one."""
    merged = dict(whole)
    for name, value in part.items():
        if name in OF_ONE:
            continue
        before = merged.get(name)
        if name == "publishers":
            merged[name] = _publishers(before or [], value)
        elif name == "consumers":
            merged[name] = _by_position(before or [], value)
        elif name == "subscriptions":
            merged[name] = {
                each: _merged((before or {}).get(each, {}), one) for each, one in value.items()
            } | {each: one for each, one in (before or {}).items() if each not in value}
        elif name == "subscriptionProperties":
            merged[name] = {**(before or {}), **value}
        elif isinstance(value, dict):
            merged[name] = _merged(before or {}, value)
        else:
            merged[name] = _value(name, before, value)
    return merged


def _value(name: str, before: Any, value: Any) -> Any:
    if before is None:
        return value
    if isinstance(value, bool):
        return before or value
    if name in EARLIEST:
        times = [each for each in (before, value) if each > 0]
        return min(times) if times else before
    if name in LATEST or isinstance(value, str):
        return max(before, value)
    if name == "backlogSize" and -1 in (before, value):
        return -1
    return before + value


def _publishers(before: list[Json], part: list[Json]) -> list[Json]:
    """Those of clients that make some for each partition by their names, others by position."""
    if not any(each.get("supportsPartialProducer") for each in (*before, *part)):
        return [{**each, "producerId": 0} for each in _by_position(before, part)]
    named = {each["producerName"]: each for each in before}
    for each in part:
        name = each["producerName"]
        named[name] = {**_merged(named.get(name, {}), each), "producerName": name, "producerId": 0}
    return list(named.values())


def _by_position(before: list[Json], part: list[Json]) -> list[Json]:
    merged = []
    for at in range(max(len(before), len(part))):
        one = before[at] if at < len(before) else {}
        other = part[at] if at < len(part) else {}
        found = _merged(one, other)
        name = other.get("consumerName", one.get("consumerName"))
        if name is not None:
            found["consumerName"] = name
        merged.append(found)
    return merged
