"""The load generator's frames, schedule and histogram."""

from __future__ import annotations

import random
from typing import Any

import pytest
from harness import wire
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from pyxbroker.base import compression
from pyxbroker.client.entries import CODECS, MessageId, ReceivedEntry
from pyxbroker.frames import scan
from pyxbroker.load_generator import (
    FIXED_KEY,
    INCREMENTED_KEY,
    NO_KEY,
    RANDOM_KEY,
    STAMP_MAGIC,
    STAMP_SIZE,
    VALUE_MAX_US,
    Latencies,
    LoadConnection,
    LoadConsumer,
    LoadPayload,
    LoadProducer,
    LoadStats,
)
from pyxbroker.perf.results import hdr_histogram

MS = 1_000_000
START = 1_000 * MS
BIG = 1 << 30
PERCENTS = (1, 50, 90, 99, 99.9, 99.99, 100)


class Sender:
    """A connection with one producer."""

    def __init__(self, payload: LoadPayload, outstanding_max: int = 10_000, **options: Any) -> None:
        self.stats = LoadStats()
        self.producer = LoadProducer(7, b"p", payload, self.stats, outstanding_max, **options)
        self.connection = LoadConnection()
        self.connection.add_producer(self.producer)

    def frames(self, now_ns: int = START, bytes_max: int = BIG) -> list[wire.Frame]:
        data = b"".join(self.connection.produce(bytes_max, now_ns))
        return list(wire.FrameReader().feed(data))

    def acknowledge(self, sequence_id: int, now_ns: int) -> None:
        body = {1: 7, 2: sequence_id, 3: wire.message_id(1, sequence_id)}
        data = wire.command(wire.SEND_RECEIPT, body)
        assert self.connection.receive(data, now_ns) == len(data)


def messages_of(frame: wire.Frame) -> list[Any]:
    """Read a frame by the client's own decoder, which checks the checksum."""
    return ReceivedEntry(MessageId(1, 1), 0, (), frame.rest).messages()


# --- the histogram ----------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [3, 11, 12, 20, 34])
def test_percentiles_are_those_of_hdrhistogram(bits: int) -> None:
    chance = random.Random(bits)
    values = [0, 1, (1 << bits) - 1, *(chance.randrange(1 << bits) for _ in range(500))]
    ours, theirs = Latencies(), HdrHistogram(1, VALUE_MAX_US, 3)
    for each in values:
        ours.record(each)
        theirs.record_value(each)
    wanted = [theirs.get_value_at_percentile(percent) for percent in PERCENTS]
    assert ours.percentiles(PERCENTS) == wanted
    assert [hdr_histogram(ours).get_value_at_percentile(each) for each in PERCENTS] == wanted
    assert (ours.min_us, ours.max_us, ours.count) == (min(values), max(values), len(values))
    assert ours.total_us == sum(values)


def test_histograms_are_merged_and_reset() -> None:
    one, other = Latencies(), Latencies()
    one.record(5, 3)
    other.record(2)
    other.record(9)
    one.merge(other)
    one.merge(Latencies())
    assert one.buckets() == [(2, 1), (5, 3), (9, 1)]
    assert (one.min_us, one.max_us, one.count, one.total_us) == (2, 9, 5, 26)
    one.reset()
    assert (one.buckets(), one.count, one.percentiles((50,))) == ([], 0, [0])


def test_values_outside_of_the_range_are_recorded_at_its_ends() -> None:
    one = Latencies()
    one.record(-5)
    one.record(1 << 40)
    assert (one.min_us, one.max_us) == (0, VALUE_MAX_US)


# --- frames -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, STAMP_SIZE - 1, STAMP_SIZE, 128, 1024, 100_000])
def test_single_messages_have_checksum_ids_and_payload(size: int) -> None:
    sender = Sender(LoadPayload(b"x" * size), quota=3, next_sequence_id=298)
    sender.producer.schedule(START, 0)
    frames = sender.frames()
    assert [(each.type, each.number(1), each.number(2)) for each in frames] == [
        (wire.SEND, 7, number) for number in (298, 299, 300)
    ]
    for number, frame in enumerate(frames, start=298):
        payload = wire.parse_payload(frame.rest)
        assert payload.checksum_ok
        assert (payload.metadata[1], payload.metadata[2]) == ([b"p"], [number])
        assert len(payload.body) == size
        assert payload.body.startswith(STAMP_MAGIC if size >= STAMP_SIZE else b"x" * size)
        assert payload.body[STAMP_SIZE:] == b"x" * max(size - STAMP_SIZE, 0)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("size", "batch_max"), [(128, 1), (10, 7), (128, 300), (1024, 1000)])
