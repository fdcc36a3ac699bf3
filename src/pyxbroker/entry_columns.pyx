"""Decoding of a topic's entries to columns; entry_columns.pxd describes the data.

The bytes are untrusted: every read is bounded, and malformed data raises Damaged.
"""
from cpython.buffer cimport PyBUF_WRITE, PyBuffer_FillInfo
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from pyxbroker.arrow_columns cimport (
    WIDTH_BITS,
    WIDTH_VARIABLE,
    add_bytes,
    add_null,
    add_offset,
    add_truth,
    add_value,
    complete,
    free_column,
    free_memory,
    reserve,
)
from pyxbroker.commands cimport CMD_MESSAGE, decode_base
from pyxbroker.fields cimport WIRE_BYTES, WIRE_VARINT, Field, parse_field
from pyxbroker.frames cimport (
    FRAME_INCOMPLETE,
    Frame,
    broker_metadata_size,
    frame_next,
    payload_metadata,
)
from pyxbroker.integers cimport load_be32, put_varint
from pyxbroker.keys cimport decode_base64
from pyxbroker.native cimport NATIVE_API_CAPSULE, native_api

from typing import NamedTuple

from pyxbroker import _native
from pyxbroker.avro_columns import Undecodable

cdef extern from "Python.h":
    int PyBUF_READ

cdef native_api *_api = <native_api *>PyCapsule_GetPointer(_native._c_api, NATIVE_API_CAPSULE)

cdef enum:
    TIME_MS_MAX = 9223372036854775  # limit of 64-bit microseconds
    ID_BYTES_MAX = 64               # of a MessageIdData without an ack set

MORE = STOP_MORE
OTHER = STOP_OTHER
FULL = STOP_FULL
NEW_LEDGER = STOP_NEW_LEDGER
CHUNK = STOP_CHUNK
DONE = STOP_DONE

BYTES = DECODE_BYTES
NUMBER = DECODE_NUMBER
TRUTH = DECODE_TRUTH
AVRO = DECODE_AVRO
NONE = DECODE_NONE

KEY = KEEP_KEY
PUBLISH_TIME = KEEP_PUBLISH_TIME
EVENT_TIME = KEEP_EVENT_TIME
PROPERTIES = KEEP_PROPERTIES
PRODUCER_NAME = KEEP_PRODUCER_NAME
SEQUENCE_ID = KEEP_SEQUENCE_ID
ORDERING_KEY = KEEP_ORDERING_KEY
POSITION = KEEP_POSITION
DEFAULT = KEEP_DEFAULT

BITS = WIDTH_BITS
VARIABLE = WIDTH_VARIABLE
UNPACKED_BYTES_MAX = MESSAGE_BYTES_MAX


class Damaged(ValueError):
    """Raised for an entry that is malformed; the message names the reason."""


class Encrypted(ValueError):
    """Raised for an entry with an encrypted payload."""


class ColumnBuffers(NamedTuple):
    """A column as the buffers of an Arrow array. valid is None without nulls, offsets is None for
    fixed-width values.
    """

    nulls: int
    valid: object
    offsets: object
    data: object


class Filled(NamedTuple):
    """Rows of messages. The properties of a row are those from its offset to the next one."""

    rows: int
    values: list
    versions: list
    key: ColumnBuffers
    message_id: ColumnBuffers
    publish_time: ColumnBuffers
    event_time: ColumnBuffers
    properties: int
    property_offsets: object
    property_names: ColumnBuffers
    property_values: ColumnBuffers
    producer_name: ColumnBuffers
    sequence_id: ColumnBuffers
    ordering_key: ColumnBuffers
    ledger_id: ColumnBuffers
    entry_id: ColumnBuffers
    batch_index: ColumnBuffers


cdef class Block:
    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer *view, int flags):
        cdef void *data = <void *>self.data if self.data != NULL else <void *>b""
        PyBuffer_FillInfo(view, self, data, self.size, 1, flags)


# Transfer the memory to a Block; the next allocation has as much room.
cdef Block _block(Memory *memory):
    cdef Block block = Block()
    block.data = memory.data
    block.size = <Py_ssize_t>memory.size
    memory.expected = memory.size + memory.size // 8
    memory.data = NULL
    memory.size = 0
    memory.capacity = 0
    return block


