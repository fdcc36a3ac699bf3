"""Options of the Spark connector, as Spark's workers use them; what needs no session needs none."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker

from compat_tests.spark_rows import error_of, given, rows_of, sent
from pyxbroker.spark.errors import PulsarSparkError, WrongOption
from pyxbroker.spark.options import SINK, Options
from pyxbroker.spark.outgoing import Outgoing
from pyxbroker.spark.producers import AtLeastOnce

pytestmark = pytest.mark.spark


def publish(client: pulsar.Client, topic: str, *texts: str, **settings: Any) -> None:
    producer = client.create_producer(topic, **settings)
    for each in texts:
        producer.send(each.encode())
    producer.close()


def values(rows: list[dict[str, Any]]) -> list[str]:
    return [row["value"].decode() for row in rows]


def path_of(topic: str) -> str:
    return "/admin/v2/" + topic.replace("://", "/")


def stream_of(broker: Broker, **options: str) -> Any:
    """What Spark asks of a streaming source."""
    from pyxbroker.spark.source import PulsarDataSource

    source = PulsarDataSource(given(broker, options))
    return source.streamReader(source.schema())


def read(stream: Any, start: dict[str, str], end: dict[str, str]) -> list[str]:
    parts = stream.partitions(start, end)
    return values([r for part in parts for b in stream.read(part) for r in b.to_pylist()])


# --- what is read ---------------------------------------------------------------------------------


def test_times_are_the_first_and_the_last_that_are_read(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    times = []
    for number in range(6):
        publish(client, topic, str(number))
        times.append(round(rows_of(broker, topic=topic)[-1]["__publishTime"].timestamp() * 1000))
        time.sleep(0.02)

    def between(**options: str) -> list[str]:
        return values(rows_of(broker, topic=topic, **options))

    assert between(startingTime=str(times[2])) == ["2", "3", "4", "5"]
    assert between(startingTime=str(times[2] + 1)) == ["3", "4", "5"]
    assert between(endingTime=str(times[2])) == ["0", "1", "2"]
    assert between(endingTime=str(times[2] - 1)) == ["0", "1"]
    assert between(startingTime=str(times[1]), endingTime=str(times[3])) == ["1", "2", "3"]
    assert between(startingTime="2020-01-01", endingTime="2099-12-31T23:59:59Z") == list("012345")
    assert between(startingTime="2099-01-01T00:00:00+02:00") == []
    assert between(endingTime="2020-01-01") == []
    stream = stream_of(broker, topic=topic, startingTime=str(times[4]))
    start = stream.initialOffset()
    assert read(stream, start, stream.latestOffset(start)) == ["4", "5"]
    assert broker.rest("GET", f"{path_of(topic)}/subscriptions") == (200, [])


def test_topics_of_different_schemas_are_bytes(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    from pulsar import schema

    client.create_producer(f"{topic}-1", schema=schema.StringSchema()).send("one")
    publish(client, f"{topic}-2", "two")
    named = {"topics": f"{topic}-1,{topic}-2"}
    text = error_of(lambda: rows_of(broker, **named))
    assert "as bytes with allowDifferentTopicSchemas=true" in text
    rows = rows_of(broker, **named, allowDifferentTopicSchemas="true")
    assert sorted(values(rows)) == ["one", "two"]


@pytest.mark.parametrize("option", ["topic", "topicsPattern"])
def test_a_stream_may_wait_for_a_topic(
    broker: Broker, client: pulsar.Client, topic: str, option: str
) -> None:
    assert "no topic" in error_of(lambda: stream_of(broker, **{option: topic}).initialOffset())
    stream = stream_of(broker, **{option: topic}, waitingForNonExistedTopic="true")
    start = stream.initialOffset()
    assert start == stream.latestOffset(start) == {}
    publish(client, topic, "one", "two")
    end = stream.latestOffset(start)
    assert read(stream, start, end) == ["one", "two"]


def test_a_subscription_of_ones_own_holds_what_is_not_read(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, *"0123")
    stream = stream_of(
        broker, topic=topic, startingOffsets="earliest", predefinedSubscription="held"
    )

    def backlog() -> int:
        stats = broker.rest("GET", f"{path_of(topic)}/stats?getPreciseBacklog=true")[1]
        return int(stats["subscriptions"]["held"]["msgBacklog"])

    start = stream.initialOffset()
    assert backlog() == 4
    end = stream.latestOffset(start)
    publish(client, topic, *"45")
    assert read(stream, start, end) == list("0123")
    stream.commit(end)
    assert backlog() == 2
    later = stream.latestOffset(end)
    stream.commit(later)
    stream.commit(later)
    assert backlog() == 0
    consumer = client.subscribe(topic, "taken")
    other = stream_of(broker, topic=topic, predefinedSubscription="taken")
    assert "ConsumerBusy" in error_of(other.initialOffset)
    consumer.close()


def test_names_of_readers_begin_as_they_shall(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    """Where a namespace asks that of subscriptions (subscriptionAuthMode)."""
    publish(client, topic, "one")
    from pyxbroker.spark.options import BATCH
    from pyxbroker.spark.plan import cluster_of
    from pyxbroker.spark.positions import BEGINNING

    options = Options(BATCH, given(broker, {"topic": topic, "subscriptionPrefix": "my-role"}))
    with cluster_of(options) as cluster:
        connection = cluster.reader(topic, BEGINNING)
        (name,) = broker.rest("GET", f"{path_of(topic)}/stats")[1]["subscriptions"]
        connection.close()
    assert name.startswith("my-role-")


def test_brokers_of_one_url_are_tried_in_turn(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    url = f"pulsar://127.0.0.1:1,127.0.0.1:{broker.port}"
    options = {"service.url": url, "topic": topic}
    sender = AtLeastOnce(Options(SINK, options), None)
    sender.send(Outgoing(topic, None, b"one", {}))
    sender.finish()
    sender.close()
    assert values(rows_of(broker, **{name.replace(".", "_"): v for name, v in options.items()}))


@pytest.mark.parametrize("reader", ["fast", "client"])
def test_both_readers_read_the_same(
    broker: Broker, client: pulsar.Client, topic: str, reader: str
) -> None:
    assert broker.rest("PUT", f"{path_of(topic)}/partitions", 2)[0] == 204
    texts = [str(number) for number in range(50)]
    settings = {"batching_enabled": True, "batching_max_messages": 7, "block_if_queue_full": True}
    producer = client.create_producer(topic, **settings)
    for each in texts:
        producer.send_async(each.encode(), None, partition_key=each, properties={"a": each})
    producer.flush()
    rows = rows_of(broker, topic=topic, reader=reader, pulsar_reader_receiverQueueSize="3")
    assert sorted(values(rows), key=int) == texts
    for row in rows:
        text = row["value"].decode()
        assert (row["__key"], row["__messageProperties"]) == (text.encode(), [("a", text)])
    stream = stream_of(broker, topic=topic, reader=reader, startingOffsets="earliest")
    start = stream.initialOffset()
    end = stream.latestOffset(start)
    assert sorted(read(stream, start, end), key=int) == texts
    publish(client, f"{topic}-partition-0", "50", "51")
    assert read(stream, end, stream.latestOffset(end)) == ["50", "51"]


@pytest.mark.parametrize("reader", ["fast", "client"])
def test_both_readers_read_by_the_version_of_each_message(
    broker: Broker, client: pulsar.Client, topic: str, reader: str
) -> None:
    """Up to the first one whose bytes are no text, in which the official client tells them."""
    fields: list[dict[str, Any]] = []
    path = f"/admin/v2/schemas/{topic.removeprefix('persistent://')}/schema"
    for number in range(129):
        fields.append({"name": f"f{number}", "type": "int", "default": number})
        definition = json.dumps({"type": "record", "name": "R", "fields": fields})
        body = {"type": "AVRO", "schema": definition, "properties": {}}
        assert broker.rest("POST", path, body)[0] == 200
        if number in (0, 127, 128):
            schema = pulsar.schema.AvroSchema(None, json.loads(definition))
            producer = client.create_producer(topic, schema=schema)
            producer.send({f"f{each}": -1 for each in range(number + 1)})
            producer.close()
    rows = rows_of(broker, topic=topic, reader=reader, columns="__schemaVersion,f0,f127,f128")
    assert [tuple(row.values()) for row in rows] == [
        (0, -1, 127, 128),
        (127, -1, -1, 128),
        (128, -1, -1, -1),
    ]


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, str]:
    """Files of a private and a public key."""
    private, public = str(tmp_path / "private.pem"), str(tmp_path / "public.pem")
    subprocess.run(["openssl", "genrsa", "-out", private, "2048"], check=True, capture_output=True)
    command = ["openssl", "rsa", "-in", private, "-pubout", "-out", public]
    subprocess.run(command, check=True, capture_output=True)
    return private, public


def test_encrypted_messages_are_written_and_read_with_keys(
    broker: Broker, topic: str, keys: tuple[str, str]
) -> None:
    private, public = keys
    options = {
        "topic": topic,
        "pulsar.producer.encryptionKeys": "mine",
        "pulsar.producer.defaultCryptoKeyReader": f"file://{public}",
    }
    sender = AtLeastOnce(Options(SINK, given(broker, options)), None)
    for number in range(5):
        sender.send(Outgoing(topic, "k", b"%d" % number, {}))
    sender.finish()
    sender.close()
    text = error_of(lambda: rows_of(broker, topic=topic))
    assert "it is encrypted; give its key by pulsar.reader.defaultCryptoKeyReader" in text
    key = {"pulsar_reader_defaultCryptoKeyReader": private}
    assert values(rows_of(broker, topic=topic, **key)) == list("01234")
    assert "only the official client can decrypt" in error_of(
        lambda: rows_of(broker, topic=topic, reader="fast", **key)
    )


def test_errors_leave_nothing_with_the_broker_and_are_one_sentence(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    path = f"/admin/v2/schemas/{topic.removeprefix('persistent://')}/schema"
    body = {"type": "INT64", "schema": "", "properties": {}}
    assert broker.rest("POST", path, body)[0] == 200
    publish(client, topic, "no number of eight bytes")
    begin = time.monotonic()
    assert "cannot be read by its schema" in error_of(lambda: rows_of(broker, topic=topic))
    nowhere = f"persistent://nobody/nowhere/{topic.rpartition('/')[2]}"
    text = error_of(lambda: rows_of(broker, topic=nowhere))
    assert text.count("\n") == 0 and "nobody/nowhere" in text
    options = {"topic": nowhere, "pulsar.client.operationTimeoutMs": "3000"}
    sender = AtLeastOnce(Options(SINK, given(broker, options)), None)
    text = error_of(lambda: sender.send(Outgoing(nowhere, None, b"", {})))
    sender.close()
    assert text.startswith(f"{nowhere} cannot be written: ") and text.count("\n") == 0
    assert time.monotonic() - begin < 60
    stats = broker.rest("GET", f"{path_of(topic)}/stats")[1]
    assert (stats["subscriptions"], stats["publishers"]) == ({}, [])


# --- what is written ------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["NONE", "LZ4", "ZLIB", "ZSTD", "snappy"])
def test_codecs_of_what_is_written(broker: Broker, topic: str, codec: str) -> None:
    message = Outgoing(topic, None, b"x" * 5_000, {})
    sent(broker, topic, message, pulsar_producer_compressionType=codec)
    assert [len(row["value"]) for row in rows_of(broker, topic=topic)] == [5_000]
    stats = broker.rest("GET", f"{path_of(topic)}/stats")[1]
    assert (stats["bytesInCounter"] > 5_000) == (codec == "NONE")


def test_batches_chunks_and_properties_of_producers(broker: Broker, topic: str) -> None:
    message = Outgoing(topic, "k", b"x", {})
    sent(
        broker,
        topic,
        *[message] * 6,
        pulsar_producer_batchingMaxMessages="3",
        pulsar_producer_batchingMaxPublishDelayMicros="30000000",
        pulsar_producer_batchingMaxBytes="1m",
        pulsar_producer_maxPendingMessages="6",
        pulsar_producer_sendTimeoutMs="10000",
        pulsar_producer_properties=json.dumps({"by": "spark"}),
    )
    assert broker.rest("GET", f"{path_of(topic)}/internalStats")[1]["entriesAddedCounter"] == 2
    sent(broker, topic, *[message] * 6, pulsar_producer_batchingEnabled="false")
    assert broker.rest("GET", f"{path_of(topic)}/internalStats")[1]["entriesAddedCounter"] == 8
    large = message._replace(value=b"y" * (6 << 20))
    with pytest.raises(PulsarSparkError, match=r"pulsar\.producer\.chunkingEnabled=true"):
        sent(broker, topic, large, pulsar_producer_compressionType="none")
    sent(
        broker,
        topic,
        large,
        pulsar_producer_compressionType="none",
        pulsar_producer_chunkingEnabled="true",
    )
    assert [len(row["value"]) for row in rows_of(broker, topic=topic)] == [1] * 12 + [6 << 20]


@pytest.mark.parametrize("scheme", ["JavaStringHash", "Murmur3_32Hash"])
def test_keys_are_in_the_partition_of_their_hash(broker: Broker, topic: str, scheme: str) -> None:
    from pyxbroker.spark.routing import HASHES

    assert broker.rest("PUT", f"{path_of(topic)}/partitions", 3)[0] == 204
    keys = [f"key {number}" for number in range(20)]
    messages = [Outgoing(topic, key, key.encode(), {}) for key in keys]
    sent(broker, topic, *messages, pulsar_producer_hashingScheme=scheme)
    for row in rows_of(broker, topic=topic):
        index = HASHES[scheme](row["__key"].decode()) % 3
        assert row["__topic"].endswith(f"-partition-{index}")


def test_rows_without_a_key_may_stay_in_one_partition(broker: Broker, topic: str) -> None:
    assert broker.rest("PUT", f"{path_of(topic)}/partitions", 3)[0] == 204
    messages = [Outgoing(topic, None, b"%d" % number, {}) for number in range(2_500)]
    sent(broker, topic, *messages, pulsar_producer_messageRoutingMode="SinglePartition")
    rows = rows_of(broker, topic=topic)
    assert len(rows) == 2_500 and len({row["__topic"] for row in rows}) == 1
    sent(broker, topic, *messages, pulsar_producer_messageRoutingMode="RoundRobinPartition")
    assert len({row["__topic"] for row in rows_of(broker, topic=topic)}) == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"exactlyOnce": "maybe"}, "it has to be auto, true or false"),
        ({"schemaType": "protobuf"}, "it has to be avro or json"),
        ({"pulsar.producer.producerName": "p"}, "generated names"),
        ({"pulsar.producer.initialSequenceId": "1"}, "derived from the batch and the row"),
        (
            {"pulsar.producer.accessMode": "Exclusive"},
            "several tasks write a topic",
        ),
        ({"pulsar.producer.hashingScheme": "md5"}, "it has to be one of javastringhash"),
        ({"pulsar.producer.compressionType": "bzip2"}, "none, lz4, zlib, zstd, snappy"),
        ({"pulsar.producer.properties": "[]"}, "a JSON object of strings"),
        ({"pulsar.producer.batchingMaxMesages": "1"}, "did you mean pulsar.producer.batchingMaxM"),
    ],
)
def test_wrong_options_of_the_sink(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(WrongOption) as caught:
        Options(SINK, {"service.url": "pulsar://a", "topic": "a"} | options)
    assert sentence in str(caught.value)
