"""Settings that are marked as dynamic: a running broker goes by the new value, at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from harness.raw import RawConnection

from command_line import Broker, standalone
from one_bookie import turns
from one_broker import Broker as OneBroker
from one_broker import run, section
from pyxbroker.base.errors import MetadataStoreError, TooManyRequests
from pyxbroker.broker.dynamic_settings import DYNAMIC, DynamicSettings
from pyxbroker.metadata.paths import CONFIGURATION
from pyxbroker.metadata.store import MUST_NOT_EXIST
from pyxbroker.mledger.entry_cache import EntryCache
from pyxbroker.policies.table import of_broker
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.settings.config import SCHEMA, Config
from pyxbroker.settings.schema import Setting
from pyxbroker.settings.sections.load_balancing import LoadBalancing

# Runs the command line, and changes one setting when the broker is ready.
CHANGE = """
import asyncio
from pyxbroker.cli import main, serving
from pyxbroker.roles.standalone import Standalone
print_banner = serving._print_banner
def change(config, *arguments):
    setattr(config, {key!r}, {value!r})
    print_banner(config, *arguments)
serving._print_banner = change
if {key!r} == "brokerShutdownTimeoutMs":
    Standalone.stop = lambda self: asyncio.sleep(3600)
main()
"""
DEADLINE_S = 20.0


def rest(broker: Broker, path: str, body: int | None = None) -> tuple[int, str]:
    """Status and text of a GET, or of a PUT with a body, of a topic in public/default."""
    origin = broker.find(r"admin +(http://[^/]+)")
    request = urllib.request.Request(
        f"{origin}/admin/v2/persistent/public/default/{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
        method="GET" if body is None else "PUT",
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def refuses_many_partitions(broker: Broker) -> None:
    status, text = rest(broker, "many/partitions", 3)
    assert (status, "2" in text) == (406, True), text
    assert rest(broker, "few/partitions", 2)[0] == 204


def forgets_the_partitions_of_unused_topics(broker: Broker) -> None:
    assert rest(broker, "p/partitions", 1)[0] == 204
    with RawConnection(broker.broker_port) as connection:
        connection.producer("persistent://public/default/p-partition-0")
        assert json.loads(rest(broker, "p/partitions")[1])["partitions"] == 1
    deadline = time.monotonic() + DEADLINE_S
    while rest(broker, "p/partitions")[0] != 404:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def gives_up_a_stop_at_once(broker: Broker) -> None:
    code, _, err = broker.stop()
    assert code == 1
    assert "did not stop within 0.05 s (brokerShutdownTimeoutMs)" in err


# The new value, and what shows it.
CASES: dict[str, tuple[object, Callable[[Broker], None]]] = {
    "brokerDeleteInactivePartitionedTopicMetadataEnabled": (
        True,
        forgets_the_partitions_of_unused_topics,
    ),
    "brokerShutdownTimeoutMs": (50, gives_up_a_stop_at_once),
    "maxNumPartitionsPerPartitionedTopic": (2, refuses_many_partitions),
}


# Asked for at each use; compat_tests/test_admin_settings.py changes some of them by REST.
AT_EACH_USE = {
    *("forceDeleteNamespaceAllowed", "forceDeleteTenantAllowed"),
    *("maxTenants", "maxNamespacesPerTenant", "defaultNumberOfNamespaceBundles"),
    *("maxConcurrentLookupRequest", "namespaceBundleUnloadingTimeoutMs"),
}
# Asked for at each decision of a leader; tests/test_shedding.py changes some of them.
OF_LEADERS = {key for key, row in LoadBalancing.rows.items() if row.dynamic}
# What the broker does when they change.
ON_CHANGE = {
    *("brokerPublisherThrottlingMaxMessageRate", "brokerPublisherThrottlingMaxByteRate"),
    *("dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte"),
    *("maxConcurrentTopicLoadRequest", "maxMessagePublishBufferSizeInMB"),
    *("managedLedgerCacheSizeMB", "managedLedgerCacheEvictionWatermark"),
    *("managedLedgerCacheEvictionTimeThresholdMillis", "superUserRoles"),
}


def of_policies() -> set[str]:
    """The settings that say what holds where no other level says anything."""
    seen = set()

    class Noting(Config):
        def __getattribute__(self, name: str) -> object:
            seen.add(name)
            return super().__getattribute__(name)

    of_broker(Noting())
    return seen & set(SCHEMA)


def test_every_dynamic_setting_has_a_case() -> None:
    dynamic = {key for key, row in SCHEMA.items() if row.dynamic}
    assert dynamic - of_policies() == set(CASES) | AT_EACH_USE | ON_CHANGE | OF_LEADERS


def test_the_limits_of_the_entry_cache_follow_the_settings(tmp_path: Path) -> None:
    async def scenario(broker: OneBroker) -> None:
        cache = broker.service.entry_cache = EntryCache(1)
        config = broker.service.config
        config.managedLedgerCacheSizeMB = 3
        config.managedLedgerCacheEvictionTimeThresholdMillis = 250
        config.managedLedgerCacheEvictionWatermark = 0.5
        broker.service._on_settings()
        assert (cache.bytes_max, cache.age_max_s, cache.watermark) == (3 << 20, 0.25, 0.5)

    run(tmp_path, scenario)


async def follow(broker: OneBroker) -> None:
    """Each setting of a policy reaches a topic that is open, and goes again."""
    topic = await broker.topic()
    config = broker.topics._config
    settings = DynamicSettings(
        config, broker.node.store, broker.service.stored_records, broker.topics.on_settings
    )
    await settings.open()
    before = topic.policies
    for name in sorted(of_policies() & set(DYNAMIC)):
        row = DYNAMIC[name]
        others = [each for each in (*row.choices, "true", "false", "7", "9") if usable(row, each)]
        if row.kind == "str" and not row.choices:
            others = ["Shared"]
        text = next(each for each in others if row.parse(each) != getattr(config, name))
        await settings.set(name, text)
        assert getattr(config, name) == row.parse(text)
        if name not in TOGETHER:
            await until(lambda: topic.policies != before, name)
        assert (await settings.values()) == {name: text}
        await settings.remove(name)
        await until(lambda: topic.policies == before, name)
    await settings.close()


# Those that say nothing alone: a period without a rate, a number of partitions of plain topics.
TOGETHER = {
    *("subscribeRatePeriodPerConsumerInSecond", "defaultNumPartitions"),
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
}


def usable(row: Setting, text: str) -> bool:
    try:
        row.parse(text)
    except (KeyError, ValueError):
        return False
    return True


async def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


def test_open_topics_go_by_what_is_set(tmp_path: Path) -> None:
    run(tmp_path, follow)


def test_what_cannot_be_used_in_metadata_changes_nothing(tmp_path: Path) -> None:
    async def scenario(broker: OneBroker) -> None:
        store, config = broker.node.store, broker.topics._config
        changes: list[str] = []
        records = broker.service.stored_records
        settings = DynamicSettings(config, store, records, lambda: changes.append("changed"))
        for value in (
            b"no JSON",
            b"[]",
            b'{"maxTenants":"many","maxTopicsPerNamespace":5,"x":"y"}',
        ):
            found = await store.get(CONFIGURATION)
            await store.put(
                CONFIGURATION, value, MUST_NOT_EXIST if found is None else found.version
            )
            await settings.open()
            assert (config.maxTenants, config.maxTopicsPerNamespace, changes) == (0, 0, [])
            await settings.close()
        # Somebody else changes it: it is in force without being asked for.
        await settings.open()
        found = await store.get(CONFIGURATION)
        assert found is not None
        await store.put(CONFIGURATION, b'{"maxTenants":"5"}', found.version)
        await until(lambda: config.maxTenants == 5 and changes == ["changed"], "maxTenants")
        await settings.close()

    run(tmp_path, scenario)


def test_a_start_warns_of_settings_that_rest_has_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: OneBroker) -> None:
        store, records = broker.node.store, broker.service.stored_records
        await store.put(CONFIGURATION, b'{"maxTenants":"3"}', MUST_NOT_EXIST)
        settings = DynamicSettings(broker.topics._config, store, records, lambda: None)
        await settings.open()
        assert broker.topics._config.maxTenants == 3
        await settings.close()

    run(tmp_path, scenario)
    [warning] = [each for each in caplog.records if "override those of the start" in each.message]
    assert warning.levelname == "WARNING"


@pytest.mark.parametrize("value", [b"no JSON", b"[]"])
def test_what_cannot_be_read_in_metadata_is_not_written_over(tmp_path: Path, value: bytes) -> None:
    async def scenario(broker: OneBroker) -> None:
        store = broker.node.store
        records = broker.service.stored_records
        settings = DynamicSettings(broker.topics._config, store, records, lambda: None)
        await store.put(CONFIGURATION, value, MUST_NOT_EXIST)
        for change in (settings.set("maxTenants", "5"), settings.remove("maxTenants")):
            with pytest.raises(MetadataStoreError, match="cannot be read"):
                await change
        with pytest.raises(MetadataStoreError, match="cannot be read"):
            await settings.values()
        found = await store.get(CONFIGURATION)
        assert found is not None
        assert (found.value, found.version) == (value, 0)
        assert broker.topics._config.maxTenants == 0

    run(tmp_path, scenario)


@contextlib.asynccontextmanager
async def changing(broker: OneBroker) -> AsyncIterator[DynamicSettings]:
    settings = broker.service.dynamic_settings
    await settings.open()
    yield settings
    await settings.close()


def test_settings_and_other_records_of_a_broker_are_changed_in_the_same_turns(
    tmp_path: Path,
) -> None:
    async def scenario(broker: OneBroker) -> None:
        assert broker.service.dynamic_settings._records is broker.service.stored_records

    run(tmp_path, scenario)


def test_rates_of_the_broker_hold_for_open_topics_as_they_change(tmp_path: Path) -> None:
    async def scenario(broker: OneBroker) -> None:
        client = await broker.client()
        await client.subscribe()
        await client.produce()
        topic = await broker.topic()
        unlimited = topic.publish
        throttle = topic.subscriptions["s"].dispatcher
        async with changing(broker) as settings:
            await settings.set("brokerPublisherThrottlingMaxMessageRate", "1")
            await settings.set("dispatchThrottlingRateInMsg", "1")
            await until(lambda: topic.publish != unlimited, "published")
            await until(lambda: throttle.throttle is not None, "sent")
            for sequence_id in range(4):
                command = pb.CommandSend(producer_id=1, sequence_id=sequence_id)
                client.send(command, section(b"m"))
                await turns()
            await until(lambda: topic.publish_rate_limited > 0, "held back")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.messages(4), 0.3)
            await settings.set("brokerPublisherThrottlingMaxMessageRate", "1000")
            await settings.set("dispatchThrottlingRateInMsg", "1000")
            await asyncio.wait_for(client.receive("send_receipt"), 5)
            await settings.remove("brokerPublisherThrottlingMaxMessageRate")
            await settings.remove("dispatchThrottlingRateInMsg")
            await until(lambda: topic.publish == unlimited, "published")
            await until(lambda: throttle.throttle is None, "sent")
            assert broker.topics.broker_limits.publish is None
            assert broker.topics.broker_limits.dispatch is None

    run(tmp_path, scenario)


def test_who_waits_for_a_rate_goes_on_when_it_is_taken_away(tmp_path: Path) -> None:
    async def scenario(broker: OneBroker) -> None:
        client = await broker.client()
        await client.produce(producer_name="p")
        async with changing(broker) as settings:
            await settings.set("brokerPublisherThrottlingMaxByteRate", "1")
            topic = await broker.topic()
            await until(lambda: topic.producers["p"].run_bytes_max == 1, "cut")
            for sequence_id in range(3):
                command = pb.CommandSend(producer_id=1, sequence_id=sequence_id)
                client.send(command, section(bytes(100)))
                await turns()
            await until(lambda: topic.publish_rate_limited > 0, "held back")
            await settings.remove("brokerPublisherThrottlingMaxByteRate")
            for _ in range(3):
                await asyncio.wait_for(client.receive("send_receipt"), 5)

    run(tmp_path, scenario)


def test_numbers_of_what_is_under_way_and_waits_follow(tmp_path: Path) -> None:
    async def scenario(broker: OneBroker) -> None:
        service = broker.service
        async with changing(broker) as settings:
            with service.handlers._lookups:
                await settings.set("maxConcurrentLookupRequest", "1")
                with pytest.raises(TooManyRequests, match="1 lookups are in progress"):
                    service.handlers._lookups.__enter__()
                await settings.set("maxConcurrentLookupRequest", "2")
                with service.handlers._lookups:
                    pass
            await settings.set("maxConcurrentTopicLoadRequest", "3")
            assert broker.topics.loader._loading._value == 3
            await settings.set("maxMessagePublishBufferSizeInMB", "5")
            assert service.connections.publish_bytes_max == 5 << 20
            await settings.remove("maxMessagePublishBufferSizeInMB")
            assert service.connections.publish_bytes_max == 64 << 20

    run(tmp_path, scenario)


def test_the_next_look_comes_by_the_interval_that_is_set_meanwhile(tmp_path: Path) -> None:
    async def scenario(broker: OneBroker) -> None:
        looks = 0

        async def look() -> None:
            nonlocal looks
            looks += 1

        config = broker.service.config
        async with changing(broker) as settings:
            await settings.set("brokerDeleteInactiveTopicsFrequencySeconds", "3600")
            name = "brokerDeleteInactiveTopicsFrequencySeconds"
            broker.service.repeat("it", lambda: getattr(config, name) / 10, look)
            await asyncio.sleep(0.2)
            assert looks == 0
            await settings.set(name, "1")
            await until(lambda: looks >= 2, "looks")
            await settings.set(name, "3600")
            seen = looks
            await asyncio.sleep(0.2)
            assert looks <= seen + 1

    run(tmp_path, scenario)


@pytest.mark.parametrize("key", CASES)
def test_a_dynamic_setting_has_its_effect_while_the_broker_runs(tmp_path: Path, key: str) -> None:
    value, shows = CASES[key]
    command = [sys.executable, "-c", CHANGE.format(key=key, value=value)]
    often = ("--set", "brokerDeleteInactiveTopicsFrequencySeconds=1")
    with standalone(tmp_path / "data", *often, command=command) as broker:
        shows(broker)
