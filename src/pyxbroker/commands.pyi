"""What Python sees of commands.pyx: the decoders and builders, for tests and fuzzing."""

from collections.abc import Sequence
from typing import Any, TypeAlias

_Buffer: TypeAlias = bytes | bytearray | memoryview

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