def test_the_client_reads_each_message_of_an_entry(codec: str, size: int, batch_max: int) -> None:
    payload = LoadPayload(b"x" * size, batch_max, CODECS[codec], compression.compress)
    sender = Sender(payload, quota=batch_max + 3)
    sender.producer.schedule(START, 0)
    counts = []
    for frame in sender.frames():
        found = messages_of(frame)
        counts.append(len(found))
        assert {len(each.value) for each in found} == {size}
        assert frame.number(3, 1) == len(found)
    assert counts == ([batch_max, 3] if batch_max > 1 else [1] * 4)
    assert sender.stats.sent == batch_max + 3


def test_all_buffers_of_a_large_batch_follow_each_other() -> None:
    sender = Sender(LoadPayload(b"x" * 1000, 500), outstanding_max=5000, quota=1250)
    sender.producer.schedule(START, 0)
    data = b"".join(sender.connection.produce(BIG, START))
    frames, consumed, error = scan(data, BIG)
    assert (len(frames), consumed, error) == (3, len(data), None)
    assert [each.number(2) for each in wire.FrameReader().feed(data)] == [0, 500, 1000]


@pytest.mark.parametrize(
    ("mode", "options", "keys"),
    [
        (NO_KEY, {}, [None, None, None]),
        (FIXED_KEY, {"key": b"device-4"}, ["device-4"] * 3),
        (INCREMENTED_KEY, {"next_sequence_id": 9}, ["9", "10", "11"]),
    ],
)
def test_keys(mode: int, options: dict[str, Any], keys: list[str | None]) -> None:
    sender = Sender(LoadPayload(b"x" * 128), quota=3, key_mode=mode, **options)
    sender.producer.schedule(START, 0)
    assert [messages_of(frame)[0].key for frame in sender.frames()] == keys


def test_random_keys_are_below_their_bound_and_differ_between_producers() -> None:
    found = []
    for seed in (1, 2):
        sender = Sender(LoadPayload(b""), quota=500, key_mode=RANDOM_KEY, key_bound=50, seed=seed)
        sender.producer.schedule(START, 0)
        found.append([int(messages_of(frame)[0].key) for frame in sender.frames()])
    assert set(found[0]) == set(range(50))
    assert found[0] != found[1]


def test_messages_of_a_batch_have_no_keys() -> None:
    with pytest.raises(ValueError, match="no keys"):
        Sender(LoadPayload(b"", 2), key_mode=RANDOM_KEY)


# --- the schedule -----------------------------------------------------------------------------


def test_messages_are_sent_when_they_are_due() -> None:
    sender = Sender(LoadPayload(b"x" * 100))
    sender.producer.schedule(START, 2.5 * MS)
    assert sender.frames(START - 1) == []
    assert sender.connection.next_due_ns == START
    assert len(sender.frames(START)) == 1
    assert sender.connection.next_due_ns == START + 2_500_000
    assert sender.frames(START + 2_499_999) == []
    assert len(sender.frames(START + 10 * MS)) == 4
    assert sender.connection.next_due_ns == START + 12_500_000


def test_a_rate_has_no_drift() -> None:
    sender = Sender(LoadPayload(b""), outstanding_max=100_000)
    sender.producer.schedule(START, 1e9 / 30_000)
    for number in range(1, 11):
        sender.frames(START + number * 100 * MS)
    assert sender.stats.sent == 30_001


def test_latency_counts_from_the_scheduled_time() -> None:
    sender = Sender(LoadPayload(b"x" * 100), outstanding_max=1)
    sender.producer.schedule(START, 1 * MS)
    assert len(sender.frames(START)) == 1
    assert sender.frames(START + 5 * MS) == []  # the window is full
    sender.acknowledge(0, START + 10 * MS)
    assert len(sender.frames(START + 10 * MS)) == 1
    sender.acknowledge(1, START + 11 * MS)
    assert sender.stats.latencies.buckets() == [(10_000, 2)]
    assert (sender.stats.since_sent.min_us, sender.stats.since_sent.max_us) == (1000, 10_000)


