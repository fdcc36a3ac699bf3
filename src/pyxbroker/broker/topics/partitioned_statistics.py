"""The statistics of a partitioned topic: those of its partitions together."""

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


async def together(partitions: list[Json]) -> Json:
    """All partitions as if they were one topic."""
    whole = _Whole(await _has_partial_producers(partitions))
    for each in partitions:
        await whole.add(each)
    found = whole.found
    _average(found)
    for each in found.get("publishers", ()):
        if "averageMsgSize" in each:
            _average(each)
    return found


def _average(whole: Json) -> None:
    rate = whole.get("msgRateIn")
    whole["averageMsgSize"] = whole["msgThroughputIn"] / rate if rate else 0.0


async def _has_partial_producers(partitions: list[Json]) -> bool:
    slices = Slices()
    for each in partitions:
        if any(one.get("supportsPartialProducer") for one in each.get("publishers", ())):
            return True
        await slices.pause()
    return False


class _Whole:
    """What has been added up. A partition costs what it says, however many there were before it."""

    def __init__(self, is_by_name: bool) -> None:
        self.found: Json = {}
        self._slices = Slices()
        # Clients that make producers for some partitions only name them alike; those of others are
        # told by position.
        self._is_by_name = is_by_name
        self._named: dict[str, Json] = {}

    async def add(self, part: Json) -> None:
        """Adds a partition, field by field, in the order of the first one."""
        for name, value in part.items():
            if name == "publishers":
                await self._add_publishers(value)
            elif name == "subscriptions":
                mine = self.found.setdefault(name, {})
                for each, one in value.items():
                    await self._add_subscription(mine.setdefault(each, {}), one)
            else:
                _add_field(self.found, name, value)
        await self._slices.pause()

    async def _add_publishers(self, part: list[Json]) -> None:
        mine = self.found.setdefault("publishers", [])
        for at, each in enumerate(part):
            if self._is_by_name:
                name = each["producerName"]
                if name not in self._named:
                    self._named[name] = {}
                    mine.append(self._named[name])
                one = self._named[name]
                _add(one, each)
                one["producerName"] = name
            else:
                one = _at(mine, at)
                _add(one, each)
            one["producerId"] = 0
            await self._slices.pause()

    async def _add_subscription(self, mine: Json, part: Json) -> None:
        for name, value in part.items():
            if name != "consumers":
                _add_field(mine, name, value)
                continue
            consumers = mine.setdefault(name, [])
            for at, each in enumerate(value):
                one = _at(consumers, at)
                _add(one, each)
                one["consumerName"] = each["consumerName"]
                await self._slices.pause()
        await self._slices.pause()


def _at(found: list[Json], at: int) -> Json:
    """The one at a position, which is behind the last one at most."""
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
