"""What tasks of the Spark connector read where it is difficult: chunks that are anywhere, batches
that come in parts, ledgers that are deleted meanwhile. By both readers, without Spark.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker
from tests.oracles.columns import Row, rows_of

from compat_tests.conftest import BrokerFactory, official_client
from compat_tests.messages import CODECS
from compat_tests.test_chunk_limits import Chunks, message
from compat_tests.test_encryption import Pair, keys, pair
from compat_tests.test_spark_ranges import options_of, plan_of, publish, read, read_all, values
from pyxbroker.spark import chunks, client_connection
from pyxbroker.spark.entry_scan import EntryScan
from pyxbroker.spark.errors import DataLost, PulsarSparkError, TopicMissing
from pyxbroker.spark.options import Options
from pyxbroker.spark.plan import Range
from pyxbroker.spark.positions import Position
from pyxbroker.spark.range_reader import RangeReader

__all__ = ["keys", "pair"]

# So that chunks are small.
BROKER_SETTINGS = {"maxMessageSize": "100000"}
MANY = 99_000
"""Bytes of a message that has several chunks, by three."""

both_readers = pytest.mark.parametrize("reader", ["fast", "client"])


def all_entries(broker: Broker, topic: str) -> list[Position]:
    """Of one ledger."""
    (whole,) = plan_of(options_of(broker, topic=topic))
    return [Position(whole.end.ledger, entry) for entry in range(whole.end.entry + 1)]


def read_in_two(options: Options, whole: Range, at: Position) -> list[Row]:
    first, second = whole._replace(end=at), whole._replace(begin=at)
    return [*read(options, first), *(read(options, second) if at != whole.end else [])]


# --- chunks ---------------------------------------------------------------------------------------


@both_readers
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_a_message_in_chunks_is_in_the_one_range_that_has_its_last_chunk(
    broker: Broker,
    client: pulsar.Client,
    topic: str,
    reader: str,
    is_encrypted: bool,
    keys: pulsar.CryptoKeyReader,
    pair: Pair,
) -> None:
    settings: dict[str, Any] = {"chunking_enabled": True}
    given = {"topic": topic, "reader": reader}
    if is_encrypted:
        settings |= {"encryption_key": "mine", "crypto_key_reader": keys}
        given |= {"reader": "client", "pulsar_reader_defaultCryptoKeyReader": str(pair.private)}
    producers = [client.create_producer(topic, **settings) for _ in range(2)]
    sent = [bytes([number]) * (number % 3 * 3 * MANY + 1) for number in range(6)]
    jobs = [
        threading.Thread(target=lambda n=n: [producers[n].send(each) for each in sent[n::2]])
        for n in range(2)
    ]
    for each in jobs:
        each.start()
    for each in jobs:
        each.join()
    options = options_of(broker, **given)
    (whole,) = plan_of(options)
    at_once = values(read(options, whole))
    assert sorted(at_once) == sorted(sent)
    for at in all_entries(broker, topic):
        assert values(read_in_two(options, whole, at)) == at_once
    # The same where REST says where ranges may be cut.
    cut = read_all(broker, **given, admin_url=broker.web_url, bytesPerTask="90k")
    assert values(cut) == at_once


@both_readers
def test_chunks_of_many_messages_at_once_are_put_together(
    broker: Broker, topic: str, reader: str
) -> None:
    names = [f"message {number}" for number in range(25)]
    with Chunks(broker, topic) as sender:
        for index in range(3):
            for name in names:
                sender.chunk(name, index, 3)
    found = values(read_all(broker, topic=topic, reader=reader))
    assert found == [message(name, 3) for name in names]


def test_chunks_that_found_no_place_are_read_again(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "WAITING_BYTES_MAX", 2_000)
    names = [f"message {number}" for number in range(20)]
    with Chunks(broker, topic) as sender:
        for index in range(3):
            for name in names:
                sender.chunk(name, index, 3)
    assert values(read_all(broker, topic=topic)) == [message(name, 3) for name in names]


@both_readers
def test_chunks_that_were_sent_again_are_one_message(
    broker: Broker, topic: str, reader: str
) -> None:
    with Chunks(broker, topic) as sender:
        sender.chunk("begins anew", 0, 2)
        sender.chunk("begins anew", 0, 2)
        for index in (1, 1):  # and its end, which was answered too late
            sender.chunk("begins anew", index, 2)
        sender.whole(b"one")
    options = options_of(broker, topic=topic, reader=reader)
    (whole,) = plan_of(options)
    assert values(read(options, whole)) == [message("begins anew"), b"one"]
    for at in all_entries(broker, topic):
        assert values(read_in_two(options, whole, at)) == [message("begins anew"), b"one"]


@both_readers
def test_a_range_may_end_within_a_message_that_never_ends(
    broker: Broker, topic: str, reader: str
) -> None:
    with Chunks(broker, topic) as sender:
        sender.whole(b"one")
        sender.chunk("its end is lost", 0, 3)
        sender.chunk("its end is lost", 1, 3)
    assert values(read_all(broker, topic=topic, reader=reader)) == [b"one"]


@both_readers
def test_a_message_in_chunks_that_cannot_be_put_together_is_told(
    broker: Broker, topic: str, reader: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Chunks(broker, topic) as sender:
        sender.chunk("its beginning was deleted", 2, 3)
        sender.whole(b"one")
        sender.chunk("there is a hole", 0, 3)
        sender.chunk("there is a hole", 2, 3)
        sender.whole(b"two")
    given = {"topic": topic, "reader": reader}
    options, patient = (
        options_of(broker, **given),
        options_of(broker, **given, failOnDataLoss="false"),
    )
    (whole,) = plan_of(options)
    # What was deleted before the first message that a query reads is no loss, and told.
    assert values(read(options, whole)) == [b"one", b"two"]
    told = [each.message for each in caplog.records if "cannot be assembled" in each.message]
    assert len(told) == 2 and "the message is skipped" in told[0]
    later = whole._replace(begin=Position(whole.end.ledger, 1), origin=None)
    with pytest.raises(DataLost, match=r"ends with \d+:3 cannot be assembled: earlier chunks"):
        read(options, later)
    assert values(read(patient, later)) == [b"two"]


def test_what_is_before_a_range_is_looked_through_once_whatever_is_broken(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 40
    with Chunks(broker, topic) as sender:
        for _ in range(count):
            sender.whole(b"before")
        for index in (0, 2):
            for number in range(count):
                sender.chunk(f"has a hole {number}", index, 3)
        for number in range(count):
            sender.chunk(f"has no beginning {number}", 1, 2)
    options = options_of(broker, topic=topic, failOnDataLoss="false")
    (whole,) = plan_of(options)
    later = whole._replace(begin=Position(whole.end.ledger, count - 1))
    opened = 0
    open_scan = EntryScan.__init__

    def count_opened(self: EntryScan, *arguments: Any) -> None:
        nonlocal opened
        opened += 1
        open_scan(self, *arguments)

    monkeypatch.setattr(EntryScan, "__init__", count_opened)
    assert read(options, later) == []
    assert opened in (1, 2)  # from about its time on, and from the topic's beginning


# --- the official client --------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_the_official_client_gives_what_the_fast_reader_gives(
    broker: Broker,
    client: pulsar.Client,
    topic: str,
    codec: str,
    is_encrypted: bool,
    keys: pulsar.CryptoKeyReader,
    pair: Pair,
) -> None:
    names = [topic, f"{topic}-secret"] if is_encrypted else [topic]
    for name in names:
        encrypted = {"encryption_key": "mine", "crypto_key_reader": keys}
        send_of_each_kind(client, name, CODECS[codec], encrypted if name != topic else {})
    given = {"reader": "client"}
    if is_encrypted:
        given["pulsar_reader_defaultCryptoKeyReader"] = str(pair.private)
    by_client = read_all(broker, topic=names[-1], **given)
    by_own = read_all(broker, topic=topic, reader="fast")
    assert len(by_own) == 26 and len({each.position.batch for each in by_own}) > 3
    ledger, own_ledger = by_client[0].position.ledger, by_own[0].position.ledger
    assert [comparable(each, ledger) for each in by_client] == [
        comparable(each, own_ledger) for each in by_own
    ]


def send_of_each_kind(client: pulsar.Client, topic: str, codec: Any, more: dict[str, Any]) -> None:
    batched = {"batching_enabled": True, "batching_max_messages": 7}
    for settings in (batched, {}, {"chunking_enabled": True}):
        sizes = (3 * MANY, 5) if "chunking_enabled" in settings else range(12)
        producer = client.create_producer(topic, compression_type=codec, **settings, **more)
        for number in sizes:
            producer.send_async(
                None if number == 4 else incompressible(number),
                None,
                partition_key=f"key {number}" if number % 2 else None,
                properties={"a": str(number)} if number % 3 else {},
                event_timestamp=1_700_000_000_000 + number if number % 5 else None,
            )
        producer.flush()
        producer.close()


def incompressible(size: int) -> bytes:
    state = bytearray()
    value = 1
    while len(state) < size:
        value = value * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        state.append(value >> 56)
    return bytes(state)


def comparable(row: Row, ledger: int) -> Row:
    """Without when it was published; in which ledger counts from that one on."""
    position = row.position._replace(ledger=row.position.ledger - ledger)
    return row._replace(position=position, publish_time=0)


class Slow:
    """A reader of the client's for which the time is over again and again."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._reads = 0

    def read_next(self, timeout_ms: int) -> Any:
        self._reads += 1
        if self._reads % 3 == 0:
            raise pulsar.Timeout
        return self._reader.read_next(timeout_ms)

    def close(self) -> None:
        self._reader.close()