def test_each_message_of_a_batch_has_its_own_latency() -> None:
    sender = Sender(LoadPayload(b"x" * 100, 1000))
    sender.producer.schedule(START, 1 * MS, 3 * MS)
    assert sender.frames(START + 2 * MS) == []  # the batch waits for three milliseconds
    (frame,) = sender.frames(START + 3 * MS)
    assert len(messages_of(frame)) == 4
    sender.acknowledge(0, START + 4 * MS)
    latencies = sender.stats.latencies.buckets()
    assert latencies == [(1000, 1), (2000, 1), (3000, 1), (4000, 1)]


def test_a_full_batch_does_not_wait() -> None:
    sender = Sender(LoadPayload(b"x" * 100, 3))
    sender.producer.schedule(START, 1 * MS, 1000 * MS)
    assert sender.frames(START + 1 * MS) == []
    assert [len(messages_of(each)) for each in sender.frames(START + 2 * MS)] == [3]


def test_at_maximum_rate_the_window_is_full_and_no_fuller() -> None:
    sender = Sender(LoadPayload(b"x" * 100, 4), outstanding_max=10)
    sender.producer.schedule(START, 0)
    assert len(sender.frames()) == 2  # 8 messages: no part of a batch
    assert sender.connection.next_due_ns == 0
    assert sender.frames() == []
    sender.acknowledge(0, START)
    assert len(sender.frames()) == 1
    assert sender.producer.outstanding == 8


def test_producers_take_turns() -> None:
    connection, stats = LoadConnection(), LoadStats()
    for number in range(3):
        producer = LoadProducer(number, b"p", LoadPayload(b"x" * 1000), stats, 100)
        producer.schedule(START, 0)
        connection.add_producer(producer)
    data = b"".join(connection.produce(5000, START))
    data += b"".join(connection.produce(5000, START))
    turns = [frame.number(1) for frame in wire.FrameReader().feed(data)]
    assert turns == [number % 3 for number in range(len(turns))]
    assert 8 <= len(turns) <= 12


def test_a_stopped_producer_sends_nothing() -> None:
    sender = Sender(LoadPayload(b""))
    sender.producer.schedule(START, 0)
    sender.producer.stop()
    assert sender.frames() == []
    assert sender.connection.next_due_ns == -1


# --- receipts ---------------------------------------------------------------------------------


def test_messages_without_receipt_are_failures() -> None:
    sender = Sender(LoadPayload(b"x" * 10), quota=5)
    sender.producer.schedule(START, 0)
    sender.frames()
    sender.connection.fail(7, 0)  # refused
    sender.acknowledge(2, START)  # 1 was lost
    assert (sender.stats.messages, sender.stats.failures) == (1, 2)
    assert sender.producer.outstanding == 2
    sender.producer.give_up()
    assert (sender.stats.take(), sender.producer.outstanding) == ((1, 10, 4), 0)
    assert sender.stats.take() == (0, 0, 0)


def test_a_receipt_that_comes_twice_counts_once() -> None:
    sender = Sender(LoadPayload(b"x" * 10), quota=2)
    sender.producer.schedule(START, 0)
    sender.frames()
    sender.acknowledge(0, START)
    sender.acknowledge(0, START)
    assert (sender.stats.messages, sender.producer.outstanding) == (1, 1)


def test_other_commands_are_left_to_the_caller() -> None:
    sender = Sender(LoadPayload(b"x"), quota=1)
    sender.producer.schedule(START, 0)
    sender.frames()
    receipt = wire.command(wire.SEND_RECEIPT, {1: 7, 2: 0, 3: wire.message_id(1, 1)})
    ping = wire.command(wire.PING, {})
    connection = sender.connection
    assert connection.receive(receipt + ping + receipt, START) == len(receipt)
    assert connection.is_other_next
    assert connection.receive(ping[:-1], START) == 0
    assert not connection.is_other_next


# --- messages ---------------------------------------------------------------------------------


