# Entries of a topic, as a broker sends them to a consumer, decoded to columns.
#
# Who reads gives what it received (take), and gets it back in part: up to what asks for something
# that is not decided here (Stop). The layout of a frame and of an entry is that of frames.pxd; a
# batch is, message after message, 4 bytes of size, a SingleMessageMetadata and its payload.
#
# Which messages are wanted is a range (begin, end] of positions, (ledger, entry, batch index); the
# index WHOLE stands for the whole entry, which is behind the last message of it.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from pyxbroker.arrow_columns cimport Column, Memory
from pyxbroker.avro_columns cimport AvroProgram

cdef enum:
    ENTRY_FRAME_BYTES_MAX = 128 << 20
    MESSAGE_BYTES_MAX = 1 << 30     # of one that is unpacked, or put together of chunks
    SCRATCH_BYTES_MAX = 8 << 20     # of memory to unpack into, what is kept for the next entry
    VALUES_MAX = 10000              # columns of values
    WHOLE = 0x7fffffff

# Why take has stopped at the byte that it tells.
cdef enum Stop:
    STOP_MORE = 0                   # the rest is not a whole frame
    STOP_OTHER = 1                  # what stands there is no MESSAGE, or one of unusual shape
    STOP_FULL = 2                   # the columns have enough: finish comes first
    # The entry is the first that came of a ledger: is anything missing before it?
    # pass_look goes on with it.
    STOP_LOOK = 3
    # Before this stands an entry that is a chunk of a message; pass_entry says that it was seen to.
    STOP_CHUNK = 4
    STOP_DONE = 5                   # all of the range was read

# What becomes of payloads.
cdef enum Decoding:
    DECODE_BYTES = 0                # one column of them
    DECODE_NUMBER = 1               # one column; big-endian, as wide as the column
    DECODE_TRUTH = 2                # one column of truth values; a byte
    DECODE_AVRO = 3                 # by the program of their schema version
    DECODE_NONE = 4                 # no column: they are not looked at

# Columns beside the values, which are kept where they are wanted; ids of messages are in any case,
# as who says what is wrong with a message names it by that.
cdef enum Kept:
    KEEP_KEY = 1
    KEEP_PUBLISH_TIME = 2
    KEEP_EVENT_TIME = 4
    KEEP_PROPERTIES = 8
    KEEP_PRODUCER_NAME = 16
    KEEP_SEQUENCE_ID = 32
    KEEP_ORDERING_KEY = 64
    KEEP_POSITION = 128             # ledger, entry and batch index as numbers
    KEEP_USUAL = 15
    KEEP_ALL = 255

cdef struct Place:
    int64_t ledger_id
    int64_t entry_id
    int32_t batch_index

# What is before a message: MessageMetadata, or within a batch SingleMessageMetadata.
cdef struct Head:
    const uint8_t *data             # the message itself, for its properties
    uint32_t size
    uint32_t property_number        # their field
    uint32_t properties
    const uint8_t *key              # NULL: none
    uint32_t key_size
    const uint8_t *ordering_key     # NULL: none
    uint32_t ordering_key_size
    uint64_t sequence_id
    uint64_t event_time             # ms since the epoch, 0: none
    int32_t payload_size            # SingleMessageMetadata only
    bint is_base64                  # the key is
    bint has_null_key
    bint has_null_value
    bint is_compacted_out
    bint has_sequence_id            # else it is that of the entry

# What MessageMetadata says of an entry.
cdef struct EntryHead:
    Head message
    uint64_t publish_time           # ms since the epoch
    uint32_t uncompressed_size
    int32_t compression
    int32_t messages                # in the batch; 1 without
    int32_t chunks                  # 0: it is none
    bint is_batch
    bint is_encrypted
    const uint8_t *producer_name
    uint32_t producer_name_size
    const uint8_t *schema_version
    uint32_t schema_version_size
    const uint8_t *payload          # behind the metadata
    uint32_t payload_size

# Memory that Arrow holds on to.
cdef class Block:
    cdef uint8_t *data
    cdef Py_ssize_t size

