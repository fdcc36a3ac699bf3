"""What either broker tells of topics after histories that leave traces (BROKER=apache asks Pulsar).

Every object has exactly the fields that Pulsar's has, but for what FIELDS tells; EXPECTED has
values that hold for both, as Apache Pulsar 4.2.4 tells them. Not compared is what this broker
does not count: what a compaction reads as delivered to it; and msgChunkPublished, which is false
there after chunks, too.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker

from compat_tests.stats_scenes import PERSISTENT, SCENES, Json, Scene, told
from compat_tests.test_admin_statistics import (
    OF_CONSUMER,
    OF_CURSOR,
    OF_LEDGER,
    OF_LEDGERS,
    OF_PUBLISHER,
    OF_STORED_TOPIC,
    OF_SUBSCRIPTION,
    SLOWEST,
)

SOME = object()
"""More than nothing; how much depends on the time that the history takes."""

EXPECTED: dict[str, Json] = {
    "chunks": {
        **{"msgInCounter": 9, "msgOutCounter": 9, "s.msgBacklog": 3, "s.msgOutCounter": 9},
    },
    "expiry": {
        **{"msgInCounter": 5, "s.msgBacklog": 1, "s.totalMsgExpired": 4},
        "s.lastExpireTimestamp": SOME,
    },
    "throttled": {"msgInCounter": 30, "s.dispatchThrottledMsgEventsBySubscriptionLimit": SOME},
    "throttled_topic": {"msgInCounter": 30, "s.dispatchThrottledBytesEventsByTopicLimit": SOME},
    "delayed": {
        **{"msgInCounter": 4, "s.msgBacklog": 4, "s.msgDelayed": 3, "s.msgBacklogNoDelayed": 1},
        **{"s.unackedMessages": 1, "s.delayedMessageIndexSizeInBytes": SOME},
        "delayedMessageIndexSizeInBytes": SOME,
    },
    "schema_and_compaction": {
        **{"msgInCounter": 6, "s.msgBacklog": 6, "__compaction.msgBacklog": 0},
        "compaction.lastCompactionSucceedTimestamp": SOME,
        "compaction.lastCompactionRemovedEventCount": 4,
        "compaction.lastCompactionFailedTimestamp": 0,
    },
    "deduplicated": {
        **{"deduplicationStatus": "Enabled", "msgInCounter": 4, "s.msgBacklog": 1},
        **{"s.unackedMessages": 4, "s.msgOutCounter": 4},
    },
    "draining": {
        **{"msgInCounter": 40, "s.msgBacklog": 34, "s.nonContiguousDeletedMessagesRanges": 1},
        **{"s.keySharedMode": "AUTO_SPLIT", "s.drainingHashesCount": 1},
        **{"s.drainingHashesClearedTotal": 2, "s.drainingHashesUnackedMessages": 2},
    },
}
LIMITED = {
    "throttled": {"s.dispatchThrottledMsgEventsBySubscriptionLimit"},
    "throttled_topic": {"s.dispatchThrottledBytesEventsByTopicLimit"},
}
"""The only counter of being held back that is not 0."""

FIELDS: dict[str, str] = {
    SLOWEST: "times: Apache Pulsar looks for it each minute, this broker when it is asked",
    "activeConsumerName": "states: of a consumer that is there",
    "keySharedMode": "states: of Key_Shared",
}
KEY_SHARED = {"drainingHashes", "keyHashRangeArrays"}
CURSORS = {"pulsar.dedup": "formats: Apache Pulsar makes it at once, this broker with the first"
           " snapshot of sequence ids"}  # fmt: skip


@pytest.fixture(scope="module")
def found(broker: Broker) -> dict[str, tuple[Json, Json]]:
    """(stats, internal stats) of each topic while its clients are there."""

    def play(scene: Scene) -> tuple[str, tuple[Json, Json]]:
        name = scene.__name__
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(broker.url, logger=logger)
        try:
            scene(broker, client, name)
            path = f"{PERSISTENT}/{name}"
            return name, (told(broker, f"{path}/stats"), told(broker, f"{path}/internalStats"))
        finally:
            client.close()

    with ThreadPoolExecutor(len(SCENES)) as pool:
        return dict(pool.map(play, SCENES))


def value_of(stats: Json, path: str) -> Any:
    """A field of the topic, of an object in it or of a subscription."""
    *owner, field = path.split(".")
    if not owner:
        return stats[field]
    return (stats["subscriptions"].get(owner[0]) or stats[owner[0]])[field]


@pytest.mark.parametrize("name", EXPECTED)
def test_every_object_has_the_fields_of_pulsars(
    found: dict[str, tuple[Json, Json]], name: str
) -> None:
    stats, internal = found[name]
    assert set(stats) - set(FIELDS) == OF_STORED_TOPIC
    assert all(set(each) == OF_PUBLISHER for each in stats["publishers"])
    for subscription in stats["subscriptions"].values():
        assert set(subscription) - set(FIELDS) == OF_SUBSCRIPTION
        of_kind = KEY_SHARED if subscription["type"] == "Key_Shared" else set()
        assert all(set(each) == OF_CONSUMER | of_kind for each in subscription["consumers"])
    assert set(internal) == OF_LEDGERS
    assert all(set(each) == OF_LEDGER for each in internal["ledgers"])
    assert set(internal["compactedLedger"]) == OF_LEDGER
    assert all(set(each) == OF_LEDGER for each in internal["schemaLedgers"])
    assert all(set(each) == OF_CURSOR for each in internal["cursors"].values())
    assert set(internal["cursors"]) - set(CURSORS) == set(stats["subscriptions"])
    assert len(internal["schemaLedgers"]) == (name == "schema_and_compaction")


@pytest.mark.parametrize("name", EXPECTED)
def test_values_are_those_of_pulsar(found: dict[str, tuple[Json, Json]], name: str) -> None:
    stats, _ = found[name]
    for path, expected in EXPECTED[name].items():
        value = value_of(stats, path)
        assert value > 0 if expected is SOME else value == expected, path


@pytest.mark.parametrize("name", EXPECTED)
def test_who_is_held_back_is_counted_by_its_limit(
    found: dict[str, tuple[Json, Json]], name: str
) -> None:
    stats, _ = found[name]
    counted = {
        f"{subscription}.{field}"
        for subscription, each in stats["subscriptions"].items()
        for field, value in each.items()
        if field.startswith("dispatchThrottled") and value
    }
    assert counted == LIMITED.get(name, set())


def test_the_compacted_ledger_and_that_of_the_schema_are_told(
    found: dict[str, tuple[Json, Json]],
) -> None:
    _, internal = found["schema_and_compaction"]
    assert internal["compactedLedger"]["entries"] == 2
    assert internal["compactedLedger"]["ledgerId"] >= 0
    [schema] = internal["schemaLedgers"]
    assert (schema["entries"], schema["size"] > 0) == (1, True)


@pytest.mark.standalone
@pytest.mark.pyxbroker
def test_a_start_without_syncs_warns_of_losses(own_broker: Any) -> None:
    broker = own_broker(settings={"journalSyncData": "false"})
    broker.start()
    assert "a power cut loses messages that were acknowledged" in broker.output()