@pytest.fixture
def slow_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    open_reader = client_connection.ClientConnection._open

    def open_slow(self: Any, at: Position) -> None:
        open_reader(self, at)
        self._reader = Slow(self._reader)

    monkeypatch.setattr(client_connection.ClientConnection, "_open", open_slow)
    yield


@pytest.mark.usefixtures("slow_client")
def test_a_batch_of_which_a_part_came_in_time_is_waited_for(
    broker: Broker, client: pulsar.Client, topic: str, keys: pulsar.CryptoKeyReader, pair: Pair
) -> None:
    sent = publish(client, topic, 50, encryption_key="mine", crypto_key_reader=keys)
    given = {"topic": topic, "pulsar_reader_defaultCryptoKeyReader": str(pair.private)}
    assert values(read_all(broker, **given)) == sent


def test_what_the_official_client_passes_over_is_an_error(
    broker: Broker, client: pulsar.Client, topic: str, keys: pulsar.CryptoKeyReader, tmp_path: Any
) -> None:
    """One that is encrypted by a key that is not the one that is given, between others."""
    other = tmp_path / "other.pem"
    command = ["openssl", "genrsa", "-out", str(other), "2048"]
    subprocess.run(command, check=True, capture_output=True)
    publish(client, topic, 3)
    secret = client.create_producer(topic, encryption_key="mine", crypto_key_reader=keys)
    secret.send(b"secret")
    given = {"topic": topic, "pollTimeoutMs": "4000"}
    options = options_of(broker, **given, pulsar_reader_defaultCryptoKeyReader=str(other))
    begin = time.monotonic()
    for _ in range(2):  # it is the last one, and it is not
        (whole,) = plan_of(options)
        with pytest.raises(PulsarSparkError, match=r"skips \d+:1 of persistent"):
            read(options, whole)
        publish(client, topic, 3)
    assert time.monotonic() - begin < 30
    with pytest.raises(PulsarSparkError, match="it is encrypted; give its key by"):
        read_all(broker, topic=topic, reader="client")


