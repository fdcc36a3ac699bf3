"""What Python sees of commands.pyx: what is counted before protobuf parses a command, and the
decoders and builders, for tests and fuzzing.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

_Buffer: TypeAlias = bytes | bytearray | memoryview

def has_more_fields(data: _Buffer, shape: list[Any], fields_max: int) -> bool:
    """Whether a message has more fields than so many, with those of the messages in it.

    shape: by the number of a field, the shape of the message in it, True for numbers that may be
    packed, None for anything else.
    """

def find_number(data: _Buffer, number: int, fields_max: int) -> int | None:
    """The first varint field of that number among the first ones of a command's message; None: it
    is not there, or the BaseCommand has another shape than all clients write.
    """

def decode_base_py(data: _Buffer) -> tuple[int, bytes] | None:
    """(type, message bytes) of a BaseCommand of the usual shape, or None."""

def decode_send_py(data: _Buffer) -> dict[str, Any] | None:
    """CommandSend as a dict, or None when malformed."""

def decode_flow_py(data: _Buffer) -> dict[str, Any] | None:
    """CommandFlow as a dict, or None when malformed."""

def decode_ack_py(
    data: _Buffer,
) -> tuple[dict[str, Any], list[tuple[int, int, int, int, list[int]]]] | None:
    """(CommandAck as a dict, [(ledger, entry, batch_index, batch_size, [words])]), or None."""

def decode_redeliver_py(data: _Buffer) -> tuple[dict[str, Any], list[tuple[int, int]]] | None:
    """(CommandRedeliverUnacknowledgedMessages as a dict, [(ledger, entry)]), or None."""

def peek_metadata_py(data: _Buffer) -> dict[str, Any] | None:
    """What the broker reads of MessageMetadata, as a dict, or None when malformed."""

def build_receipt_py(
    producer_id: int,
    sequence_id: int,
    highest_sequence_id: int,
    ledger_id: int,
    entry_id: int,
) -> bytes:
    """A whole SEND_RECEIPT frame."""

def build_message_header_py(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    partition: int,
    redelivery_count: int,
    ack_set: Sequence[int],
    consumer_epoch: int,
    payload_size: int,
) -> bytes:
    """The start of a MESSAGE frame; ValueError for an ack set of more than 64 words."""
