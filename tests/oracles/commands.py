"""Hot commands, decoded field by field and, for comparison, by protobuf.

The functions return what the test faces of pyxbroker.commands return, and None for bytes that are
no such message or lack a required field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from oracles.wire import BYTES, VARINT, Malformed, fields, frame, signed, varint, varints
from pyxbroker.proto import PulsarApi as pb


def _last(data: bytes, wire: int) -> dict[int, Any]:
    """Field number -> its value, of fields with one wire type; the last one written counts."""
    return {each.number: each.value for each in fields(data) if each.wire == wire}


def decode_base(data: bytes) -> tuple[int, bytes] | None:
    """(type, message) when the command is a type and then its message and nothing else."""
    try:
        found = list(_first_two(data))
    except Malformed:
        return None
    if len(found) != 2:
        return None
    kind, message = found
    if kind.number != 1 or kind.wire != VARINT or kind.value >= 2**16:
        return None
    if message.number != kind.value or message.wire != BYTES:
        return None
    return kind.value, message.value


def _first_two(data: bytes) -> Iterator[Any]:
    for count, each in enumerate(fields(data)):
        if count == 2:
            raise Malformed("a third field")
        yield each


def decode_send(data: bytes) -> dict[str, Any] | None:
    try:
        found = _last(data, VARINT)
    except Malformed:
        return None
    if not {1, 2} <= found.keys():
        return None
    return {
        "producer_id": found[1],
        "sequence_id": found[2],
        "highest_sequence_id": found.get(6, 0),
        "num_messages": signed(found.get(3, 1), 32),
        "txnid_least_bits": found.get(4, 0),
        "txnid_most_bits": found.get(5, 0),
        "has_txn": 4 in found and 5 in found,
        "is_chunk": found.get(7, 0) != 0,
        "marker": found.get(8, 0) != 0,
    }


def decode_flow(data: bytes) -> dict[str, Any] | None:
    try:
        found = _last(data, VARINT)
    except Malformed:
        return None
    if not {1, 2} <= found.keys():
        return None
    return {"consumer_id": found[1], "permits": found[2] & 0xFFFFFFFF}


def decode_ack(data: bytes) -> tuple[dict[str, Any], list[Any]] | None:
    try:
        found = _last(data, VARINT)
        acknowledged = [
            decode_message_id(each.value)
            for each in fields(data)
            if each.number == 3 and each.wire == BYTES
        ]
        kinds = [each.value for each in fields(data) if each.number == 2 and each.wire == VARINT]
    except Malformed:
        return None
    if 1 not in found or not kinds or any(kind > 1 for kind in kinds):
        return None
    command = {
        "consumer_id": found[1],
        "request_id": found.get(8, 0),
        "txnid_least_bits": found.get(6, 0),
        "txnid_most_bits": found.get(7, 0),
        "ids": len(acknowledged),
        "has_request_id": 8 in found,
        "has_txn": 6 in found and 7 in found,
        "cumulative": kinds[-1] == 1,
        "has_validation_error": 4 in found,
    }
    return command, acknowledged


def decode_redeliver(data: bytes) -> tuple[dict[str, Any], list[tuple[int, int]]] | None:
    try:
        found = _last(data, VARINT)
        ids = [
            decode_message_id(each.value)[:2]
            for each in fields(data)
            if each.number == 2 and each.wire == BYTES
        ]
    except Malformed:
        return None
    if 1 not in found:
        return None
    command = {
        "consumer_id": found[1],
        "consumer_epoch": found.get(3, 0),
        "ids": len(ids),
        "has_epoch": 3 in found,
    }
    return command, ids


def decode_message_id(data: bytes) -> tuple[int, int, int, int, list[int]]:
    """(ledger, entry, batch index, batch size, ack set). Raises Malformed."""
    found = _last(data, VARINT)
    if not {1, 2} <= found.keys():
        raise Malformed("a message id without ledger or entry")
    words: list[int] = []
    for each in fields(data):
        if each.number == 5 and each.wire == VARINT:
            words.append(each.value)
        elif each.number == 5 and each.wire == BYTES:
            words += varints(each.value)
    return (
        signed(found[1], 64),
        signed(found[2], 64),
        signed(found.get(4, -1), 32),
        signed(found.get(6, 0), 32),
        [signed(word, 64) for word in words],
    )


def _count(field: Any) -> int:
    """Of a field that is repeated: numbers may be packed into one."""
    if field.wire == BYTES:
        return sum(byte < 0x80 for byte in field.value)
    return int(field.wire == VARINT)


def peek_metadata(data: bytes) -> dict[str, Any] | None:
    try:
        numbers = _last(data, VARINT)
        texts = _last(data, BYTES)
    except Malformed:
        return None
    if not {2, 3} <= numbers.keys() or 1 not in texts:
        return None
    return {
        "sequence_id": numbers[2],
        "highest_sequence_id": numbers.get(24, 0),
        "publish_time": numbers[3],
        "deliver_at_time": signed(numbers.get(19, 0), 64),
        "num_messages": signed(numbers.get(11, 1), 32),
        "marker_type": signed(numbers.get(20, -1), 32),
        "transaction": (numbers[23], numbers[22]) if {22, 23} <= numbers.keys() else None,
        "is_batch": 11 in numbers,
        "is_encrypted": 13 in texts,
        "partition_key": texts.get(6, b""),
        "partition_key_b64": numbers.get(17, 0) != 0,
        "ordering_key": texts.get(18, b""),
        "producer_name": texts[1],
        "uuid": texts.get(26, b""),
        "num_chunks": signed(numbers.get(27, 0), 32),
        "chunk_id": signed(numbers.get(29, 0), 32),
        "compacted_indexes": sum(_count(each) for each in fields(data) if each.number == 31),
    }


# --- by protobuf --------------------------------------------------------------------------------


def parse(kind: type[Message], data: bytes) -> Any:
    """The message, or None when protobuf refuses the bytes."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def send_of(message: Any) -> dict[str, Any]:
    """What decode_send tells of a CommandSend, from protobuf's reading of it."""
    return {
        "producer_id": message.producer_id,
        "sequence_id": message.sequence_id,
        "highest_sequence_id": message.highest_sequence_id,
        "num_messages": message.num_messages,
        "txnid_least_bits": message.txnid_least_bits,
        "txnid_most_bits": message.txnid_most_bits,
        "has_txn": message.HasField("txnid_least_bits") and message.HasField("txnid_most_bits"),
        "is_chunk": message.is_chunk,
        "marker": message.marker,
    }


