"""Hot commands: the decoders against plain ones and protobuf, the builders against protobuf."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from harness import wire as client_wire
from hypothesis import given
from hypothesis import strategies as st

from oracles import commands as plain
from oracles import wire
from oracles.golden import CLIENT_FRAMES
from pyxbroker import commands
from pyxbroker.broker.commands import command_checks
from pyxbroker.proto import PulsarApi as pb

uint64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1), st.just(2**64 - 1))
uint32 = st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1))
int32 = st.one_of(st.integers(-2, 300), st.integers(-(2**31), 2**31 - 1))
int64 = st.one_of(st.integers(-2, 300), st.integers(-(2**63), 2**63 - 1))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


def messages(kind: Any, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Messages of a kind; a field that is drawn as None is left out."""
    return st.fixed_dictionaries(fields).map(
        lambda drawn: kind(**{name: value for name, value in drawn.items() if value is not None})
    )


sends = messages(
    pb.CommandSend,
    producer_id=uint64,
    sequence_id=uint64,
    num_messages=maybe(int32),
    txnid_least_bits=maybe(uint64),
    txnid_most_bits=maybe(uint64),
    highest_sequence_id=maybe(uint64),
    is_chunk=maybe(st.booleans()),
    marker=maybe(st.booleans()),
)
flows = messages(pb.CommandFlow, consumer_id=uint64, messagePermits=uint32)
message_ids = messages(
    pb.MessageIdData,
    ledgerId=uint64,
    entryId=uint64,
    partition=maybe(int32),
    batch_index=maybe(int32),
    ack_set=st.lists(int64, max_size=6),
    batch_size=maybe(int32),
)
acks = messages(
    pb.CommandAck,
    consumer_id=uint64,
    ack_type=st.sampled_from([pb.CommandAck.Individual, pb.CommandAck.Cumulative]),
    message_id=st.lists(message_ids, max_size=5),
    validation_error=maybe(st.integers(0, 4)),
    txnid_least_bits=maybe(uint64),
    txnid_most_bits=maybe(uint64),
    request_id=maybe(uint64),
)
redeliveries = messages(
    pb.CommandRedeliverUnacknowledgedMessages,
    consumer_id=uint64,
    message_ids=st.lists(message_ids, max_size=5),
    consumer_epoch=maybe(uint64),
)
metadata = messages(
    pb.MessageMetadata,
    producer_name=texts,
    sequence_id=uint64,
    publish_time=uint64,
    properties=st.lists(st.builds(lambda k: pb.KeyValue(key=k, value=k), texts), max_size=3),
    partition_key=maybe(texts),
    compression=maybe(st.integers(0, 4)),
    num_messages_in_batch=maybe(int32),
    partition_key_b64_encoded=maybe(st.booleans()),
    ordering_key=maybe(st.binary(max_size=12)),
    deliver_at_time=maybe(int64),
    marker_type=maybe(int32),
    highest_sequence_id=maybe(uint64),
    compacted_batch_indexes=st.lists(int32, max_size=3),
)