cdef object _buffers(Column *column, int64_t rows):
    cdef int64_t nulls = column.nulls
    complete(column, rows)
    column.nulls = 0
    return ColumnBuffers(
        nulls,
        _block(&column.valid) if nulls else None,
        _block(&column.offsets) if column.width == WIDTH_VARIABLE else None,
        _block(&column.data),
    )


# --- metadata -------------------------------------------------------------------------------------

# Field numbers of equivalent fields in MessageMetadata (0) and SingleMessageMetadata (1).
cdef enum:
    F_PROPERTIES = 0
    F_KEY = 1
    F_BASE64 = 2
    F_EVENT_TIME = 3
    F_NULL_VALUE = 4
    F_NULL_KEY = 5
    F_ORDERING_KEY = 6
    SHARED_FIELDS = 7

cdef uint32_t[2][SHARED_FIELDS] _numbers
_numbers[0][:] = [4, 6, 17, 12, 25, 30, 18]
_numbers[1][:] = [1, 2, 6, 5, 9, 10, 7]


cdef inline bint _parse_shared(Head *head, const Field *field, const uint32_t *numbers) noexcept:
    """Store a field that both kinds of metadata have; return False for other fields."""
    if field.wire == WIRE_BYTES:
        if field.number == numbers[F_KEY]:
            head.key = field.data
            head.key_size = field.size
        elif field.number == numbers[F_PROPERTIES]:
            head.properties += 1
        elif field.number == numbers[F_ORDERING_KEY]:
            head.ordering_key = field.data
            head.ordering_key_size = field.size
        else:
            return False
    elif field.wire == WIRE_VARINT:
        if field.number == numbers[F_EVENT_TIME]:
            head.event_time = field.value
        elif field.number == numbers[F_BASE64]:
            head.is_base64 = field.value != 0
        elif field.number == numbers[F_NULL_VALUE]:
            head.has_null_value = field.value != 0
        elif field.number == numbers[F_NULL_KEY]:
            head.has_null_key = field.value != 0
        else:
            return False
    else:
        return False
    return True


cdef inline int _begin_head(Head *head, const uint8_t *data, uint32_t size,
                            const uint32_t *numbers) noexcept:
    memset(head, 0, sizeof(Head))
    head.data = data
    head.size = size
    head.property_number = numbers[F_PROPERTIES]
    return 0


cdef int _parse_batched(const uint8_t *data, uint32_t size, Head *head) except -1:
    cdef uint32_t at = 0
    cdef Field field
    cdef bint has_size = False
    _begin_head(head, data, size, _numbers[1])
    while at < size:
        if parse_field(data, size, &at, &field) != 0:
            raise Damaged("the metadata of a message in its batch cannot be decoded")
        if _parse_shared(head, &field, _numbers[1]) or field.wire != WIRE_VARINT:
            continue
        if field.number == 3:
            head.payload_size = <int32_t>field.value
            has_size = True
        elif field.number == 4:
            head.is_compacted_out = field.value != 0
        elif field.number == 8:
            head.sequence_id = field.value
            head.has_sequence_id = True
    if not has_size:
        raise Damaged("the metadata of a message in its batch has no payload size")
    return 0


cdef int _parse_metadata(const uint8_t *data, uint32_t size, EntryHead *entry) except -1:
    cdef uint32_t at = 0
    cdef Field field
    cdef int seen = 0
    memset(entry, 0, sizeof(EntryHead))
    _begin_head(&entry.message, data, size, _numbers[0])
    entry.messages = 1
    while at < size:
        if parse_field(data, size, &at, &field) != 0:
            raise Damaged("its metadata cannot be decoded")
        if _parse_shared(&entry.message, &field, _numbers[0]):
            continue
        if field.wire == WIRE_BYTES:
            if field.number == 1:
                entry.producer_name = field.data
                entry.producer_name_size = field.size
                seen |= 1
            elif field.number == 13:
                entry.is_encrypted = True
            elif field.number == 16:
                entry.schema_version = field.data
                entry.schema_version_size = field.size
        elif field.wire == WIRE_VARINT:
            seen |= _parse_number(entry, &field)
    if seen != 7:
        raise Damaged("its metadata lacks required fields")
    return 0