def flow_of(message: Any) -> dict[str, Any]:
    """What decode_flow tells of a CommandFlow."""
    return {"consumer_id": message.consumer_id, "permits": message.messagePermits}


def ack_of(message: Any) -> tuple[dict[str, Any], list[Any]]:
    """What decode_ack tells of a CommandAck."""
    command = {
        "consumer_id": message.consumer_id,
        "request_id": message.request_id,
        "txnid_least_bits": message.txnid_least_bits,
        "txnid_most_bits": message.txnid_most_bits,
        "ids": len(message.message_id),
        "has_request_id": message.HasField("request_id"),
        "has_txn": message.HasField("txnid_least_bits") and message.HasField("txnid_most_bits"),
        "cumulative": message.ack_type == pb.CommandAck.Cumulative,
        "has_validation_error": message.HasField("validation_error"),
    }
    acknowledged = [
        (
            signed(each.ledgerId, 64),
            signed(each.entryId, 64),
            each.batch_index,
            each.batch_size,
            list(each.ack_set),
        )
        for each in message.message_id
    ]
    return command, acknowledged


def redeliver_of(message: Any) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """What decode_redeliver tells of a CommandRedeliverUnacknowledgedMessages."""
    command = {
        "consumer_id": message.consumer_id,
        "consumer_epoch": message.consumer_epoch,
        "ids": len(message.message_ids),
        "has_epoch": message.HasField("consumer_epoch"),
    }
    ids = [(signed(each.ledgerId, 64), signed(each.entryId, 64)) for each in message.message_ids]
    return command, ids