@pytest.mark.parametrize("is_read", [False, True], ids=["midway", "all"])
def test_the_official_client_lets_go_of_a_broker_that_hangs(
    own_broker: BrokerFactory, topic: str, keys: pulsar.CryptoKeyReader, pair: Pair, is_read: bool
) -> None:
    """What is wrong with the broker is told, and closing waits for nobody."""
    broker = own_broker()
    broker.start()
    assert broker.process is not None
    with contextlib.closing(official_client(broker.url)) as client:
        encrypted = {"encryption_key": "mine", "crypto_key_reader": keys}
        publish(client, topic, 600, bytes_min=50 << 10, batching_enabled=False, **encrypted)
    options = options_of(
        broker,
        topic=topic,
        pulsar_reader_defaultCryptoKeyReader=str(pair.private),
        pulsar_reader_receiverQueueSize="5",
        pulsar_client_operationTimeoutMs="3000",
    )
    (whole,) = plan_of(options)
    reading = RangeReader(options, whole)
    parts = iter(reading)
    try:
        found = len(rows_of(next(parts)))
        if is_read:
            found += sum(len(rows_of(each)) for each in parts)
            assert found == 600
        os.killpg(broker.process.pid, signal.SIGSTOP)
        if not is_read:
            with pytest.raises(PulsarSparkError, match=r"answer"):
                list(parts)
        begin = time.monotonic()
        reading.close()
        assert time.monotonic() - begin < 2
    finally:
        os.killpg(broker.process.pid, signal.SIGCONT)
        reading.close()


# --- what is deleted ------------------------------------------------------------------------------


