"""A disk that is full: what is refused, what goes on, and that it ends by itself."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker, BrokerFailed
from harness.small_disk import SmallDisk, small_disk

from compat_tests.conftest import AnyClient, BrokerFactory, ClientFactory
from compat_tests.messages import payload

pytestmark = [pytest.mark.pyxbroker, pytest.mark.standalone]

SIZE = 10_000
PENDING_MAX = 1_000
SETTINGS = {
    "journalMaxSizeMB": "8",
    "dbStorage_writeCacheMaxSizeMb": "2",
    "dbStorage_readAheadCacheMaxSizeMb": "2",
    "maxMessageSize": "100000",
    "diskReserveSizeMB": "8",
    "diskCheckInterval": "200",
    "storageUnavailableTimeoutMs": "1500",
}
HEALTH = "/admin/v2/brokers/health"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path, 128) as one:
        yield one


@pytest.fixture
def full_broker(disk: SmallDisk, own_broker: BrokerFactory) -> Iterator[Broker]:
    """A broker whose data is on the small disk; it is gone before the disk is unmounted."""
    broker = own_broker(settings=SETTINGS)
    broker.data = disk.path / "data"
    broker.start()
    yield broker
    broker.kill()


def until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> float:
    """Waits for a condition; the seconds that took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)
    return time.monotonic() - started


def is_healthy(broker: Broker) -> bool:
    return broker.http_status(HEALTH) == 200


def reserves(path: Path) -> list[int]:
    """Bytes of the reserves on a disk."""
    return [each.stat().st_blocks * 512 for each in path.rglob("reserve")]


def publish(client: AnyClient, topic: str, count: int) -> None:
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for number in range(count):
        producer.send_async(payload(number, SIZE), None)
    producer.flush()
    producer.close()


def fill_by_publishing(client: AnyClient, topic: str) -> None:
    """Publishes until a send is refused."""
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    answers: list[Any] = []
    sent = 0
    while all(each == pulsar.Result.Ok for each in answers[-PENDING_MAX:]):
        producer.send_async(payload(sent, SIZE), lambda result, position: answers.append(result))
        sent += 1
        while sent - len(answers) > PENDING_MAX:
            time.sleep(0.01)
        assert sent < 20_000, "the disk never became full"


def receive_all(consumer: Any) -> list[pulsar.Message]:
    got = []
    while True:
        try:
            got.append(consumer.receive(timeout_millis=1500))
        except pulsar.Timeout:
            return got


def name_of(topic: str) -> str:
    return topic.removeprefix("persistent://")


def is_refused(client: AnyClient, topic: str) -> bool:
    """Whether a producer is refused because nothing can be stored."""
    try:
        client.create_producer(topic).close()
    except pulsar.ProducerBlockedQuotaExceededException:
        return True
    return False


def metric(broker: Broker, name: str) -> float:
    text = urllib.request.urlopen(f"{broker.web_url}/metrics").read().decode()
    lines = [line for line in text.splitlines() if line.startswith(name)]
    assert lines, f"no series {name}"
    return float(lines[0].rpartition(" ")[2])


def test_on_a_disk_that_others_filled_deleting_acknowledging_and_a_restart_work(
    disk: SmallDisk, full_broker: Broker, new_client: ClientFactory, topic: str
) -> None:
    broker, doomed = full_broker, topic + "-doomed"
    client = new_client(broker.url)
    for each in (topic, doomed):
        client.subscribe(each, "s").close()
        publish(client, each, 1000)
    client.close()
    broker.stop()  # which flushes: what is deleted later is in entry logs, and frees their space
    broker.start()
    client = new_client(broker.url)
    consumer = client.subscribe(topic, "s")
    until(lambda: sum(reserves(disk.path)) >= 8 << 20, "a reserve")
    received = receive_all(consumer)
    assert len(received) == 1000

    disk.fill()
    until(lambda: not is_healthy(broker), "health says that the disk is full")
    status, answer = broker.rest("GET", HEALTH)
    assert status == 503
    assert "The disk of the storage is full" in answer["reason"]
    assert metric(broker, "bookie_SERVER_STATUS") == 0
    assert metric(broker, "bookie_disk_free_bytes") < 20 << 20, "less than is needed"

    assert broker.rest("DELETE", f"/admin/v2/persistent/{name_of(doomed)}")[0] == 204
    consumer.acknowledge_cumulative(received[499])
    consumer.close()
    client.close()
    # What the deleted topic took is free; not even that is left to a restart.
    until(lambda: disk.free_bytes() > 8 << 20, "the space of the deleted topic")
    until(lambda: sum(reserves(disk.path)) >= 8 << 20, "the reserve again")
    disk.fill()
    assert broker.stop() == 0, broker.output()
    broker.start()
    assert not is_healthy(broker)

    client = new_client(broker.url)
    consumer = client.subscribe(topic, "s")
    again = receive_all(consumer)
    assert [each.data() for each in again] == [each.data() for each in received[500:]]
    until(lambda: is_refused(client, topic), "producers are refused")

    disk.clear()
    until(lambda: is_healthy(broker), "health after others have freed space")
    assert metric(broker, "bookie_SERVER_STATUS") == 1
    client.create_producer(topic).send(b"goes on")
    assert consumer.receive(timeout_millis=5000).data() == b"goes on"


