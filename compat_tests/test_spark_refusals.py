"""Rights that are taken away and tokens that expire while Spark reads and writes: a sentence, in
time, and nothing that stays with the broker. Ours and Apache Pulsar (`BROKER=apache`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker
from harness.tokens import SECRET, TOKENS, data_url, token

from compat_tests.conftest import broker_kind, official_client
from compat_tests.spark_rows import error_of
from pyxbroker.spark.errors import PulsarSparkError, Refused
from pyxbroker.spark.exactly_once import ExactlyOnce
from pyxbroker.spark.options import BATCH, SINK, Options
from pyxbroker.spark.outgoing import Outgoing
from pyxbroker.spark.plan import ends_of, ranges_of, starts_of, stops_of
from pyxbroker.spark.producers import AtLeastOnce
from pyxbroker.spark.range_reader import RangeReader
from pyxbroker.spark.sequence import Part

pytestmark = pytest.mark.spark

JAVA = "org.apache.pulsar.client.impl.auth.Authentication"
PLUGIN, PARAMS = "pulsar.client.authPluginClassName", "pulsar.client.authParams"
SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProviders": TOKENS,
    "authenticationRefreshCheckSeconds": "1",
    "tokenSecretKey": data_url(SECRET),
    "authorizationEnabled": "true",
    "superUserRoles": "root",
    # Apache Pulsar's standalone is a client of its own.
    "brokerClientAuthenticationPlugin": JAVA + "Token",
    "brokerClientAuthenticationParameters": f"token:{token('root')}",
}
NAMESPACE = "/admin/v2/namespaces/public/default/permissions"
LIFE_S = 3
PATIENCE_S = 60


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that lets in who has a token; `me` may read and write."""
    headers = {"Authorization": f"Bearer {token('root')}"}
    directory = tmp_path_factory.mktemp("guarded")
    one = Broker(broker_kind(), directory, settings=SETTINGS, headers=headers)
    try:
        one.start()
        yield one
    finally:
        one.close()


@pytest.fixture
def root(guarded: Broker) -> Iterator[pulsar.Client]:
    login = pulsar.AuthenticationToken(token("root"))
    client = official_client(guarded.url, authentication=login)
    yield client
    client.close()


def grant(broker: Broker, *rights: str) -> None:
    status, _ = broker.rest("POST", f"{NAMESPACE}/me", list(rights))
    assert status == 204


def revoke(broker: Broker) -> None:
    assert broker.rest("DELETE", f"{NAMESPACE}/me")[0] == 204


def options_of(broker: Broker, topic: str, **claims: int) -> dict[str, str]:
    return {
        "service.url": broker.url,
        "topic": topic,
        PLUGIN: JAVA + "Token",
        PARAMS: f"token:{token('me', **claims)}",
        "pulsar.client.operationTimeoutMs": "5000",
    }


def publish(root: pulsar.Client, topic: str, count: int, size: int = 8) -> None:
    producer = root.create_producer(topic, block_if_queue_full=True)
    for number in range(count):
        producer.send_async(str(number).encode().ljust(size), None)
    producer.flush()
    producer.close()


def is_left_alone(broker: Broker, topic: str) -> bool:
    """Whether nobody reads or writes a topic, after a moment."""
    deadline = time.monotonic() + 10
    while True:
        stats = broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")[1]
        # Deduplication has one of its own.
        if (stats["subscriptions"].keys() - {"pulsar.dedup"}, stats["publishers"]) == (set(), []):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)


def reader_of(options: dict[str, str]) -> RangeReader:
    """What a task of a batch does."""
    given = Options(BATCH, options)
    ends = ends_of(given)
    (wanted,) = ranges_of(given, starts_of(given, ends), stops_of(given, ends))
    return RangeReader(given, wanted)


def read_slowly(reader: RangeReader, then: Callable[[], object] = lambda: None) -> None:
    """Reads all; after the first part of it something happens, and time goes by."""
    try:
        for number, _ in enumerate(reader):
            if not number:
                then()
                time.sleep(LIFE_S + 3)
    finally:
        reader.close()