# name -> message class, messages, decoder under test, plain decoder, protobuf's view
KINDS: dict[str, tuple[Any, Any, Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "send": (
        pb.CommandSend,
        sends,
        commands.decode_send_py,
        plain.decode_send,
        plain.send_of,
    ),
    "flow": (
        pb.CommandFlow,
        flows,
        commands.decode_flow_py,
        plain.decode_flow,
        plain.flow_of,
    ),
    "ack": (
        pb.CommandAck,
        acks,
        commands.decode_ack_py,
        plain.decode_ack,
        plain.ack_of,
    ),
    "redeliver": (
        pb.CommandRedeliverUnacknowledgedMessages,
        redeliveries,
        commands.decode_redeliver_py,
        plain.decode_redeliver,
        plain.redeliver_of,
    ),
    "metadata": (
        pb.MessageMetadata,
        metadata,
        commands.peek_metadata_py,
        plain.peek_metadata,
        plain.metadata_of,
    ),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
@given(data=st.data())
def test_what_protobuf_writes_is_read_as_protobuf_reads_it(kind: str, data: st.DataObject) -> None:
    _, drawn, decode, oracle, view = KINDS[kind]
    message = data.draw(drawn)
    encoded = message.SerializeToString()
    assert decode(encoded) == oracle(encoded) == view(message)


@each_kind
@given(data=st.data())
def test_a_message_cut_at_every_offset_is_read_as_the_plain_decoder_reads_it(
    kind: str, data: st.DataObject
) -> None:
    _, drawn, decode, oracle, _ = KINDS[kind]
    encoded = data.draw(drawn).SerializeToString()
    for end in range(len(encoded) + 1):
        # A copy of exactly this length, so that a read past its end has nothing to find.
        assert decode(bytes(encoded[:end])) == oracle(encoded[:end]), f"cut at {end}"


@each_kind
@given(data=st.data())
def test_damaged_messages_are_read_as_the_plain_decoder_reads_them(
    kind: str, data: st.DataObject
) -> None:
    message_class, drawn, decode, oracle, view = KINDS[kind]
    damaged = bytearray(data.draw(drawn).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    encoded = bytes(damaged)
    got = decode(encoded)
    assert got == oracle(encoded)
    if got is None or plain.is_overlong(encoded):
        return
    # Where protobuf, which checks more, takes the message too, it reads the same.
    parsed = plain.parse(message_class, encoded)
    if parsed is not None and not plain.has_unknown(parsed):
        assert got == view(parsed)


@each_kind
@given(noise=st.binary(max_size=40))
def test_noise_is_read_as_the_plain_decoder_reads_it(kind: str, noise: bytes) -> None:
    _, _, decode, oracle, _ = KINDS[kind]
    assert decode(noise) == oracle(noise)


@each_kind
@given(data=st.data(), number=st.integers(100, 2**29 - 1), body=st.binary(max_size=8))
def test_unknown_fields_are_passed_over(
    kind: str, data: st.DataObject, number: int, body: bytes
) -> None:
    _, drawn, decode, _, view = KINDS[kind]
    message = data.draw(drawn)
    unknown = _varint(number << 3 | wire.BYTES) + _varint(len(body)) + body
    fixed = _varint(number << 3 | wire.FIXED32) + b"1234" + _varint(number << 3 | 1) + b"12345678"
    assert decode(unknown + message.SerializeToString() + fixed) == view(message)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "08",  # a key without its value
        "08ff",  # a varint that does not end
        "08ffffffffffffffffffff01",  # one of eleven bytes
        "1001",  # a required field is missing
        "080110010a05ab",  # a field longer than what is there
        "080110010affffffffffffffffff01",  # and one of 2^64-1 bytes
        "0801100100",  # field number 0
        "080110010b0c",  # a group
        "080110010f",  # no such wire type
    ],
)
@each_kind
def test_malformed_bytes_are_refused(kind: str, encoded: str) -> None:
    assert KINDS[kind][2](bytes.fromhex(encoded)) is None


def test_an_unknown_ack_type_is_refused() -> None:
    assert commands.decode_ack_py(bytes.fromhex("08011002")) is None


@given(message_id=message_ids)
def test_a_packed_ack_set_reads_like_an_unpacked_one(message_id: Any) -> None:
    body = b"".join(_varint(word & (2**64 - 1)) for word in message_id.ack_set)
    loose = pb.CommandAck(consumer_id=1, ack_type=0, message_id=[message_id])
    message_id = pb.MessageIdData.FromString(message_id.SerializeToString())
    message_id.ClearField("ack_set")
    packed = message_id.SerializeToString() + b"\x2a" + _varint(len(body)) + body
    encoded = b"\x08\x01\x10\x00\x1a" + _varint(len(packed)) + packed
    assert commands.decode_ack_py(encoded) == plain.ack_of(loose)


# --- what is counted before protobuf parses -----------------------------------------------------


def fields_of(message: Any) -> int:
    """Fields that protobuf has found in a message and the messages in it."""
    found = len(UnknownFieldSet(message))
    for field, value in message.ListFields():
        for each in value if field.is_repeated else [value]:
            found += 1 + (fields_of(each) if field.message_type is not None else 0)
    return found


def at_most(data: bytes, count: int) -> bool:
    return not commands.has_more_fields(data, command_checks._shape_of_command(), count)


def watched() -> Any:
    """A command with messages in messages, properties, texts and numbers."""
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    subscribe = command.subscribe
    subscribe.topic, subscribe.subscription, subscribe.subType = "t" * 300, "s", 0
    subscribe.consumer_id, subscribe.request_id = 2**40, 7
    subscribe.start_message_id.ledgerId = subscribe.start_message_id.entryId = 5
    subscribe.start_message_id.ack_set.extend([-1, 3])
    subscribe.start_message_id.first_chunk_message_id.ledgerId = 1
    subscribe.start_message_id.first_chunk_message_id.entryId = 1
    for number in range(20):
        subscribe.metadata.add(key=f"k{number}", value="")
        subscribe.start_message_id.first_chunk_message_id.ack_set.append(number)
    subscribe.schema.name, subscribe.schema.type, subscribe.schema.schema_data = "s", 2, b"d"
    for number in range(20):
        subscribe.schema.properties.add(key=f"k{number}", value="")
    return command


def test_the_fields_of_a_command_are_counted_as_protobuf_finds_them() -> None:
    command = watched()
    data = command.SerializeToString()
    count = fields_of(command)
    assert count > 120
    assert at_most(data, count)
    assert not at_most(data, count - 1)


@pytest.mark.parametrize(
    ("field", "count"),
    [
        (b"\xc0\x3e\x00", 1),  # an unknown number
        (b"\xc2\x3e\x03abc", 1),  # unknown bytes
        (b"\xc1\x3e" + bytes(8), 1),
        (b"\xc5\x3e" + bytes(4), 1),
        (b"\xc3\x3e\xc0\x3e\x00\xc4\x3e", 3),  # a group with a field
    ],
)
def test_unknown_fields_are_counted_too(field: bytes, count: int) -> None:
    data = b"\x08\x12" + field * 1000
    assert at_most(data, 1 + 1000 * count)
    assert not at_most(data, 1000 * count)


@pytest.mark.parametrize("cut", ["80", "08", "0880", "0a", "0a80", "0a02ff", "0d01", "0901"])
def test_fields_before_one_that_is_cut_short_are_counted(cut: str) -> None:
    data = bytes.fromhex("0801" * 3 + cut)
    shape = command_checks._shape_of_command()
    assert commands.has_more_fields(data, shape, 3)
    assert not commands.has_more_fields(data, shape, 4)


def test_packed_numbers_are_counted_one_by_one() -> None:
    """SEEK to a position with an ack set of 1,000 numbers, two bytes each, in one field."""
    ids = b"\x08\x01\x10\x01\x2a" + _varint(2000) + b"\x80\x01" * 1000
    seek = b"\x08\x01\x10\x02\x1a" + _varint(len(ids)) + ids
    data = b"\x08\x1c\xe2\x01" + _varint(len(seek)) + seek
    assert len(pb.BaseCommand.FromString(data).seek.message_id.ack_set) == 1000
    assert at_most(data, 2 + 3 + 3 + 1000)
    assert not at_most(data, 2 + 3 + 3 + 1000 - 1)


def test_messages_in_each_other_are_counted_no_deeper_than_protobuf_goes() -> None:
    message_id = b""
    for _ in range(500):
        message_id = b"\x3a" + _varint(len(message_id)) + message_id
    seek = b"\x1a" + _varint(len(message_id)) + message_id
    data = b"\x08\x1c\xe2\x01" + _varint(len(seek)) + seek
    with pytest.raises(DecodeError):
        pb.BaseCommand.FromString(data)
    assert at_most(data, 110)


@given(noise=st.binary(max_size=60))
def test_protobuf_finds_no_more_fields_than_were_counted(noise: bytes) -> None:
    try:
        count = fields_of(pb.BaseCommand.FromString(noise))
    except DecodeError:
        return
    assert count == 0 or not at_most(noise, count - 1)


def test_the_request_id_is_found_without_the_rest() -> None:
    subscribe, lookup = pb.BaseCommand.SUBSCRIBE, pb.BaseCommand.LOOKUP
    request = command_checks.request_of(subscribe, watched().SerializeToString())
    assert (request.DESCRIPTOR.name, request.request_id) == ("CommandSubscribe", 7)
    assert request.SerializePartialToString() == b"\x28\x07"
    for kind, nothing in (
        (subscribe, b""),
        (subscribe, b"\x08\x04"),
        (subscribe, b"\x08\x04\x22\x00"),
        (pb.BaseCommand.PING, b"\x08\x12\x92\x01\x00"),  # has no request id
        (1, b"\x08\x01\x0a\x00"),  # is no command
        (0, b""),
    ):
        assert command_checks.request_of(kind, nothing) is None
    far = b"\xc0\x3e\x00" * command_checks.REQUEST_ID_FIELDS_MAX + b"\x10\x07"  # of a LOOKUP
    assert command_checks.request_of(lookup, b"\x08\x17\xba\x01" + _varint(len(far)) + far) is None


# --- the envelope -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLIENT_FRAMES)
def test_the_clients_commands_have_the_shape_that_is_decoded_in_place(name: str) -> None:
    ((command, _),), _, _ = wire.scan(bytes.fromhex(CLIENT_FRAMES[name]), 1000)
    kind, message = commands.decode_base_py(command)
    assert kind == pb.BaseCommand.Type.Value(name)
    assert (kind, message) == plain.decode_base(command)


def test_the_clients_message_is_read_in_place() -> None:
    ((command, section),), _, _ = wire.scan(bytes.fromhex(CLIENT_FRAMES["SEND"]), 1000)
    _, message = commands.decode_base_py(command)
    assert commands.decode_send_py(message)["num_messages"] == 1
    peeked = commands.peek_metadata_py(wire.check_payload(section)[0])
    assert (peeked["partition_key"], peeked["producer_name"]) == (b"k", b"producer-0")
    assert (peeked["is_batch"], peeked["sequence_id"]) == (False, 0)


def test_indexes_of_a_compacted_batch_count_packed_or_not() -> None:
    plain = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    plain.properties.add(key="k", value="v")
    encoded = plain.SerializeToString()
    assert commands.peek_metadata_py(encoded)["compacted_indexes"] == 0
    packed, single = b"\xfa\x01\x03\x01\xac\x02", b"\xf8\x01\x05"
    assert commands.peek_metadata_py(encoded + packed + single)["compacted_indexes"] == 3


@given(st.binary(max_size=24))
def test_decode_base_agrees_with_the_plain_decoder_on_noise(noise: bytes) -> None:
    for start in (b"", b"\x08\x06", b"\x08\x06\x32", b"\x08\x0a\x52", b"\x08\x12\x92\x01"):
        assert commands.decode_base_py(start + noise) == plain.decode_base(start + noise)


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "0806",  # no message
        "32000806",  # the message before the type
        "08063a00",  # the message of another type
        "080632000801",  # something behind it
        "0806320108",  # a message longer than what is there, by none: whole
        "0a0006",
    ],
)
def test_an_unusual_envelope_is_left_to_protobuf(encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert commands.decode_base_py(data) == plain.decode_base(data)
    assert (commands.decode_base_py(data) is None) == (encoded != "0806320108")


# --- what is built ------------------------------------------------------------------------------


@given(uint64, uint64, uint64, uint64, uint64)
def test_a_receipt_is_built_as_protobuf_builds_it(
    producer_id: int, sequence_id: int, highest: int, ledger_id: int, entry_id: int
) -> None:
    arguments = (producer_id, sequence_id, highest, ledger_id, entry_id)
    assert commands.build_receipt_py(*arguments) == plain.build_receipt(*arguments)


@given(
    uint64,
    uint64,
    uint64,
    st.integers(-1, 2**31 - 1),
    uint32,
    st.lists(int64, max_size=8),
    st.integers(-1, 2**63 - 1),
    st.integers(0, 5000),
)
def test_a_message_header_is_built_as_protobuf_builds_it(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    partition: int,
    redelivery_count: int,
    ack_set: list[int],
    consumer_epoch: int,
    payload_size: int,
) -> None:
    arguments = (
        consumer_id,
        ledger_id,
        entry_id,
        partition,
        redelivery_count,
        ack_set,
        consumer_epoch,
        payload_size,
    )
    assert commands.build_message_header_py(*arguments) == plain.build_message_header(*arguments)


HUGE = 2**64 - 1


def test_the_largest_receipt_fits_its_buffer() -> None:
    frame = commands.build_receipt_py(HUGE, HUGE, HUGE, HUGE, HUGE)
    assert frame == plain.build_receipt(HUGE, HUGE, HUGE, HUGE, HUGE)
    assert len(frame) <= 80  # RECEIPT_BYTES_MAX


LARGEST_HEADER = """
from pyxbroker import commands
from pyxbroker.broker.commands import command_checks
huge, words = 2**64 - 1, {words}
frame = commands.build_message_header_py(
    huge, huge, huge, 2**31 - 1, 2**32 - 1, [-1] * words, 2**63 - 1, 1
)
print(frame.hex())
"""


@pytest.mark.parametrize("words", [0, 1, 42, 64])
def test_the_largest_message_header_fits_its_buffer(words: int) -> None:
    # A word of an ack set takes a byte for its key and up to ten for its value. The header is built
    # in a process of its own: one that runs over its buffer ends the process.
    arguments = (HUGE, HUGE, HUGE, 2**31 - 1, 2**32 - 1, [-1] * words, 2**63 - 1, 1)
    script = LARGEST_HEADER.format(words=words)
    run = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert run.returncode == 0, f"{words} words: the process died with {run.returncode}"
    assert run.stdout.strip() == plain.build_message_header(*arguments).hex()


@pytest.mark.parametrize("is_packed", [False, True], ids=["one by one", "packed"])
@pytest.mark.parametrize("count", [1_024, 1_025, 20_000])
def test_an_ack_set_has_no_more_words_than_there_is_room_for(count: int, is_packed: bool) -> None:
    words = b"\x01" * count
    if is_packed:
        ack_set = client_wire.encode({5: words})
    else:
        ack_set = b"".join(b"\x28" + words[at : at + 1] for at in range(count))
    one = client_wire.encode({1: 7, 2: 8}) + ack_set
    command = client_wire.encode({1: 3, 2: 0}) + client_wire.encode({3: one})
    found = commands.decode_ack_py(command)
    if count > 1_024:
        assert found is None
    else:
        assert found is not None
        assert found[1] == [(7, 8, -1, 0, [1] * count)]


def test_a_field_of_a_send_that_nobody_knows_says_nothing() -> None:
    known = pb.CommandSend(producer_id=1, sequence_id=2).SerializeToString()
    unknown = b"".join(bytes([number << 3, 1]) for number in range(9, 16))
    assert commands.decode_send_py(known + unknown) == commands.decode_send_py(known)
