"""Type stub of commands.pyx: checks before protobuf parses a command, and the decoders and builders
for tests and fuzzing.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

_Buffer: TypeAlias = bytes | bytearray | memoryview

def has_more_fields(data: _Buffer, shape: list[Any], fields_max: int) -> bool:
    """Return True if a message, including nested messages, has more than fields_max fields.

    shape is indexed by field number: the shape of a nested message, True for numbers that may be
    packed, None for anything else.
    """

def find_number(data: _Buffer, number: int, fields_max: int) -> int | None:
    """Return the first varint field `number` among the first fields_max fields of a command's
    message. Return None if it is missing, or if the BaseCommand does not have the usual layout.
    """

def decode_base_py(data: _Buffer) -> tuple[int, bytes] | None:
    """Return (type, message bytes) of a BaseCommand with the usual layout, or None."""

def decode_send_py(data: _Buffer) -> dict[str, Any] | None:
    """Decode CommandSend to a dict; None if malformed."""

def decode_flow_py(data: _Buffer) -> dict[str, Any] | None:
    """Decode CommandFlow to a dict; None if malformed."""

def decode_ack_py(
    data: _Buffer,
) -> tuple[dict[str, Any], list[tuple[int, int, int, int, list[int]]]] | None:
    """Return (CommandAck as dict, [(ledger, entry, batch_index, batch_size, [words])]), or None."""

def decode_redeliver_py(data: _Buffer) -> tuple[dict[str, Any], list[tuple[int, int]]] | None:
    """Return (CommandRedeliverUnacknowledgedMessages as a dict, [(ledger, entry)]), or None."""

def peek_metadata_py(data: _Buffer) -> dict[str, Any] | None:
    """Return the fields of MessageMetadata that the broker uses as a dict; None if malformed."""

def build_receipt_py(
    producer_id: int,
    sequence_id: int,
    highest_sequence_id: int,
    ledger_id: int,
    entry_id: int,
) -> bytes:
    """Build a whole SEND_RECEIPT frame."""

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
    """Build the start of a MESSAGE frame. Raise ValueError for an ack set of more than 64 words."""