def metadata_of(message: Any) -> dict[str, Any]:
    """What peek_metadata tells of a MessageMetadata."""
    return {
        "sequence_id": message.sequence_id,
        "highest_sequence_id": message.highest_sequence_id,
        "publish_time": message.publish_time,
        "deliver_at_time": message.deliver_at_time,
        "num_messages": message.num_messages_in_batch,
        "marker_type": message.marker_type if message.HasField("marker_type") else -1,
        "transaction": (message.txnid_most_bits, message.txnid_least_bits)
        if message.HasField("txnid_most_bits") and message.HasField("txnid_least_bits")
        else None,
        "is_batch": message.HasField("num_messages_in_batch"),
        "is_encrypted": len(message.encryption_keys) > 0,
        "partition_key": _raw(message.partition_key),
        "partition_key_b64": message.partition_key_b64_encoded,
        "ordering_key": message.ordering_key,
        "producer_name": _raw(message.producer_name),
        "uuid": _raw(message.uuid),
        "num_chunks": message.num_chunks_from_msg,
        "chunk_id": message.chunk_id,
        "compacted_indexes": len(message.compacted_batch_indexes),
    }


def _raw(text: str | bytes) -> bytes:
    """The bytes of a string field; protobuf gives those that are no UTF-8 as they are."""
    return text.encode() if isinstance(text, str) else text


def build_receipt(
    producer_id: int, sequence_id: int, highest_sequence_id: int, ledger_id: int, entry_id: int
) -> bytes:
    """A SEND_RECEIPT frame."""
    command = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT)
    receipt = command.send_receipt
    receipt.producer_id = producer_id
    receipt.sequence_id = sequence_id
    receipt.message_id.ledgerId = ledger_id
    receipt.message_id.entryId = entry_id
    if highest_sequence_id:
        receipt.highest_sequence_id = highest_sequence_id
    return frame(command.SerializeToString())


def build_message_header(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    partition: int,
    redelivery_count: int,
    ack_set: list[int],
    consumer_epoch: int,
    payload_size: int,
) -> bytes:
    """A MESSAGE frame without its last payload_size bytes."""
    command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
    message = command.message
    message.consumer_id = consumer_id
    message.message_id.ledgerId = ledger_id
    message.message_id.entryId = entry_id
    if partition >= 0:
        message.message_id.partition = partition
    if redelivery_count:
        message.redelivery_count = redelivery_count
    message.ack_set.extend(ack_set)
    if consumer_epoch >= 0:
        message.consumer_epoch = consumer_epoch
    whole = frame(command.SerializeToString(), bytes(payload_size))
    return whole[: len(whole) - payload_size]


def is_overlong(data: bytes) -> bool:
    """Whether some varint is longer than it has to be, or has bits above 64.

    Encoders never write such; protobuf's own readers disagree about a few of them.
    """
    at = 0
    while at < len(data):
        key, end = varint(data, at)
        if end - at != _size(key):
            return True
        at = end
        wire = key & 7
        if wire in (VARINT, BYTES):
            value, end = varint(data, at)
            if end - at != _size(value):
                return True
            at = end + (value if wire == BYTES else 0)
        else:
            at += 8 if wire == 1 else 4
    return False


def _size(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


def has_unknown(message: Any) -> bool:
    """Whether protobuf kept something of the message aside: unknown fields or enum values."""
    if len(UnknownFieldSet(message)):
        return True
    return any(
        has_unknown(each)
        for field, value in message.ListFields()
        if field.message_type is not None
        for each in (value if field.is_repeated else [value])
    )