class Ledgers:
    """A topic of three ledgers, of which the first ones can be deleted."""

    def __init__(self, broker: Broker, topic: str, client: pulsar.Client, large: int = 20) -> None:
        """large: how many messages the first one has, of which 20 are a MiB."""
        self._broker, self._topic = broker, topic
        self._path = f"/admin/v2/{topic.replace('://', '/')}"
        self._client = client
        client.subscribe(topic, "s").close()
        self.sent = []
        for count in (large, 20, 20):
            settings = {"batching_enabled": False, "bytes_min": 50 << 10}
            self.sent.append(publish(client, topic, count, **settings))
            assert broker.rest("PUT", f"{self._path}/unload")[0] == 204
        self.last = publish(client, topic, 1)

    def delete(self, count: int) -> None:
        """So many of them, as nobody needs them any more."""
        needs = self._client.subscribe(self._topic, "s")
        for _ in range(sum(map(len, self.sent[:count]))):
            message = needs.receive(10_000)
        before = self._there()
        needs.acknowledge_cumulative(message)
        deadline = time.monotonic() + 20
        while len(self._there()) > len(before) - count:
            assert time.monotonic() < deadline
            assert self._broker.rest("POST", f"{self._path}/trim")[0] in (200, 204)
            time.sleep(0.2)

    def _there(self) -> list[int]:
        _, found = self._broker.rest("GET", f"{self._path}/internalStats")
        return [each["ledgerId"] for each in found["ledgers"]]


@pytest.mark.standalone
@both_readers
@pytest.mark.parametrize("is_told_by_rest", [False, True], ids=["", "rest"])
@pytest.mark.parametrize("fails", [False, True], ids=["goes-on", "fails"])
def test_ledgers_that_are_deleted_within_a_range_are_noticed(
    own_broker: BrokerFactory, topic: str, reader: str, is_told_by_rest: bool, fails: bool
) -> None:
    broker = own_broker()
    broker.start()
    client = official_client(broker.url)
    ledgers = Ledgers(broker, topic, client, large=600)
    given = {"topic": topic, "reader": reader, "bytesPerTask": "1g"}
    if is_told_by_rest:
        given["admin_url"] = broker.web_url
    (whole,) = plan_of(options_of(broker, **given))
    assert len(whole.ledgers) == (4 if is_told_by_rest else 0)
    reading = RangeReader(options_of(broker, **given, failOnDataLoss=str(fails)), whole)
    try:
        parts = iter(reading)
        found = values(rows_of(next(parts)))
        assert 0 < len(found) < 600
        ledgers.delete(2)
        # What was on the way is lost, too.
        broker.kill()
        broker.start()
        if fails:
            with pytest.raises(DataLost, match="were deleted, or may have been"):
                list(parts)
        else:
            found += [each for filled in parts for each in values(rows_of(filled))]
            assert found[-21:] == ledgers.sent[2] + ledgers.last and len(found) < 640
    finally:
        reading.close()
        client.close()


def test_a_ledger_that_was_read_to_its_end_may_be_deleted(
    own_broker: BrokerFactory, topic: str
) -> None:
    """Where REST has told how many entries it had."""
    broker = own_broker()
    broker.start()
    client = official_client(broker.url)
    try:
        ledgers = Ledgers(broker, topic, client)
        options = options_of(broker, topic=topic, admin_url=broker.web_url)
        (whole,) = plan_of(options)
        first, _ = whole.ledgers[0]
        ledgers.delete(1)
        later = whole._replace(begin=Position(first, 19))
        expected = ledgers.sent[1] + ledgers.sent[2] + ledgers.last
        assert values(read(options, later)) == expected
        for begin in (Position(first, 18), Position(first, 18, 0)):
            with pytest.raises(DataLost):
                read(options, whole._replace(begin=begin))
        with pytest.raises(DataLost):
            read(options, later._replace(ledgers=()))
    finally:
        client.close()


@pytest.mark.standalone
@both_readers
@pytest.mark.parametrize("is_made_again", [False, True], ids=["gone", "made-again"])
def test_a_topic_that_is_deleted_within_a_range_is_noticed(
    own_broker: BrokerFactory, topic: str, reader: str, is_made_again: bool
) -> None:
    broker = own_broker()
    broker.start()
    client = official_client(broker.url)
    publish(client, topic, 600, bytes_min=50 << 10)
    client.close()
    given = {"topic": topic, "reader": reader}
    (whole,) = plan_of(options_of(broker, **given))
    readings = [
        RangeReader(options_of(broker, **given, failOnDataLoss=each), whole)
        for each in ("true", "false")
    ]
    strict, patient = parts = [iter(each) for each in readings]
    assert all(0 < len(rows_of(next(each))) < 600 for each in parts)
    path = f"/admin/v2/{topic.replace('://', '/')}?force=true"
    assert broker.rest("DELETE", path)[0] == 204
    if is_made_again:
        client = official_client(broker.url)
        publish(client, topic, 600)
        client.close()
    with pytest.raises(DataLost if is_made_again else TopicMissing):
        list(strict)
    assert sum(len(rows_of(each)) for each in patient) < 590
    for each in readings:
        each.close()
