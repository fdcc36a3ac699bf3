"""What Python sees of entry_columns.pyx: entries of a topic decoded to columns."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from pyxbroker.avro_columns import AvroProgram

MORE: int
OTHER: int
FULL: int
LOOK: int
CHUNK: int
DONE: int
"""Why taking entries stopped; see Stop in entry_columns.pxd."""

BYTES: int
NUMBER: int
TRUTH: int
AVRO: int
NONE: int
"""What becomes of payloads; see Decoding in entry_columns.pxd."""

KEY: int
PUBLISH_TIME: int
EVENT_TIME: int
PROPERTIES: int
PRODUCER_NAME: int
SEQUENCE_ID: int
ORDERING_KEY: int
POSITION: int
USUAL: int
"""Columns beside the values, one bit each, and those that are there if nothing is said; see Kept in
entry_columns.pxd."""

BITS: int
VARIABLE: int
"""Widths of columns that have no bytes each: of truth values, and of bytes or text."""

UNPACKED_BYTES_MAX: int
"""Of a message that is unpacked, or put together of chunks; Arrow's offsets end at 2 GiB."""

class Damaged(ValueError):
    """An entry that nobody can read; the text says why."""

class Encrypted(ValueError):
    """An entry whose payload only who has the key can read."""

class Block:
    """Memory of a column, read-only."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class ColumnBuffers(NamedTuple):
    """A column in the buffers of Arrow's arrays. valid is None where there are no nulls, offsets
    where values are all as wide.
    """

    nulls: int
    valid: Block | None
    offsets: Block | None
    data: Block

class Filled(NamedTuple):
    """Rows of messages. A row has the properties from its offset to that of the next one. Columns
    that are not kept have no rows.

    versions: the schema version of messages, and the row from which on they have it. Times are
    microseconds since 1970.
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
    """What unpacks; base/compression.py is it."""

    def check_claim(self, compression: int, packed_bytes: int, size: int, /) -> None:
        """Whether so many bytes can become `size`. Raises ValueError."""
    def decompress_into(self, compression: int, data: memoryview, output: memoryview, /) -> None:
        """Fills `output`. Raises ValueError."""

class EntryColumns:
    """Collects what entries have of a range, until it is taken away."""

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
        """widths: of the columns of values. kept: those beside them, bits such as KEY. program_of:
        the program of a schema version, of the newest one for None; where there is none for a
        version, translate makes of it and a payload one of the newest.
        """
    @property
    def ledger_id(self) -> int:
        """Of the entry that was looked at last."""
    @property
    def entry_id(self) -> int: ...
    @property
    def entries(self) -> int:
        """How many came."""
    @property
    def rows(self) -> int:
        """That were collected."""
    @property
    def chunk_metadata(self) -> bytes:
        """MessageMetadata of the chunk of which CHUNK was said."""
    @property
    def chunk_payload(self) -> bytes: ...
    @property
    def position(self) -> tuple[int, int, int]:
        """(ledger, entry, batch index) of the last message that is done with."""
    @property
    def is_done(self) -> bool:
        """Whether all of the range was read."""
    def want(self, begin: tuple[int, int, int], end: tuple[int, int, int]) -> None:
        """The range: behind begin, up to and with end, (ledger, entry, batch index) each."""
    def pass_look(self) -> None:
        """Nothing is missing before the entry that LOOK was said of."""
    def pass_entry(self) -> None:
        """The chunk that CHUNK was said of is done with."""
    def spend(self) -> int:
        """How many permits were taken by what came since this was asked last."""
    def take(self, data: bytes | bytearray | memoryview) -> tuple[int, int]:
        """Reads frames; (how many bytes are done with, why it stopped there).

        Raises Damaged, Encrypted, Undecodable: of the entry ledger_id:entry_id, and the object is
        of no more use.
        """
    def take_entry(
        self, ledger_id: int, entry_id: int, data: bytes | bytearray | memoryview
    ) -> int:
        """Reads one entry; why it stopped, MORE: it did not. After FULL and LOOK it is not done
        with, and comes again.
        """
    def add_message(self, position: tuple[int, int, int], metadata: bytes, payload: bytes) -> None:
        """A message that was put together elsewhere: of chunks, or by another reader. Its
        position is (ledger, entry, batch index), its metadata a MessageMetadata.
        """
    def finish(self) -> Filled:
        """What was collected since this was asked last; nothing of it stays here."""
