"""What a task of the Spark connector reads: plans and ranges on a real broker, without Spark."""

from __future__ import annotations

import json
import time
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker
from tests.oracles.columns import Row, rows_of

from compat_tests.conftest import BrokerFactory, official_client
from compat_tests.messages import CODECS
from pyxbroker.spark import plan, range_reader
from pyxbroker.spark.errors import (
    DataLost,
    NotReachable,
    PulsarSparkError,
    TopicMissing,
    WrongOption,
)
from pyxbroker.spark.options import BATCH, STREAM, Options
from pyxbroker.spark.range_reader import RangeReader


def options_of(broker: Broker, role: str = BATCH, **more: str) -> Options:
    given = {"service.url": broker.url} | {
        key.replace("_", "."): each for key, each in more.items()
    }
    return Options(role, given)


def plan_of(options: Options) -> list[plan.Range]:
    ends = plan.ends_of(options)
    begins = plan.without_lost(options, plan.starts_of(options, ends), ends)
    origins = plan.origins_of(begins, ends)
    return plan.ranges_of(options, begins, plan.stops_of(options, ends), origins=origins)


def read(options: Options, wanted: plan.Range) -> list[Row]:
    reader = RangeReader(options, wanted)
    try:
        return [each for filled in reader for each in rows_of(filled)]
    finally:
        reader.close()


def read_all(broker: Broker, **more: str) -> list[Row]:
    options = options_of(broker, **more)
    return [each for wanted in plan_of(options) for each in read(options, wanted)]


def values(reads: list[Row]) -> list[Any]:
    return [each.payload for each in reads]


def publish(
    client: pulsar.Client, topic: str, count: int, bytes_min: int = 0, **settings: Any
) -> list[bytes]:
    """Sends so many messages, seven in a batch."""
    # Else the client refuses what its queue has no room for.
    waits = {"block_if_queue_full": True}
    batches = {"batching_enabled": True, "batching_max_messages": 7}
    settings = waits | batches | settings
    producer = client.create_producer(topic, **settings)
    sent = [(b"message %d" % number).ljust(bytes_min) for number in range(count)]
    for each in sent:
        producer.send_async(each, None)
    producer.flush()
    producer.close()
    return sent


@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_every_codec_are_read(
    broker: Broker, client: pulsar.Client, topic: str, codec: str
) -> None:
    sent = publish(client, topic, 100, compression_type=CODECS[codec])
    assert values(read_all(broker, topic=topic)) == sent


def test_what_comes_with_a_message(broker: Broker, client: pulsar.Client, topic: str) -> None:
    before = time.time_ns() // 1_000_000
    producer = client.create_producer(topic)
    producer.send(
        b"one",
        partition_key="key",
        properties={"a": "1", "b": "2"},
        event_timestamp=1_700_000_000_123,
    )
    producer.send(None)
    one, tombstone = read_all(broker, topic=topic)
    assert one.key == b"key"
    assert one.properties == [("a", "1"), ("b", "2")]
    assert one.event_time == 1_700_000_000_123_000
    assert before - 1000 <= one.publish_time // 1000 <= time.time_ns() // 1_000_000 + 1000
    assert tombstone.payload is None
    assert tombstone.key is None and tombstone.event_time is None


def test_ranges_have_all_messages_once(broker: Broker, client: pulsar.Client, topic: str) -> None:
    sent = publish(client, topic, 500)
    options = options_of(broker, topic=topic, bytesPerTask="1k", admin_url=broker.web_url)
    ranges = plan_of(options)
    assert len(ranges) > 5
    assert [values(read(options, each)) for each in ranges if not read(options, each)] == []
    assert values([each for wanted in ranges for each in read(options, wanted)]) == sent