cdef inline int _parse_number(EntryHead *entry, const Field *field) noexcept:
    if field.number == 2:
        entry.message.sequence_id = field.value
        entry.message.has_sequence_id = True
        return 2
    if field.number == 3:
        entry.publish_time = field.value
        return 4
    if field.number == 8:
        entry.compression = <int32_t>field.value
    elif field.number == 9:
        entry.uncompressed_size = <uint32_t>field.value
    elif field.number == 11:
        entry.messages = <int32_t>field.value
        entry.is_batch = True
    elif field.number == 27:
        entry.chunks = <int32_t>field.value
    return 0


cdef int _parse_section(const uint8_t *data, uint32_t size, bint is_checked,
                        EntryHead *entry) except -1:
    """Decode an entry from its first byte. is_checked: its checksum was verified before."""
    cdef uint32_t at = broker_metadata_size(data, size)
    cdef const uint8_t *metadata
    cdef uint32_t metadata_size
    if at > size:
        raise Damaged("its broker entry metadata exceeds the entry")
    if not is_checked and size - at >= 6 and data[at] == 0x0e and data[at + 1] == 0x01:
        if _api.crc32c(0, data + at + 6, size - at - 6) != load_be32(data + at + 2):
            raise Damaged("its checksum is wrong")
    if payload_metadata(data, size, &metadata, &metadata_size) != 0:
        raise Damaged("its metadata exceeds the %d bytes of the entry" % size)
    _parse_metadata(metadata, metadata_size, entry)
    if entry.is_encrypted:
        raise Encrypted("it is encrypted")
    entry.payload = metadata + metadata_size
    entry.payload_size = <uint32_t>(data + size - entry.payload)
    return 0


# --- positions ------------------------------------------------------------------------------------

cdef inline int _compare(const Place *one, const Place *other) noexcept:
    if one.ledger_id != other.ledger_id:
        return 1 if one.ledger_id > other.ledger_id else -1
    if one.entry_id != other.entry_id:
        return 1 if one.entry_id > other.entry_id else -1
    return (one.batch_index > other.batch_index) - (one.batch_index < other.batch_index)


cdef inline bint _is_same_entry(const Place *one, const Place *other) noexcept:
    return one.ledger_id == other.ledger_id and one.entry_id == other.entry_id


cdef int _set_place(Place *place, position) except -1:
    """Set from (ledger, entry, batch index); an index of -1 means the whole entry."""
    place.ledger_id, place.entry_id, place.batch_index = position
    if place.batch_index < 0:
        place.batch_index = WHOLE
    return 0


cdef int _parse_id(const uint8_t *data, uint32_t size, Place *place) noexcept:
    """Decode the position in a CommandMessage; return -1 if it does not have the usual form."""
    cdef uint32_t at = 0
    cdef uint32_t inner
    cdef int seen = 0
    cdef Field field, part
    place.batch_index = WHOLE
    while at < size:
        if parse_field(data, size, &at, &field) != 0:
            return -1
        if field.number != 2 or field.wire != WIRE_BYTES:
            continue
        inner = 0
        while inner < field.size:
            if parse_field(field.data, field.size, &inner, &part) != 0:
                return -1
            if part.wire == WIRE_VARINT and part.number == 1:
                place.ledger_id = <int64_t>part.value
                seen |= 1
            elif part.wire == WIRE_VARINT and part.number == 2:
                place.entry_id = <int64_t>part.value
                seen |= 2
    return 0 if seen == 3 else -1


