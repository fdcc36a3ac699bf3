"""Statistics of a partitioned topic, merged from those of its partitions."""

from __future__ import annotations

from typing import Any

from pyxbroker.base.slices import Slices

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
"""Fields merged by their maximum; other numbers are added."""

EARLIEST = frozenset(
    {
        *("earliestMsgPublishTimeInBacklog", "earliestMsgPublishTimeInBacklogs"),
        "topicCreationTimeStamp",
    }
)
"""Fields merged by their minimum, ignoring missing times."""

OF_ONE = frozenset(
    {
        *("ownerBroker", "deduplicationStatus", "oldestBacklogMessageSubscriptionName"),
        *("producerName", "address", "connectedSince", "clientVersion", "accessMode", "producerId"),
        *("activeConsumerName", "metadata", "keyHashRangeArrays"),
    }
)
"""Fields that partitions, their producers and consumers do not share."""


class MergedStatistics:
    """Merges the statistics of partitions. Each partition costs time in proportion to its own size,
    and is freed except for its publishers, whose number is limited by the memory of clients.
    """

    def __init__(self) -> None:
        self._whole: Json = {}
        self._slices = Slices()
        self._publishers: list[list[Json]] = []

    async def add(self, part: Json) -> None:
        """Merge a partition, field by field, in the order of the first partition."""
        for name, value in part.items():
            if name == "publishers":
                self._whole.setdefault(name, [])
                if value:
                    self._publishers.append(value)
            elif name == "subscriptions":
                mine = self._whole.setdefault(name, {})
                for each, one in value.items():
                    await self._add_subscription(mine.setdefault(each, {}), one)
            else:
                _add_field(self._whole, name, value)
        await self._slices.pause()

    async def end(self) -> Json:
        """Return the merged statistics. Nothing can be added afterwards."""
        # Clients that create producers lazily use the same name in all partitions. Those of other
        # clients are merged by position.
        named: dict[str, Json] | None = {} if await self._has_partial_producers() else None
        for each in self._publishers:
            await self._add_publishers(each, named)
        _average(self._whole)
        for one in self._whole.get("publishers", ()):
            if "averageMsgSize" in one:
                _average(one)
        return self._whole

    async def _has_partial_producers(self) -> bool:
        for each in self._publishers:
            if any(one.get("supportsPartialProducer") for one in each):
                return True
            await self._slices.pause()
        return False

    async def _add_publishers(self, part: list[Json], named: dict[str, Json] | None) -> None:
        mine = self._whole["publishers"]
        for at, each in enumerate(part):
            if named is None:
                one = _element(mine, at)
                _add(one, each)
            else:
                name = each["producerName"]
                if name not in named:
                    named[name] = {}
                    mine.append(named[name])
                one = named[name]
                _add(one, each)
                one["producerName"] = name
            one["producerId"] = 0
            await self._slices.pause()

    async def _add_subscription(self, mine: Json, part: Json) -> None:
        for name, value in part.items():
            if name != "consumers":
                _add_field(mine, name, value)
                continue
            consumers = mine.setdefault(name, [])
            for at, each in enumerate(value):
                one = _element(consumers, at)
                _add(one, each)
                one["consumerName"] = each["consumerName"]
                await self._slices.pause()
        await self._slices.pause()


def _average(whole: Json) -> None:
    rate = whole.get("msgRateIn")
    whole["averageMsgSize"] = whole["msgThroughputIn"] / rate if rate else 0.0


def _element(found: list[Json], at: int) -> Json:
    """Return the element at a position, at most one after the last; it is created if needed."""
    if at == len(found):
        found.append({})
    return found[at]


def _add(mine: Json, part: Json) -> None:
    for name, value in part.items():
        _add_field(mine, name, value)


def _add_field(mine: Json, name: str, value: Any) -> None:
    if name in OF_ONE:
        return
    if name == "subscriptionProperties":
        mine.setdefault(name, {}).update(value)
    elif isinstance(value, dict):
        _add(mine.setdefault(name, {}), value)
    else:
        mine[name] = _value(name, mine.get(name), value)


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
