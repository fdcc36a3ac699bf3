# Decoding of a topic's entries, as a broker sends them to a consumer, to columns.
#
# The caller passes received bytes to take(). take() stops where a decision is needed that is not
# made here (Stop), and returns how many bytes are consumed. frames.pxd describes the layout of
# frames and entries. A batch is a sequence of messages: 4 bytes of size, a SingleMessageMetadata
# and the payload.
#
# The wanted messages are a range (begin, end] of positions (ledger, entry, batch index). The index
# WHOLE stands for the whole entry; it orders after the last message of the entry.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from pyxbroker.arrow_columns cimport Column, Memory
from pyxbroker.avro_columns cimport AvroProgram

cdef enum:
    ENTRY_FRAME_BYTES_MAX = 128 << 20
    # limit of a decompressed message, or one reassembled from chunks
    MESSAGE_BYTES_MAX = 1 << 30
    SCRATCH_BYTES_MAX = 8 << 20     # largest decompression buffer retained for the next entry
    VALUES_MAX = 10000              # columns of values
    WHOLE = 0x7fffffff

# Reasons why take() stops.
cdef enum Stop:
    STOP_MORE = 0                   # the rest is not a whole frame
    STOP_OTHER = 1                  # the next frame is not a MESSAGE of the usual form
    STOP_FULL = 2                   # the columns are full: call finish()
    # The entry is the first one received of its ledger: the caller checks that no entry before it
    # is missing, and continues with accept_ledger().
    STOP_NEW_LEDGER = 3
    # The last entry taken is a chunk of a message. The caller continues with accept_chunk().
    STOP_CHUNK = 4
    STOP_DONE = 5                   # the range is complete

# How payloads are decoded.
cdef enum Decoding:
    DECODE_BYTES = 0                # one column of bytes
    DECODE_NUMBER = 1               # one column of big-endian numbers, as wide as the column
    DECODE_TRUTH = 2                # one column of booleans; a byte each
    DECODE_AVRO = 3                 # by the Avro program of their schema version
    DECODE_NONE = 4                 # no column: payloads are ignored

# Optional columns other than the values. Message ids are always stored, as errors refer to messages
# by their id.
cdef enum Kept:
    KEEP_KEY = 1
    KEEP_PUBLISH_TIME = 2
    KEEP_EVENT_TIME = 4
    KEEP_PROPERTIES = 8
    KEEP_PRODUCER_NAME = 16
    KEEP_SEQUENCE_ID = 32
    KEEP_ORDERING_KEY = 64
    KEEP_POSITION = 128             # ledger, entry and batch index as numbers
    KEEP_DEFAULT = 15
    KEEP_ALL = 255

cdef struct Place:
    int64_t ledger_id
    int64_t entry_id
    int32_t batch_index

# Metadata of a message: MessageMetadata, or SingleMessageMetadata in a batch.
cdef struct Head:
    const uint8_t *data             # the encoded metadata, for its properties
    uint32_t size
    uint32_t property_number        # protobuf field number of `properties`
    uint32_t properties
    const uint8_t *key              # NULL: none
    uint32_t key_size
    const uint8_t *ordering_key     # NULL: none
    uint32_t ordering_key_size
    uint64_t sequence_id
    uint64_t event_time             # ms since the epoch; 0: none
    int32_t payload_size            # SingleMessageMetadata only
    bint is_base64                  # the key is base64
    bint has_null_key
    bint has_null_value
    bint is_compacted_out
    bint has_sequence_id            # else that of the entry applies

# MessageMetadata of an entry.
cdef struct EntryHead:
    Head message
    uint64_t publish_time           # ms since the epoch
    uint32_t uncompressed_size
    int32_t compression
    int32_t messages                # in the batch; 1 for a single message
    int32_t chunks                  # 0: not chunked
    bint is_batch
    bint is_encrypted
    const uint8_t *producer_name
    uint32_t producer_name_size
    const uint8_t *schema_version
    uint32_t schema_version_size
    const uint8_t *payload          # after the metadata
    uint32_t payload_size

# Memory owned by an Arrow buffer.
cdef class Block:
    cdef uint8_t *data
    cdef Py_ssize_t size

cdef class EntryColumns:
    cdef int decoding
    cdef int kept                   # optional columns (bits of Kept)
    cdef object codecs              # base/compression.py
    cdef object program_of          # (schema version) -> AvroProgram, or None: use `translate`
    cdef object translate           # (schema version, payload) -> payload in the newest schema
    cdef AvroProgram program        # of `version`
    cdef AvroProgram newest         # of the newest schema version
    cdef bytes version              # schema version of the last message
    cdef list versions              # [(row, version)]: changes of the version
    cdef int32_t partition
    cdef int64_t rows_max
    cdef int64_t bytes_max
    cdef Place begin
    cdef Place end
    cdef Place handled              # position of the last message that was handled
    cdef Place accepted                 # the entry that accept_ledger() was called for
    cdef readonly int64_t ledger_id     # of the current entry
    cdef readonly int64_t entry_id
    cdef readonly bytes chunk_metadata  # MessageMetadata of the current chunk
    cdef readonly bytes chunk_payload  # payload of the current chunk
    cdef readonly uint64_t entries      # received
    cdef readonly int64_t permits       # permits used by received entries since take_permits()
    # State within an entry that take() stopped in.
    cdef bint is_within
    cdef Place within
    cdef int32_t next_index
    cdef uint32_t next_at
    cdef Memory scratch             # its decompressed payload
    # The columns.
    cdef readonly int64_t rows
    cdef int64_t bytes              # approximate size of the rows
    cdef bint is_uneven             # a row is incomplete, possibly after an error
    cdef Column *values
    cdef int value_count
    cdef Column key
    cdef Column message_id
    cdef Column publish_time
    cdef Column event_time
    cdef Memory property_offsets
    cdef Column property_names
    cdef Column property_values
    cdef int64_t properties         # total over all rows
    cdef Column producer_name
    cdef Column sequence_id
    cdef Column ordering_key
    cdef Column ledger_of           # of each message
    cdef Column entry_of
    cdef Column index_of            # -1: not in a batch
    cdef int _check_decoding(self, int decoding) except -1
    cdef int _take_frame(self, const uint8_t *command, uint32_t command_size,
                         const uint8_t *payload, uint32_t payload_size) except -1
    cdef int _take_entry(self, int64_t ledger_id, int64_t entry_id, const uint8_t *data,
                         uint32_t size) except -1
    cdef int _count(self, const EntryHead *entry) noexcept
    cdef int _end_entry(self) except -1
    cdef bint _is_new_ledger(self, const Place *place) noexcept
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
    cdef int _set_version(self, const EntryHead *entry) except -1
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