cdef class EntryColumns:
    """Collects the messages of a range of entries as rows."""

    def __cinit__(self, int decoding, widths not None, codecs not None, int32_t partition=-1,
                  program_of=None, translate=None, int64_t rows_max=1 << 16,
                  int64_t bytes_max=8 << 20, int kept=KEEP_DEFAULT):
        cdef int i
        # Cython enums are unsigned.
        if not 0 <= kept <= <int>KEEP_ALL:
            raise ValueError("%d is not a set of optional columns" % kept)
        if not 0 <= len(widths) <= VALUES_MAX:
            raise ValueError("%d columns exceed the limit of %d" % (len(widths), VALUES_MAX))
        if decoding == DECODE_NONE and len(widths):
            raise ValueError("ignored payloads have no column of values")
        if decoding not in (DECODE_AVRO, DECODE_NONE) and len(widths) != 1:
            raise ValueError("payloads other than records need exactly one column")
        self.values = <Column *>calloc(max(len(widths), 1), sizeof(Column))
        if self.values == NULL:
            raise MemoryError("no memory for %d columns" % len(widths))
        self.value_count = <int>len(widths)
        for i in range(self.value_count):
            self.values[i].width = widths[i]
            if self.values[i].width not in (WIDTH_BITS, WIDTH_VARIABLE, 1, 2, 4, 8):
                raise ValueError("%d bytes are not a valid column width" % self.values[i].width)
        self._check_decoding(decoding)
        self.decoding = decoding
        self.codecs = codecs
        self.partition = partition
        self.rows_max = rows_max
        self.bytes_max = bytes_max
        self.kept = kept
        self.publish_time.width = 8
        self.event_time.width = 8
        self.sequence_id.width = 8
        self.ledger_of.width = 8
        self.entry_of.width = 8
        self.index_of.width = 4
        self.versions = []
        if decoding == DECODE_AVRO:
            self.program_of = program_of
            self.translate = translate
            self.newest = self._program(None)

    cdef int _check_decoding(self, int decoding) except -1:
        cdef int width = self.values[0].width
        # Cython enums are unsigned.
        if not 0 <= decoding <= <int>DECODE_NONE:
            raise ValueError("%d is not a way to decode payloads" % decoding)
        if decoding == DECODE_BYTES and width != WIDTH_VARIABLE:
            raise ValueError("bytes need a column of variable width")
        if decoding == DECODE_TRUTH and width != WIDTH_BITS:
            raise ValueError("booleans need a column of bits")
        if decoding == DECODE_NUMBER and width <= 0:
            raise ValueError("numbers need a column of fixed width")
        return 0

    def __dealloc__(self):
        cdef int i
        if self.values != NULL:
            for i in range(self.value_count):
                free_column(&self.values[i])
        free(self.values)
        free_column(&self.key)
        free_column(&self.message_id)
        free_column(&self.publish_time)
        free_column(&self.event_time)
        free_memory(&self.property_offsets)
        free_column(&self.property_names)
        free_column(&self.property_values)
        free_column(&self.producer_name)
        free_column(&self.sequence_id)
        free_column(&self.ordering_key)
        free_column(&self.ledger_of)
        free_column(&self.entry_of)
        free_column(&self.index_of)
        free_memory(&self.scratch)

    # --- the range ------------------------------------------------------------------------------

    def set_range(self, begin not None, end not None):
        """Set the range (begin, end] of positions (ledger, entry, batch index)."""
        _set_place(&self.begin, begin)
        _set_place(&self.end, end)
        self.handled = self.begin
        self.accepted.ledger_id = self.accepted.entry_id = -2

    @property
    def position(self):
        """(ledger, entry, batch index) of the last message that was handled."""
        cdef int32_t index = self.handled.batch_index
        return self.handled.ledger_id, self.handled.entry_id, -1 if index == WHOLE else index

    @property
    def is_done(self):
        """True once the whole range was read."""
        return _compare(&self.handled, &self.end) >= 0

    def accept_ledger(self):
        """Continue after NEW_LEDGER: no entry before the current one is missing."""
        self.accepted.ledger_id = self.ledger_id
        self.accepted.entry_id = self.entry_id

    def accept_chunk(self):
        """Continue after CHUNK: the chunk was handled."""
        self.handled.ledger_id = self.ledger_id
        self.handled.entry_id = self.entry_id
        self.handled.batch_index = WHOLE

    def take_permits(self):
        """Return the permits used by received entries since the last call."""
        cdef int64_t found = self.permits
        self.permits = 0
        return found

    # --- received data --------------------------------------------------------------------------

    def take(self, const uint8_t[::1] data not None):
        """Decode frames; return (number of bytes consumed, reason of the stop).

        Raise Damaged, Encrypted or Undecodable for the entry ledger_id:entry_id. The object cannot
        be used afterwards.
        """
        cdef uint64_t at = 0
        cdef uint64_t size = data.shape[0]
        cdef int64_t frame_size
        cdef Frame frame
        cdef int stop = STOP_MORE
        if size == 0:
            return 0, STOP_MORE
        while True:
            frame_size = frame_next(&data[0] + at, size - at, ENTRY_FRAME_BYTES_MAX, &frame)
            if frame_size <= 0:
                return at, STOP_MORE if frame_size == FRAME_INCOMPLETE else STOP_OTHER
            stop = self._take_frame(frame.command, frame.command_size, frame.payload,
                                    frame.payload_size)
            if stop in (STOP_OTHER, STOP_FULL, STOP_NEW_LEDGER):
                return at, stop
            at += frame_size
            if stop != STOP_MORE:
                return at, stop

    def take_entry(self, int64_t ledger_id, int64_t entry_id, const uint8_t[::1] data not None):
        """Decode one entry; return the reason of the stop, or MORE. After FULL and NEW_LEDGER
        the entry is not consumed and must be passed again.
        """
        return self._take_entry(ledger_id, entry_id, &data[0] if data.shape[0] else <uint8_t *>b"",
                                <uint32_t>data.shape[0])

    def add_message(self, position not None, bytes metadata not None, bytes payload not None):
        """Add a message that the caller assembled, from chunks or with another reader. position is
        (ledger, entry, batch index), metadata a MessageMetadata.
        """
        cdef EntryHead entry
        cdef const uint8_t *data = metadata
        cdef uint32_t size
        cdef int32_t index
        if self.is_uneven:
            raise AssertionError("the columns are incomplete after an error")
        if len(payload) > MESSAGE_BYTES_MAX:
            raise Damaged("its chunks have %d bytes, which exceeds the limit" % len(payload))
        self.ledger_id, self.entry_id, index = position
        _parse_metadata(data, <uint32_t>len(metadata), &entry)
        entry.payload = payload
        entry.payload_size = <uint32_t>len(payload)
        self.is_within = False
        self._unpack(&entry, &data, &size)
        self._add_row(&entry, &entry.message, data, size, index)
        self._end_entry()

    cdef int _take_frame(self, const uint8_t *command, uint32_t command_size,
                         const uint8_t *payload, uint32_t payload_size) except -1:
        cdef uint32_t kind, size
        cdef const uint8_t *message
        cdef Place place
        if decode_base(command, command_size, &kind, &message, &size) != 0 or kind != CMD_MESSAGE:
            return STOP_OTHER
        if _parse_id(message, size, &place) != 0:
            return STOP_OTHER
        return self._take_entry(place.ledger_id, place.entry_id, payload, payload_size)

    cdef int _take_entry(self, int64_t ledger_id, int64_t entry_id, const uint8_t *data,
                         uint32_t size) except -1:
        cdef EntryHead entry
        cdef Place place
        place.ledger_id, place.entry_id, place.batch_index = ledger_id, entry_id, WHOLE
        self.ledger_id, self.entry_id = ledger_id, entry_id
        if self.is_uneven:
            raise AssertionError("the columns are incomplete after an error")
        if _compare(&place, &self.handled) <= 0:
            # Before the range, or already read: only count it.
            _parse_section(data, size, False, &entry)
            self._count(&entry)
            return STOP_MORE
        if self._is_new_ledger(&place):
            return STOP_NEW_LEDGER
        if self._is_full():
            return STOP_FULL
        if self.is_within and not _is_same_entry(&place, &self.within):
            self._end_entry()  # the rest of the previous entry was deleted since
        _parse_section(data, size, self.is_within, &entry)
        if not self.is_within:
            self._count(&entry)
            if entry.chunks > 1:
                return self._open_chunk(&entry)
        if self._add_messages(&entry) == STOP_FULL:
            self.is_within = True
            self.within = place
            return STOP_FULL
        self._end_entry()
        self.handled = place
        return STOP_DONE if _compare(&place, &self.end) >= 0 else STOP_MORE

    cdef int _count(self, const EntryHead *entry) noexcept:
        self.entries += 1
        self.permits += max(entry.messages, 1)
        return 0

    cdef int _end_entry(self) except -1:
        self.is_within = False
        self.next_index = 0
        self.next_at = 0
        self.scratch.size = 0
        if self.scratch.capacity > SCRATCH_BYTES_MAX:
            free_memory(&self.scratch)
        return 0

    cdef bint _is_new_ledger(self, const Place *place) noexcept:
        return (place.ledger_id != self.handled.ledger_id
                and not _is_same_entry(place, &self.accepted))

    cdef int _open_chunk(self, const EntryHead *entry) except -1:
        self.chunk_metadata = entry.message.data[:entry.message.size]
        self.chunk_payload = entry.payload[:entry.payload_size]
        return STOP_CHUNK

    # --- messages -------------------------------------------------------------------------------

    cdef int _add_messages(self, const EntryHead *entry) except -1:
        """Add the messages of an entry in the range; return STOP_FULL if some remain."""
        cdef const uint8_t *data
        cdef uint32_t size
        cdef Place here
        here.ledger_id, here.entry_id, here.batch_index = self.ledger_id, self.entry_id, WHOLE
        self._unpack(entry, &data, &size)
        if entry.is_batch:
            return self._add_batch(entry, data, size)
        if _compare(&here, &self.end) <= 0:
            self._add_row(entry, &entry.message, data, size, -1)
        return 0

    cdef int _add_batch(self, const EntryHead *entry, const uint8_t *data, uint32_t size) except -1:
        cdef Place here
        cdef Head head
        cdef uint32_t at = self.next_at
        cdef uint32_t head_size
        cdef int32_t index = self.next_index
        here.ledger_id, here.entry_id, here.batch_index = self.ledger_id, self.entry_id, 0
        if at > size:
            raise Damaged("its payload has changed between two reads")
        while index < entry.messages:
            if self._is_full():
                self.next_index, self.next_at = index, at
                return STOP_FULL
            if size - at < 4:
                raise Damaged("message %d exceeds its batch" % index)
            head_size = load_be32(data + at)
            at += 4
            if head_size > size - at:
                raise Damaged("message metadata of %d bytes exceeds its batch" % head_size)
            _parse_batched(data + at, head_size, &head)
            at += head_size
            if head.payload_size < 0 or <uint32_t>head.payload_size > size - at:
                raise Damaged("message %d exceeds its batch" % index)
            here.batch_index = index
            if (not head.is_compacted_out and _compare(&here, &self.begin) > 0
                    and _compare(&here, &self.end) <= 0):
                self._add_row(entry, &head, data + at, head.payload_size, index)
            at += head.payload_size
            index += 1
        return 0

    cdef int _unpack(self, const EntryHead *entry, const uint8_t **data, uint32_t *size) except -1:
        """Return the uncompressed payload of an entry, in `scratch` if it had to be decompressed.
        """
        data[0] = entry.payload
        size[0] = entry.payload_size
        if entry.compression == 0:
            return 0
        if not self.is_within:
            size[0] = entry.uncompressed_size
            if size[0] > MESSAGE_BYTES_MAX:
                raise Damaged("its uncompressed size of %d bytes exceeds the limit" % size[0])
            try:
                self.codecs.check_claim(entry.compression, entry.payload_size, size[0])
                self.scratch.size = 0
                reserve(&self.scratch, max(size[0], 1))
                self.codecs.decompress_into(
                    entry.compression,
                    PyMemoryView_FromMemory(<char *>entry.payload, entry.payload_size, PyBUF_READ),
                    PyMemoryView_FromMemory(<char *>self.scratch.data, size[0], PyBUF_WRITE),
                )
            except ValueError as error:
                raise Damaged("it cannot be decompressed (%s)" % error) from error
            self.scratch.size = size[0]
        data[0] = self.scratch.data
        size[0] = <uint32_t>self.scratch.size
        return 0

    cdef bint _is_full(self) noexcept:
        return self.rows >= self.rows_max or self.bytes >= self.bytes_max

    cdef int _add_row(self, const EntryHead *entry, const Head *head, const uint8_t *data,
                      uint32_t size, int32_t index) except -1:
        self._set_version(entry)
        self.is_uneven = True
        if head.has_null_value:
            self._add_nulls()
        else:
            self._add_values(data, size)
        if self.kept & KEEP_KEY:
            self._add_key(head)
        self._add_id(entry, index)
        self._add_times(entry, head)
        if self.kept & KEEP_PROPERTIES:
            self._add_properties(head)
        if self.kept & ~KEEP_DEFAULT:
            self._add_sender(entry, head)
            self._add_position(index)
        self.bytes += head.size
        self.rows += 1
        self.is_uneven = False
        return 0

    cdef int _add_nulls(self) except -1:
        cdef int i
        for i in range(self.value_count):
            add_null(&self.values[i], self.rows)
        return 0

    cdef int _add_values(self, const uint8_t *data, uint32_t size) except -1:
        if self.decoding == DECODE_BYTES:
            self.bytes += size
            return add_bytes(self.values, data, size)
        if self.decoding == DECODE_AVRO:
            return self._add_record(data, size)
        if self.decoding == DECODE_NUMBER:
            return self._add_number(data, size)
        if self.decoding == DECODE_NONE:
            return 0
        if size != 1:
            raise Undecodable("%d bytes are not a boolean" % size)
        return add_truth(self.values, self.rows, data[0] != 0)

    cdef int _add_number(self, const uint8_t *data, uint32_t size) except -1:
        cdef uint8_t swapped[8]
        cdef uint32_t i
        if size != <uint32_t>self.values.width:
            raise Undecodable("%d bytes are not a number of %d bytes" % (size, self.values.width))
        for i in range(size):
            swapped[i] = data[size - 1 - i]
        return add_value(self.values, swapped)

    cdef int _add_record(self, const uint8_t *data, uint32_t size) except -1:
        cdef bytes translated
        cdef AvroProgram program = self.program
        if program is None:
            program = self.newest
            translated = self.translate(self.version, data[:size])
            data = translated
            size = <uint32_t>len(translated)
        self.bytes += program.decode(data, size, self.values, self.rows)
        return 0

    cdef int _set_version(self, const EntryHead *entry) except -1:
        cdef const char *last
        cdef bytes version
        cdef AvroProgram program = None
        if self.version is not None and <uint32_t>len(self.version) == entry.schema_version_size:
            last = self.version
            if (entry.schema_version_size == 0
                    or memcmp(last, entry.schema_version, entry.schema_version_size) == 0):
                if not self.rows:
                    self.versions = [(0, self.version)]
                return 0
        version = entry.schema_version[:entry.schema_version_size]
        if self.decoding == DECODE_AVRO:
            program = self._program(version)
        self.version, self.program = version, program
        self.versions.append((self.rows, version))
        return 0

    cdef AvroProgram _program(self, object version):
        """Return the program of a schema version, or of the newest one for None. No row is
        incomplete if this fails.
        """
        cdef AvroProgram program = self.program_of(version)
        if program is None and version is None:
            raise ValueError("the newest schema has no program")
        if program is not None and program.column_count != self.value_count:
            raise ValueError("the program has %d columns, not %d"
                             % (program.column_count, self.value_count))
        return program

    cdef int _add_key(self, const Head *head) except -1:
        cdef int64_t size
        if head.key == NULL or head.has_null_key:
            return add_null(&self.key, self.rows)
        if not head.is_base64:
            return add_bytes(&self.key, head.key, head.key_size)
        reserve(&self.key.data, head.key_size)
        size = decode_base64(head.key, head.key_size, self.key.data.data + self.key.data.size)
        if size < 0:
            raise Damaged("its key is not valid base64")
        self.key.data.size += <size_t>size
        return add_offset(&self.key.offsets, self.key.data.size)

    cdef int _add_id(self, const EntryHead *entry, int32_t index) except -1:
        """Add a MessageIdData, as clients serialize it."""
        cdef uint8_t *p
        reserve(&self.message_id.data, ID_BYTES_MAX)
        p = self.message_id.data.data + self.message_id.data.size
        p = put_varint(put_varint(p, 1 << 3), <uint64_t>self.ledger_id)
        p = put_varint(put_varint(p, 2 << 3), <uint64_t>self.entry_id)
        if self.partition >= 0:
            p = put_varint(put_varint(p, 3 << 3), <uint64_t>self.partition)
        if index >= 0:
            p = put_varint(put_varint(p, 4 << 3), <uint64_t>index)
            p = put_varint(put_varint(p, 6 << 3), <uint64_t>entry.messages)
        self.message_id.data.size = p - self.message_id.data.data
        return add_offset(&self.message_id.offsets, self.message_id.data.size)

    cdef int _add_times(self, const EntryHead *entry, const Head *head) except -1:
        cdef int64_t time
        if entry.publish_time > TIME_MS_MAX or head.event_time > TIME_MS_MAX:
            raise Damaged("its publish or event time is out of range")
        if self.kept & KEEP_PUBLISH_TIME:
            time = <int64_t>entry.publish_time * 1000
            add_value(&self.publish_time, &time)
        if self.kept & KEEP_EVENT_TIME:
            time = <int64_t>head.event_time * 1000
            if time:
                add_value(&self.event_time, &time)
            else:
                add_null(&self.event_time, self.rows)
        return 0

    cdef int _add_sender(self, const EntryHead *entry, const Head *head) except -1:
        """Add the producer name, sequence id and ordering key of a message."""
        cdef uint64_t id
        if self.kept & KEEP_PRODUCER_NAME:
            # A batch has it once, but each of its rows stores it.
            self.bytes += entry.producer_name_size
            add_bytes(&self.producer_name, entry.producer_name, entry.producer_name_size)
        if self.kept & KEEP_SEQUENCE_ID:
            id = head.sequence_id if head.has_sequence_id else entry.message.sequence_id
            add_value(&self.sequence_id, &id)
        if self.kept & KEEP_ORDERING_KEY:
            if head.ordering_key == NULL:
                add_null(&self.ordering_key, self.rows)
            else:
                add_bytes(&self.ordering_key, head.ordering_key, head.ordering_key_size)
        return 0

    cdef int _add_position(self, int32_t index) except -1:
        if self.kept & KEEP_POSITION:
            add_value(&self.ledger_of, &self.ledger_id)
            add_value(&self.entry_of, &self.entry_id)
            add_value(&self.index_of, &index)
        return 0

    cdef int _add_properties(self, const Head *head) except -1:
        cdef uint32_t at = 0
        cdef uint32_t left = head.properties
        cdef Field field
        while left:
            if parse_field(head.data, head.size, &at, &field) != 0:
                raise Damaged("its properties cannot be decoded")
            if field.number == head.property_number and field.wire == WIRE_BYTES:
                self._add_property(field.data, field.size)
                left -= 1
        return add_offset(&self.property_offsets, <size_t>self.properties)

    cdef int _add_property(self, const uint8_t *data, uint32_t size) except -1:
        cdef uint32_t at = 0
        cdef Field field
        cdef Field name, value
        memset(&name, 0, sizeof(Field))
        memset(&value, 0, sizeof(Field))
        while at < size:
            if parse_field(data, size, &at, &field) != 0:
                raise Damaged("a property cannot be decoded")
            if field.wire == WIRE_BYTES and field.number == 1:
                name = field
            elif field.wire == WIRE_BYTES and field.number == 2:
                value = field
        if name.data == NULL or value.data == NULL:
            raise Damaged("a property has no key or no value")
        add_bytes(&self.property_names, name.data, name.size)
        add_bytes(&self.property_values, value.data, value.size)
        self.properties += 1
        return 0

    # --- results --------------------------------------------------------------------------------

    def finish(self):
        """Return the rows collected since the last call, and start anew."""
        cdef int64_t rows = self.rows
        cdef int i
        if self.is_uneven:
            raise AssertionError("the columns are incomplete after an error")
        if self.property_offsets.size == 0:  # no rows, or a disabled column
            reserve(&self.property_offsets, 4)
            memset(self.property_offsets.data, 0, 4)
            self.property_offsets.size = 4
        filled = Filled(
            rows,
            [_buffers(&self.values[i], rows) for i in range(self.value_count)],
            self.versions,
            _buffers(&self.key, self._rows_if(KEEP_KEY)),
            _buffers(&self.message_id, rows),
            _buffers(&self.publish_time, self._rows_if(KEEP_PUBLISH_TIME)),
            _buffers(&self.event_time, self._rows_if(KEEP_EVENT_TIME)),
            self.properties,
            _block(&self.property_offsets),
            _buffers(&self.property_names, self.properties),
            _buffers(&self.property_values, self.properties),
            _buffers(&self.producer_name, self._rows_if(KEEP_PRODUCER_NAME)),
            _buffers(&self.sequence_id, self._rows_if(KEEP_SEQUENCE_ID)),
            _buffers(&self.ordering_key, self._rows_if(KEEP_ORDERING_KEY)),
            _buffers(&self.ledger_of, self._rows_if(KEEP_POSITION)),
            _buffers(&self.entry_of, self._rows_if(KEEP_POSITION)),
            _buffers(&self.index_of, self._rows_if(KEEP_POSITION)),
        )
        self.versions = []
        self.rows = self.bytes = self.properties = 0
        return filled

    cdef int64_t _rows_if(self, int kept) noexcept:
        """Return the number of rows of an optional column."""
        return self.rows if self.kept & kept else 0