def test_a_token_that_expires_while_a_task_reads_ends_it(
    guarded: Broker, root: pulsar.Client, topic: str
) -> None:
    grant(guarded, "consume")
    publish(root, topic, 20_000, size=4 << 10)  # more than sockets hold
    begin = time.monotonic()
    with pytest.raises(Refused, match="a token may have expired") as caught:
        read_slowly(reader_of(options_of(guarded, topic, exp=LIFE_S)))
    assert "\n" not in str(caught.value) and time.monotonic() - begin < PATIENCE_S
    assert is_left_alone(guarded, topic)


@pytest.mark.pyxbroker  # Apache Pulsar lets whoever is connected go on
def test_a_right_that_is_taken_away_while_a_task_reads_ends_it(
    guarded: Broker, root: pulsar.Client, topic: str
) -> None:
    grant(guarded, "consume")
    publish(root, topic, 20_000, size=4 << 10)
    with pytest.raises(Refused, match="Reading needs the right to consume") as caught:
        read_slowly(reader_of(options_of(guarded, topic)), lambda: revoke(guarded))
    assert "\n" not in str(caught.value)
    assert is_left_alone(guarded, topic)


def write_on(options: dict[str, str], is_once: bool, then: Callable[[], object]) -> None:
    """What a task of a sink does, until that fails: a message now and then."""
    given = Options(SINK, options)
    part = Part("query", 0, int(time.time() * 1000))
    sender = ExactlyOnce(given, None, part) if is_once else AtLeastOnce(given, None)
    deadline = time.monotonic() + PATIENCE_S
    try:
        sender.send(Outgoing(options["topic"], "k", b"first", {}))
        sender.finish()
        then()
        while time.monotonic() < deadline:
            sender.send(Outgoing(options["topic"], "k", b"more", {}))
            sender.finish()
            time.sleep(0.2)
    finally:
        sender.close()


@pytest.mark.parametrize("is_once", [False, True], ids=["least", "once"])
def test_a_token_that_expires_while_a_task_writes_ends_it(
    guarded: Broker, root: pulsar.Client, topic: str, is_once: bool
) -> None:
    grant(guarded, "produce")
    begin = time.monotonic()
    with pytest.raises(PulsarSparkError) as caught:
        write_on(options_of(guarded, topic, exp=LIFE_S), is_once, lambda: None)
    text = str(caught.value)
    assert "\n" not in text and "a token may have expired" in text
    assert time.monotonic() - begin < PATIENCE_S
    assert is_left_alone(guarded, topic)


@pytest.mark.pyxbroker
@pytest.mark.parametrize("is_once", [False, True], ids=["least", "once"])
def test_a_right_that_is_taken_away_while_a_task_writes_ends_it(
    guarded: Broker, topic: str, is_once: bool
) -> None:
    grant(guarded, "produce")
    begin = time.monotonic()
    with pytest.raises(PulsarSparkError) as caught:
        write_on(options_of(guarded, topic), is_once, lambda: revoke(guarded))
    text = str(caught.value)
    assert "\n" not in text and "there is no right to write it" in text
    assert time.monotonic() - begin < PATIENCE_S
    assert is_left_alone(guarded, topic)


def test_queries_that_may_not_go_on_end_with_a_sentence(
    spark: Any, guarded: Broker, root: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    grant(guarded, "consume", "produce")
    copy = f"{topic}-copy"
    rows = spark.readStream.format("pulsar").options(**options_of(guarded, topic))
    publish(root, topic, 10)
    stream = rows.option("startingOffsets", "earliest").load()
    first = stream.writeStream.format("noop").trigger(processingTime="0 seconds")
    first = first.option("checkpointLocation", str(tmp_path / "first")).start()
    second = (
        stream.drop("__topic")
        .writeStream.format("pulsar")
        .options(**options_of(guarded, copy))
        .option("checkpointLocation", str(tmp_path / "second"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    for query in (first, second):
        query.processAllAvailable()
    revoke(guarded)
    for query in (first, second):
        publish(root, topic, 10)
        text = error_of(lambda query=query: query.awaitTermination(PATIENCE_S))
        assert "AuthorizationError" in text and "Reading needs the right to consume" in text
        assert not query.isActive
    assert is_left_alone(guarded, topic) and is_left_alone(guarded, copy)
