"""Type stub of entry_columns.pyx: decoding of a topic's entries to columns."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from pyxbroker.avro_columns import AvroProgram

MORE: int
OTHER: int
FULL: int
NEW_LEDGER: int
CHUNK: int
DONE: int
"""Reasons why taking entries stops; see Stop in entry_columns.pxd."""

BYTES: int
NUMBER: int
TRUTH: int
AVRO: int
NONE: int
"""Kinds of payload decoding; see Decoding in entry_columns.pxd."""

KEY: int
PUBLISH_TIME: int
EVENT_TIME: int
PROPERTIES: int
PRODUCER_NAME: int
SEQUENCE_ID: int
ORDERING_KEY: int
POSITION: int
DEFAULT: int
"""Optional columns, one bit each, and those enabled by default; see Kept in entry_columns.pxd."""

BITS: int
VARIABLE: int
"""Widths of columns of booleans, and of bytes or text."""

UNPACKED_BYTES_MAX: int
"""Limit of a decompressed message, or one reassembled from chunks. Arrow's offsets end at 2 GiB."""

class Damaged(ValueError):
    """Raised for an entry that is malformed; the message names the reason."""

class Encrypted(ValueError):
    """Raised for an entry with an encrypted payload."""

class Block:
    """Read-only memory of a column."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class ColumnBuffers(NamedTuple):
    """A column as the buffers of an Arrow array. valid is None without nulls, offsets is None for
    fixed-width values.
    """

    nulls: int
    valid: Block | None
    offsets: Block | None
    data: Block

class Filled(NamedTuple):
    """Rows of messages. The properties of a row are those from its offset to the next one. Disabled
    columns have no rows.

    versions has the schema versions of messages, and the first row of each. Times are microseconds
    since the epoch.
    """

    rows: int
    values: list[ColumnBuffers]
    versions: list[tuple[int, bytes]]
    key: ColumnBuffers
    message_id: ColumnBuffers
    publish_time: ColumnBuffers
    event_time: ColumnBuffers
    properties: int
    property_offsets: Block
    property_names: ColumnBuffers
    property_values: ColumnBuffers
    producer_name: ColumnBuffers
    sequence_id: ColumnBuffers
    ordering_key: ColumnBuffers
    ledger_id: ColumnBuffers
    entry_id: ColumnBuffers
    batch_index: ColumnBuffers

class Codecs(Protocol):
    """Decompression; implemented by base/compression.py."""

    def check_claim(self, compression: int, packed_bytes: int, size: int, /) -> None:
        """Raise ValueError if packed_bytes cannot decompress to `size` bytes."""
    def decompress_into(self, compression: int, data: memoryview, output: memoryview, /) -> None:
        """Fill `output`. Raise ValueError on failure."""

class EntryColumns:
    """Collects the messages of a range of entries as rows."""

    def __init__(
        self,
        decoding: int,
        widths: tuple[int, ...],
        codecs: Codecs,
        partition: int = -1,
        program_of: Callable[[bytes | None], AvroProgram | None] | None = None,
        translate: Callable[[bytes, bytes], bytes] | None = None,
        rows_max: int = ...,
        bytes_max: int = ...,
        kept: int = ...,
    ) -> None:
        """widths are those of the columns of values. kept selects optional columns by bits such as
        KEY. program_of returns the program of a schema version, and that of the newest version for
        None. If it returns None for a version, translate converts payloads of that version to the
        newest one.
        """
    @property
    def ledger_id(self) -> int:
        """Ledger of the current entry."""
    @property
    def entry_id(self) -> int: ...
    @property
    def entries(self) -> int:
        """Number of entries received."""
    @property
    def rows(self) -> int:
        """Number of rows collected."""
    @property
    def chunk_metadata(self) -> bytes:
        """MessageMetadata of the chunk that CHUNK was returned for."""
    @property
    def chunk_payload(self) -> bytes: ...
    @property
    def position(self) -> tuple[int, int, int]:
        """(ledger, entry, batch index) of the last message that was handled."""
    @property
    def is_done(self) -> bool:
        """True once the whole range was read."""
    def set_range(self, begin: tuple[int, int, int], end: tuple[int, int, int]) -> None:
        """Set the range (begin, end] of positions (ledger, entry, batch index)."""
    def accept_ledger(self) -> None:
        """Continue after NEW_LEDGER: no entry before the current one is missing."""
    def accept_chunk(self) -> None:
        """Continue after CHUNK: the chunk was handled."""
    def take_permits(self) -> int:
        """Return the permits used by received entries since the last call."""
    def take(self, data: bytes | bytearray | memoryview) -> tuple[int, int]:
        """Decode frames; return (number of bytes consumed, reason of the stop).

        Raise Damaged, Encrypted or Undecodable for the entry ledger_id:entry_id. The object cannot
        be used afterwards.
        """
    def take_entry(
        self, ledger_id: int, entry_id: int, data: bytes | bytearray | memoryview
    ) -> int:
        """Decode one entry; return the reason of the stop, or MORE. After FULL and NEW_LEDGER
        the entry is not consumed and must be passed again.
        """
    def add_message(self, position: tuple[int, int, int], metadata: bytes, payload: bytes) -> None:
        """Add a message that the caller assembled, from chunks or with another reader. position is
        (ledger, entry, batch index), metadata a MessageMetadata.
        """
    def finish(self) -> Filled:
        """Return the rows collected since the last call, and start anew."""