def test_a_disk_filled_by_publishing_fails_sends_and_acknowledging_frees_it(
    full_broker: Broker, new_client: ClientFactory, topic: str
) -> None:
    broker = full_broker
    client = new_client(broker.url)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, batching_enabled=False, block_if_queue_full=True, send_timeout_millis=60_000
    )
    stored, refused = [], []

    def on_answer(result: Any, position: Any) -> None:
        (stored if result == pulsar.Result.Ok else refused).append(result)

    bodies_sent: list[bytes] = []
    while not refused:
        bodies_sent.append(payload(len(bodies_sent), SIZE))
        producer.send_async(bodies_sent[-1], on_answer)
        # No client holds so much back by itself that a full disk shows in time.
        while not refused and len(bodies_sent) - len(stored) > PENDING_MAX:
            time.sleep(0.01)
        assert len(bodies_sent) < 20_000, "the disk never became full"
    assert set(refused) == {pulsar.Result.ProducerBlockedQuotaExceededException}
    assert broker.http_status(HEALTH) == 503
    until(lambda: metric(broker, "bookie_ADD_ENTRY_REJECTED_total") > 0, "refused sends")

    # The consumer is on the same connection, and is served: all that was answered comes, in order.
    received = receive_all(consumer)
    bodies = [each.data() for each in received]
    assert bodies == bodies_sent[: len(bodies)] and len(bodies) >= len(stored)
    consumer.acknowledge_cumulative(received[-1])
    until(lambda: is_healthy(broker), "space after everything was acknowledged")

    def goes_on() -> bool:
        try:
            producer.send(b"goes on")
        except pulsar.ProducerBlockedQuotaExceededException:
            return False
        return True

    until(goes_on, "publishing by the same producer", 30.0)
    # What was sent after the refusal and waited in the client comes first, in its order.
    late = [each.data() for each in receive_all(consumer)]
    assert late.pop() == b"goes on"
    numbers = [bodies_sent.index(each) for each in late]
    assert numbers == sorted(set(numbers)) and all(each >= len(stored) for each in numbers)


def test_on_a_small_disk_deleting_the_only_topic_lets_publishing_go_on(
    tmp_path: Path, own_broker: BrokerFactory, new_client: ClientFactory, topic: str
) -> None:
    # A quarter above what these settings need: three journal files would be too many.
    with small_disk(tmp_path, 62) as disk:
        broker = own_broker(settings=SETTINGS)
        broker.data = disk.path / "data"
        try:
            broker.start()
            for number in range(2):
                client = new_client(broker.url)
                client.subscribe(topic, "s").close()
                fill_by_publishing(client, topic)
                until(lambda: not is_healthy(broker), "health says that the disk is full")
                client.close()
                deleted = broker.rest("DELETE", f"/admin/v2/persistent/{name_of(topic)}?force=true")
                assert deleted[0] == 204, number
                until(lambda: is_healthy(broker), "health after the topic was deleted", 15.0)
            client = new_client(broker.url)
            client.create_producer(topic).send(b"goes on")
            client.close()
        finally:
            broker.kill()


def test_a_file_system_that_is_too_small_is_refused_for_new_data_only(
    tmp_path: Path, own_broker: BrokerFactory
) -> None:
    with small_disk(tmp_path, 40) as disk:
        broker = own_broker(settings=SETTINGS)
        broker.data = disk.path / "data"
        sentence = f"The file system of {broker.data}/bookie/ledgers has "
        try:
            with pytest.raises(BrokerFailed, match="ended with 1"):
                broker.start()
            assert sentence in broker.output()
            assert "needs at least 43 MiB there" in broker.output()
            broker.settings = SETTINGS | {"journalMaxSizeMB": "1", "maxMessageSize": "10000"}
            broker.start()
            assert broker.stop() == 0
            broker.settings = SETTINGS
            broker.start()
            assert "a file system is too small" in broker.output()
        finally:
            broker.kill()


def test_a_full_disk_of_the_metadata_alone_refuses_publishing_and_lets_topics_be_deleted(
    tmp_path: Path, own_broker: BrokerFactory, new_client: ClientFactory, topic: str
) -> None:
    with small_disk(tmp_path, 64) as disk:
        url = f"embedded:{disk.path}/metadata"
        broker = own_broker(settings=SETTINGS | {"metadataStoreUrl": url})
        try:
            broker.start()
            client = new_client(broker.url)
            consumer = client.subscribe(topic, "s")
            publish(client, topic, 100)
            received = receive_all(consumer)
            until(lambda: sum(reserves(disk.path)) > 0, "a reserve")
            disk.fill()
            until(lambda: not is_healthy(broker), "health says that the disk is full")
            # Anybody may ask for it: the place is told by the log, which the reference finds.
            reason = broker.rest("GET", HEALTH)[1]["reason"]
            assert "The disk of the storage is full" in reason
            assert str(disk.path) not in reason
            reference = reason.rpartition("reference ")[2].strip(".) ")
            lines = [line for line in broker.output(1 << 20).splitlines() if reference in line]
            assert reference and any(str(disk.path) in line for line in lines)
            until(lambda: is_refused(client, topic), "producers are refused")
            consumer.acknowledge_cumulative(received[-1])
            consumer.close()
            for number in range(20):
                made = f"/admin/v2/persistent/{name_of(topic)}-{number}"
                assert broker.rest("PUT", made)[0] == 204
                assert broker.rest("DELETE", made)[0] == 204
            assert broker.stop() == 0, broker.output()
            broker.start()
            client = new_client(broker.url)
            assert receive_all(client.subscribe(topic, "s")) == []
            assert (
                broker.rest("DELETE", f"/admin/v2/persistent/{name_of(topic)}?force=true")[0] == 204
            )
            disk.clear()
            until(lambda: is_healthy(broker), "health after others have freed space")
            client.create_producer(topic).send(b"goes on")
            client.close()
        finally:
            broker.kill()