class Receiver:
    """A connection with one consumer, which gets what a producer has sent."""

    def __init__(self, permits: int, acknowledges: bool = True) -> None:
        self.stats = LoadStats()
        self.connection = LoadConnection()
        self.connection.add_consumer(LoadConsumer(5, self.stats, permits, acknowledges))

    def receive(self, section: bytes, entry: int, now_ns: int) -> None:
        base = {1: wire.MESSAGE, 9: wire.encode({1: 5, 2: wire.message_id(3, entry)})}
        command = wire.encode(base)
        size = (4 + len(command) + len(section)).to_bytes(4, "big")
        data = size + len(command).to_bytes(4, "big") + command + section
        assert self.connection.receive(data, now_ns) == len(data)

    def answers(self) -> list[wire.Frame]:
        return list(wire.FrameReader().feed(self.connection.take_answers()))


def test_a_consumer_grants_permits_and_acknowledges() -> None:
    receiver = Receiver(permits=4)
    (flow,) = receiver.answers()
    assert (flow.type, flow.fields) == (wire.FLOW, {1: [5], 2: [4]})
    section = _section(b"x" * 50)
    receiver.receive(section, 1, START)
    assert receiver.answers() == []
    receiver.receive(section, 2, START)
    (flow,) = receiver.answers()
    assert (flow.type, flow.fields) == (wire.FLOW, {1: [5], 2: [2]})
    receiver.connection.flush_acks()
    (ack,) = receiver.answers()
    assert (ack.type, ack.number(1), ack.number(2)) == (wire.ACK, 5, wire.INDIVIDUAL)
    assert [wire.position(each) for each in ack.fields[3] if isinstance(each, bytes)] == [
        (3, 1),
        (3, 2),
    ]
    receiver.connection.flush_acks()
    assert receiver.answers() == []
    assert (receiver.stats.messages, receiver.stats.bytes) == (2, 100)


def test_a_reader_acknowledges_nothing() -> None:
    receiver = Receiver(permits=100, acknowledges=False)
    receiver.answers()
    receiver.receive(_section(b"x"), 1, START)
    receiver.connection.flush_acks()
    assert receiver.answers() == []


@pytest.mark.parametrize("batch_max", [1, 1000])
def test_stamps_tell_the_receiver_the_scheduled_times(batch_max: int) -> None:
    sender = Sender(LoadPayload(b"x" * 100, batch_max))
    sender.producer.schedule(START, 1 * MS, 2 * MS)
    receiver = Receiver(permits=100)
    for entry, frame in enumerate(sender.frames(START + 2 * MS)):
        receiver.receive(frame.rest, entry, START + 5 * MS)
    found = [us for us, count in receiver.stats.latencies.buckets() for _ in range(count)]
    # The two connections take the difference of the clocks by themselves.
    assert found == pytest.approx([3000, 4000, 5000], abs=200)


def test_messages_without_stamp_count_from_their_publish_time() -> None:
    sender = Sender(LoadPayload(b""))
    sender.producer.schedule(START, 1 * MS)
    receiver = Receiver(permits=100)
    receiver.receive(sender.frames()[0].rest, 1, START + 50 * MS)
    assert receiver.stats.latencies.max_us == pytest.approx(50_000, abs=1100)


@pytest.mark.parametrize(
    "data",
    [
        bytes.fromhex("00000002 00000000"),
        wire.command(wire.SEND_RECEIPT, {1: 99, 2: 0}),
        wire.command(wire.MESSAGE, {1: 5}),
        wire.command(wire.MESSAGE, {1: 99, 2: wire.message_id(1, 1)}),
        wire.command(wire.MESSAGE, {1: 5, 2: wire.message_id(1, 1)}),
    ],
    ids=["frame", "producer", "no-id", "consumer", "no-metadata"],
)
def test_malformed_frames_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="the broker sent"):
        Receiver(permits=10).connection.receive(data, START)


def test_any_bytes_are_read_or_refused() -> None:
    @settings(deadline=None)
    @given(st.binary(max_size=60), st.sampled_from((wire.SEND_RECEIPT, wire.MESSAGE)))
    def check(data: bytes, kind: int) -> None:
        sender = Sender(LoadPayload(b"x"), quota=1)
        command = wire.encode({1: kind, kind: data[:30]})
        size = (4 + len(command) + len(data[30:])).to_bytes(4, "big")
        frame = size + len(command).to_bytes(4, "big") + command + data[30:]
        try:
            sender.connection.receive(frame, START)
        except ValueError:
            return

    check()


def _section(body: bytes) -> bytes:
    frame = wire.send(1, 0, wire.metadata("p", 0, 1), body)
    return next(iter(wire.FrameReader().feed(frame))).rest
