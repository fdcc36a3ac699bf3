"""Keys that are no text, which the Spark connector's sink sends by a producer of its own."""

from __future__ import annotations

from typing import Any

import pytest
from harness.brokers import Broker
from harness.java_client import Client as JavaClient

from compat_tests.conftest import BrokerFactory
from compat_tests.spark_rows import error_of, given, rows_of, sent, sent_once, sink_options
from compat_tests.test_spark_sink import once
from pyxbroker.spark.entry_producer import EntryProducer
from pyxbroker.spark.errors import PulsarSparkError, WrongOption
from pyxbroker.spark.outgoing import Outgoing
from pyxbroker.spark.producers import AtLeastOnce
from pyxbroker.spark.records import Primitive
from pyxbroker.spark.sequence import Part

pytestmark = pytest.mark.spark
__all__ = ["once"]  # a fixture

KEYS = [bytes([0xFF, number]) if number % 3 else f"text {number}" for number in range(12)]


def messages_of(topic: str) -> list[Outgoing]:
    return [Outgoing(topic, key, b"%d" % n, {"n": str(n)}) for n, key in enumerate(KEYS)]


def in_bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key


@pytest.mark.parametrize("codec", ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_they_come_back_as_they_were(broker: Broker, topic: str, codec: str) -> None:
    moment = 1_700_000_000_123
    full = Outgoing(topic, b"\xfe", b"x" * 300, {"a": "b"}, moment, ordering_key=b"\xfd")
    tombstone = Outgoing(topic, b"\xfe", None, {})
    more = {"pulsar.producer.compressionType": codec}
    sent(broker, topic, *messages_of(topic), full, tombstone, **more)
    rows = rows_of(broker, topic=topic, columns="*,__orderingKey")
    found = {row["value"]: row for row in rows}
    for number, key in enumerate(KEYS):
        row = found[b"%d" % number]
        assert row["__key"] == in_bytes(key)
        assert row["__messageProperties"] == [("n", str(number))]
    row = found[b"x" * 300]
    assert (row["__key"], row["__orderingKey"]) == (b"\xfe", b"\xfd")
    assert row["__eventTime"].timestamp() * 1000 == pytest.approx(moment)
    assert found[None]["__key"] == b"\xfe"


def test_javas_client_has_them_and_would_have_chosen_the_same_partitions(
    broker: Broker, java_client: JavaClient, topic: str
) -> None:
    path = f"/admin/v2/{topic.replace('://', '/')}/partitions"
    assert broker.rest("PUT", path, 5)[0] == 204
    sent(broker, topic, *messages_of(topic))
    consumer = java_client.subscribe(topic, "s", subscriptionInitialPosition="Earliest")
    found = {each.data: each for each in (consumer.receive() for _ in KEYS)}
    for number, key in enumerate(KEYS):
        assert found[b"%d" % number].key_bytes == in_bytes(key)
    javas = f"{topic}-java"
    assert broker.rest("PUT", path.replace(topic[13:], javas[13:]), 5)[0] == 204
    producer = java_client.create_producer(javas)
    for number, key in enumerate(KEYS):
        which: dict[str, Any] = {"key": key} if isinstance(key, str) else {"key_bytes": key}
        producer.send(b"%d" % number, **which)

    def places(of: str) -> dict[bytes, str]:
        return {r["value"]: r["__topic"].rpartition("-")[2] for r in rows_of(broker, topic=of)}

    assert places(topic) == places(javas)


def test_spark_writes_them(spark: Any, broker: Broker, topic: str) -> None:
    rows = [(bytearray(in_bytes(key)), n) for n, key in enumerate(KEYS)]
    frame = spark.createDataFrame(rows, "__key binary, value bigint").coalesce(1)
    frame.write.format("pulsar").options(**given(broker, {"topic": topic})).mode("append").save()
    found = {row["value"]: row["__key"] for row in rows_of(broker, topic=topic)}
    assert found == {number: in_bytes(key) for number, key in enumerate(KEYS)}


def test_they_are_stored_once_when_a_part_comes_again(broker: Broker, once: str) -> None:
    part = Part("query", 1, 7)
    messages = messages_of(once)

    def write(some: list[Outgoing], is_cut: bool = False, one: Part = part) -> list[str]:
        return sent_once(sink_options(broker, once), one, some, is_cut)

    assert write(messages[:7], is_cut=True) == []
    for _ in range(3):
        assert write(messages) == []
        found = sorted(int(row["value"]) for row in rows_of(broker, topic=once))
        assert found == list(range(len(messages)))
    with pytest.raises(PulsarSparkError, match="is not the batch that was begun before"):
        write([*messages[1:], messages[0]])
    with pytest.raises(PulsarSparkError, match="was the checkpoint set back, or copied"):
        write(messages, one=part._replace(epoch=6))
    only_bytes = [each for each in messages if isinstance(each.key, bytes)]
    plain = [each._replace(topic=f"{once}-plain") for each in only_bytes]
    assert write(plain) == [f"{once}-plain"]


def test_a_broker_that_starts_again_has_each_once(own_broker: BrokerFactory, topic: str) -> None:
    kept = {"defaultRetentionTimeInMinutes": "-1", "defaultRetentionSizeInMB": "-1"}
    broker = own_broker(settings={"brokerDeduplicationEnabled": "true"} | kept)
    broker.start()
    producer = EntryProducer(sink_options(broker, topic), topic, None, "me")
    try:
        for number in range(1_500):
            producer.send(Outgoing(topic, b"\xff", b"%d" % number, {}), number)
            if number == 700:
                broker.kill()
                broker.start()
        producer.flush()
    finally:
        producer.close()
    found = [int(row["value"]) for row in rows_of(broker, topic=topic)]
    assert found == list(range(1_500))


def test_what_cannot_be_is_told(broker: Broker, topic: str, tmp_path: Any) -> None:
    large = Outgoing(topic, b"\xff", b"x" * (6 << 20), {})
    plain = {"pulsar.producer.compressionType": "none"}
    text = error_of(lambda: sent(broker, topic, large, **plain))
    assert "has 6291" in text and "cannot be sent in chunks" in text
    key = tmp_path / "public.pem"
    key.write_text("")
    encrypted = {
        "pulsar.producer.encryptionKeys": "mine",
        "pulsar.producer.defaultCryptoKeyReader": str(key),
    }
    with pytest.raises(WrongOption, match="cannot be encrypted"):
        sent(broker, topic, large._replace(value=b""), **encrypted)


def test_numbers_beside_them_have_their_schema(broker: Broker, topic: str) -> None:
    """Without Spark."""
    payloads = Primitive("bigint")
    sender = AtLeastOnce(sink_options(broker, topic), payloads.schema())
    sender.send(Outgoing(topic, b"\xff", payloads.encode({"value": 7}), {}))
    sender.finish()
    sender.close()
    (row,) = rows_of(broker, topic=topic, columns="*,__schemaVersion")
    assert (row["value"], row["__schemaVersion"]) == (7, 0)