def test_chunks_are_put_together_wherever_ranges_are_cut(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    producers = [client.create_producer(topic, chunking_enabled=True) for _ in range(2)]
    sent = [bytes([number]) * (12 << 20 if number % 2 else 3 << 20) for number in range(6)]
    for number, each in enumerate(sent):
        producers[number % 2].send(each)
    options = options_of(broker, topic=topic, bytesPerTask="1m", admin_url=broker.web_url)
    ranges = plan_of(options)
    assert len(ranges) > 10
    assert values([each for wanted in ranges for each in read(options, wanted)]) == sent


def test_offsets_are_messages_the_first_and_the_last_that_are_read(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    sent = publish(client, topic, 50)
    reads = read_all(broker, topic=topic)
    for number in (0, 6, 7, 24, 49):
        text = str(reads[number].position)
        start = json.dumps({topic: text})
        assert values(read_all(broker, topic=topic, startingOffsets=start)) == sent[number:]
        assert values(read_all(broker, topic=topic, endingOffsets=start)) == sent[: number + 1]


def test_message_ids_of_clients_are_offsets(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number) for number in range(5)]
    start = json.dumps({topic: list(ids[3].serialize())})
    assert values(read_all(broker, topic=topic, startingOffsets=start)) == [b"3", b"4"]


def test_partitions_are_topics_of_their_own(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    path = topic.replace("://", "/")
    assert broker.rest("PUT", f"/admin/v2/{path}/partitions", 3)[0] == 204
    sent = publish(client, topic, 100)
    options = options_of(broker, topic=topic)
    assert [each.topic for each in plan_of(options)] == [f"{topic}-partition-{n}" for n in range(3)]
    assert sorted(values(read_all(broker, topic=topic))) == sorted(sent)
    one = values(read_all(broker, topic=f"{topic}-partition-1"))
    assert one and set(one) < set(sent)


def test_several_topics_and_those_that_match(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    for number in range(3):
        publish(client, f"{topic}-several-{number}", 10 + number)
    named = f"{topic}-several-0,{topic}-several-2"
    assert len(read_all(broker, topics=named)) == 22
    assert len(read_all(broker, topicsPattern=f"{topic}-several-[01]")) == 21
    with pytest.raises(TopicMissing, match="no topic of public/default matches"):
        read_all(broker, topicsPattern="public/default/there-is-none-.*")


def test_an_empty_topic_has_nothing(broker: Broker, client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic).close()
    assert read_all(broker, topic=topic) == []
    assert read_all(broker, topic=topic, admin_url=broker.web_url) == []


def test_a_topic_that_is_missing_is_said_and_not_made(broker: Broker, topic: str) -> None:
    with pytest.raises(TopicMissing, match=f"there is no topic {topic}"):
        read_all(broker, topic=topic)
    _, names = broker.rest("GET", "/admin/v2/persistent/public/default")
    assert topic not in names


def test_a_reader_leaves_no_subscription(broker: Broker, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, 10)
    assert len(read_all(broker, topic=topic)) == 10
    path = topic.replace("://", "/")
    assert broker.rest("GET", f"/admin/v2/{path}/subscriptions") == (200, [])


# --- trouble --------------------------------------------------------------------------------------


def test_nobody_at_the_service_url_is_told_at_once(topic: str) -> None:
    options = Options(BATCH, {"service.url": "pulsar://127.0.0.1:1", "topic": topic})
    before = time.monotonic()
    with pytest.raises(NotReachable, match=r"no broker answers at pulsar://127\.0\.0\.1:1: "):
        plan_of(options)
    assert time.monotonic() - before < 5


def test_nobody_at_the_admin_url_is_told(broker: Broker, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, 1)
    with pytest.raises(
        NotReachable, match=r"no web port answers at admin\.url http://127\.0\.0\.1:1"
    ):
        read_all(broker, topic=topic, admin_url="http://127.0.0.1:1")


def test_what_was_deleted_is_told_or_passed_over(own_broker: BrokerFactory, topic: str) -> None:
    broker = own_broker()
    broker.start()
    path = f"/admin/v2/{topic.replace('://', '/')}"
    client = official_client(broker.url)
    try:
        publish(client, topic, 20)
        begin = str(read_all(broker, topic=topic)[3].position)
        assert broker.rest("PUT", f"{path}/unload")[0] == 204
        publish(client, topic, 10)
        assert broker.rest("DELETE", f"{path}/truncate")[0] == 204
        left = publish(client, topic, 10)
        start = json.dumps({topic: begin})
        with pytest.raises(DataLost, match="were deleted, or may have been") as caught:
            read_all(broker, topic=topic, startingOffsets=start)
        assert "failOnDataLoss=false" in str(caught.value)
        found = read_all(broker, topic=topic, startingOffsets=start, failOnDataLoss="false")
        assert values(found)[-len(left) :] == left
        assert values(read_all(broker, topic=topic)) == values(found)
    finally:
        client.close()


def test_a_range_whose_messages_are_deleted_meanwhile_ends(
    own_broker: BrokerFactory, topic: str
) -> None:
    broker = own_broker()
    broker.start()
    path = f"/admin/v2/{topic.replace('://', '/')}"
    client = official_client(broker.url)
    try:
        publish(client, topic, 20)
        (wanted,) = plan_of(options_of(broker, topic=topic))
        assert broker.rest("PUT", f"{path}/unload")[0] == 204
        publish(client, topic, 1)
        assert broker.rest("DELETE", f"{path}/truncate")[0] == 204
        with pytest.raises(DataLost):
            read(options_of(broker, topic=topic), wanted)
        assert read(options_of(broker, topic=topic, failOnDataLoss="false"), wanted) == []
    finally:
        client.close()


def test_a_broker_that_starts_again_is_read_on(own_broker: BrokerFactory, topic: str) -> None:
    broker = own_broker()
    broker.start()
    client = official_client(broker.url)
    # More than sockets hold: most of it is still to come when the broker goes.
    sent = publish(client, topic, 8_000, bytes_min=8 << 10)
    client.close()
    options = options_of(broker, topic=topic)
    (wanted,) = plan_of(options)
    reader = RangeReader(options, wanted)
    found: list[Row] = []
    for filled in reader:
        if not found:
            broker.kill()
            broker.start()
        found += rows_of(filled)
    reader.close()
    assert values(found) == sent


def test_a_task_that_was_let_wait_by_spark_looks_for_its_broker_as_long_as_others(
    own_broker: BrokerFactory, topic: str
) -> None:
    broker = own_broker()
    broker.start()
    client = official_client(broker.url)
    sent = publish(client, topic, 8_000, bytes_min=8 << 10)
    client.close()
    options = options_of(broker, topic=topic, pulsar_client_operationTimeoutMs="3000")
    (wanted,) = plan_of(options)
    reader = RangeReader(options, wanted)
    parts = iter(reader)
    found = rows_of(next(parts))
    broker.kill()
    broker.start()
    time.sleep(3.1)
    found += [each for filled in parts for each in rows_of(filled)]
    reader.close()
    assert values(found) == sent


def test_a_task_does_not_wait_for_ever_for_a_broker(
    own_broker: BrokerFactory, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = own_broker()
    broker.start()
    client = official_client(broker.url)
    publish(client, topic, 10)
    client.close()
    options = options_of(broker, topic=topic, pulsar_client_operationTimeoutMs="1000")
    (wanted,) = plan_of(options)
    broker.kill()
    monkeypatch.setattr(range_reader, "RETRY_S", 0.1)
    with pytest.raises(NotReachable, match="no broker answers"):
        read(options, wanted)


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"topc": "a"}, "there is no option topc: did you mean topic or topics?"),
        ({"topic": "a", "reader": "slow"}, "it has to be auto, fast or client"),
        ({"topic": "a", "startingTime": "soon"}, "or as 2026-01-31T12:00:00Z"),
        ({"topic": "a", "startingTime": "1", "startingOffsets": "earliest"}, "are both given"),
        ({"topic": "a", "pulsar.reader.readCompacted": "true"}, "keep the latest row of each"),
        ({"topic": "a", "pulsar.reader.cryptoKey": "x"}, "lists those of pulsar.reader."),
        ({"topic": "a", "pulsar.reader.receiverQueueSize": "0"}, "a number of at least 1"),
        (
            {"topic": "a", "pulsar.reader.defaultCryptoKeyReader": "/nowhere"},
            "file does not exist",
        ),
        ({"topic": "a", "pulsar.producer.blockIfQueueFull": "true"}, "a task always waits"),
        ({"topic": "a", "kafka.security.protocol": "SSL"}, "this is not a client of Kafka"),
        ({"topic": "a", "startingOffsetsByTimestamp": "{}"}, "give startingTime"),
        ({"topic": "a", "predefinedSubscription": "s"}, "only of the streaming source"),
        ({"topic": "a", "exactlyOnce": "true"}, "only of the sink"),
        (
            {"topic": "a", "pulsar.client.operationTimeoutMS_": "1"},
            "did you mean pulsar.client.operationTimeoutMs?",
        ),
        ({"topic": "a", "topic.schema.class": "x"}, "there are no Java classes here"),
        ({"subscribe": "a"}, "give topic, or topics for several"),
        ({"topic": "a", "maxEntriesPerTrigger": "1"}, "give maxRowsPerTrigger, or maxBytes"),
        ({"topic": "a", "minPartitions": "1"}, "give bytesPerTask together with admin.url"),
        ({}, "give one of topic, topics and topicsPattern: none is given."),
        ({"topic": "a", "topics": "b"}, "topic and topics are given."),
        ({"topic": "a", "startingOffsets": "soon"}, "earliest, latest, or a JSON object"),
        ({"topic": "a", "startingOffsets": '{"a": "x"}'}, "has an invalid message id for a"),
        ({"topic": "a", "startingOffsets": "latest"}, "a batch would have nothing to read"),
        ({"topic": "a", "endingOffsets": "earliest"}, "a batch would have nothing to read"),
        ({"topic": "a", "failOnDataLoss": "maybe"}, "it has to be true or false"),
        ({"topic": "a", "bytesPerTask": "much"}, "it has to be a number of bytes"),
        ({"topic": "a", "pollTimeoutMs": "-1"}, "it has to be a number of milliseconds"),
        ({"topic": "a", "maxBytesPerTrigger": "1m"}, "only of the streaming source"),
        (
            {"topic": "a", "service.url": "pulsar+ssl://a:1", "pulsar.client.useTls": "false"},
            "pulsar.client.useTls is false",
        ),
        ({"topic": "a", "service.url": "pulsar://me:secret@a:1"}, "is 'pulsar://...@a:1'"),
        ({"topic": "a", "service.url": "localhost:6650"}, "it has the form pulsar://host:port"),
        ({"topic": "a", "admin.url": "localhost:8080"}, "it has the form http://host:port"),
    ],
    ids=lambda each: "-".join(each) or "nothing" if isinstance(each, dict) else "",
)
def test_wrong_options_are_errors_that_say_what_to_do(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(WrongOption) as caught:
        Options(BATCH, {"service.url": "pulsar://localhost:6650"} | given)
    assert sentence in str(caught.value)


def test_a_service_url_has_to_be_given() -> None:
    with pytest.raises(WrongOption, match=r"service\.url is missing"):
        Options(STREAM, {"topic": "a"})


def test_names_of_options_may_be_in_any_case() -> None:
    given = {"SERVICE.URL": "pulsar://a", "Topic": "a", "failondataloss": "FALSE"}
    assert Options(BATCH, given)["failOnDataLoss"] is False


def test_offsets_have_to_name_what_is_read(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, 1)
    with pytest.raises(WrongOption, match="has no offset for"):
        read_all(broker, topic=topic, startingOffsets='{"another": "earliest"}')
    both = json.dumps({topic: "earliest", "another": "earliest"})
    with pytest.raises(
        WrongOption, match="names persistent://public/default/another, which is not"
    ):
        read_all(broker, topic=topic, startingOffsets=both)
    with pytest.raises(PulsarSparkError):
        read_all(broker, topic="a/b")