cdef class EntryColumns:
    cdef int decoding
    cdef int kept                   # columns beside the values (Kept)
    cdef object codecs              # base/compression.py
    cdef object program_of          # (schema version) -> AvroProgram, or None: `translate`
    cdef object translate           # (schema version, payload) -> a payload of the newest schema
    cdef AvroProgram program        # of the version below, and of the newest one
    cdef AvroProgram newest
    cdef bytes version              # schema version of the last message
    cdef list versions              # [(row, version)]: where it changes
    cdef int32_t partition
    cdef int64_t rows_max
    cdef int64_t bytes_max
    cdef Place begin
    cdef Place end
    cdef Place handled              # the last message that is done with
    cdef Place looked               # the entry that pass_look was called for
    cdef readonly int64_t ledger_id     # of the entry that was looked at last
    cdef readonly int64_t entry_id
    cdef readonly bytes chunk_metadata  # of a chunk: its MessageMetadata and its payload
    cdef readonly bytes chunk_payload
    cdef readonly uint64_t entries      # that came
    cdef readonly int64_t permits       # that they took, since somebody set them to 0
    # An entry that take stopped within.
    cdef bint is_within
    cdef Place within
    cdef int32_t next_index
    cdef uint32_t next_at
    cdef Memory scratch             # its payload, unpacked
    # The columns.
    cdef readonly int64_t rows
    cdef int64_t bytes              # about what they have
    cdef bint is_uneven             # a row is added, or could not be
    cdef Column *values
    cdef int value_count
    cdef Column key
    cdef Column message_id
    cdef Column publish_time
    cdef Column event_time
    cdef Memory property_offsets
    cdef Column property_names
    cdef Column property_values
    cdef int64_t properties         # in all rows
    cdef Column producer_name
    cdef Column sequence_id
    cdef Column ordering_key
    cdef Column ledger_of           # of each message
    cdef Column entry_of
    cdef Column index_of            # -1: it is no message of a batch
    cdef int _check_decoding(self, int decoding) except -1
    cdef int _take_frame(self, const uint8_t *command, uint32_t command_size,
                         const uint8_t *payload, uint32_t payload_size) except -1
    cdef int _take_entry(self, int64_t ledger_id, int64_t entry_id, const uint8_t *data,
                         uint32_t size) except -1
    cdef int _count(self, const EntryHead *entry) noexcept
    cdef int _end_entry(self) except -1
    cdef bint _wants_look(self, const Place *place) noexcept
    cdef int _open_chunk(self, const EntryHead *entry) except -1
    cdef int _add_messages(self, const EntryHead *entry) except -1
    cdef int _add_batch(self, const EntryHead *entry, const uint8_t *data, uint32_t size) except -1
    cdef int _unpack(self, const EntryHead *entry, const uint8_t **data, uint32_t *size) except -1
    cdef int _add_row(self, const EntryHead *entry, const Head *head, const uint8_t *data,
                      uint32_t size, int32_t index) except -1
    cdef int _add_values(self, const uint8_t *data, uint32_t size) except -1
    cdef int _add_nulls(self) except -1
    cdef int _add_number(self, const uint8_t *data, uint32_t size) except -1
    cdef int _add_record(self, const uint8_t *data, uint32_t size) except -1
    cdef int _see_version(self, const EntryHead *entry) except -1
    cdef AvroProgram _program(self, object version)
    cdef int _add_key(self, const Head *head) except -1
    cdef int _add_id(self, const EntryHead *entry, int32_t index) except -1
    cdef int _add_times(self, const EntryHead *entry, const Head *head) except -1
    cdef int _add_sender(self, const EntryHead *entry, const Head *head) except -1
    cdef int _add_position(self, int32_t index) except -1
    cdef int _add_properties(self, const Head *head) except -1
    cdef int _add_property(self, const uint8_t *data, uint32_t size) except -1
    cdef bint _is_full(self) noexcept
    cdef int64_t _rows_if(self, int kept) noexcept
