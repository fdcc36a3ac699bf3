# Hot commands, decoded and built in place. All other commands go through protobuf.
#
# Decoders read protobuf (proto2) fields from data[0:size] only. They return 0, or DECODE_MALFORMED
# if the bytes are not a message of that type or a required field is missing. Unknown fields are
# skipped, as protobuf does.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    ACK_SET_WORDS_MAX = 4096        # 262,144 messages in one batch
    ACK_IDS = 3                     # field of an ACK with the message ids
    REDELIVER_IDS = 2               # message ids of a REDELIVER_UNACKNOWLEDGED_MESSAGES
    CHUNK_UUID_BYTES_MAX = 1088     # as in base/limits.py
    METADATA_FIELDS_MAX = 100000

    DECODE_OK = 0
    DECODE_MALFORMED = -1

# BaseCommand.Type; the field number of the message in BaseCommand is the same number.
cdef enum CommandType:
    CMD_CONNECT = 2
    CMD_CONNECTED = 3
    CMD_SUBSCRIBE = 4
    CMD_PRODUCER = 5
    CMD_SEND = 6
    CMD_SEND_RECEIPT = 7
    CMD_SEND_ERROR = 8
    CMD_MESSAGE = 9
    CMD_ACK = 10
    CMD_FLOW = 11
    CMD_PING = 18
    CMD_PONG = 19
    CMD_REDELIVER = 20              # REDELIVER_UNACKNOWLEDGED_MESSAGES

cdef struct SendCommand:
    uint64_t producer_id
    uint64_t sequence_id
    uint64_t highest_sequence_id    # 0: not set
    int32_t num_messages            # 1 unless a batch
    uint64_t txnid_least_bits
    uint64_t txnid_most_bits
    bint has_txn                    # has both parts of the id
    bint is_chunk
    bint marker

cdef struct FlowCommand:
    uint64_t consumer_id
    uint32_t permits

# The positions are MessageIdData, as in an ACK.
cdef struct RedeliverCommand:
    uint64_t consumer_id
    uint64_t consumer_epoch
    uint32_t ids                    # number of message ids
    bint has_epoch

# One MessageIdData of an ACK. The ack set stays encoded: only batch-index acks read it.
cdef struct AckedId:
    int64_t ledger_id
    int64_t entry_id
    int32_t batch_index             # -1: not set
    int32_t batch_size              # 0: not set
    uint32_t ack_set_words          # words of the ack set; 0: the whole entry
    const uint8_t *message          # the encoded MessageIdData, for the ack set
    uint32_t message_size

cdef struct AckCommand:
    uint64_t consumer_id
    uint64_t request_id
    uint64_t txnid_least_bits
    uint64_t txnid_most_bits
    uint32_t ids                    # number of message ids
    bint has_request_id
    bint has_txn
    bint cumulative
    bint has_validation_error

# The fields of MessageMetadata that the broker uses.
cdef struct MetadataPeek:
    uint64_t sequence_id
    uint64_t highest_sequence_id    # of a batch; 0: not set
    uint64_t publish_time           # ms since the epoch
    int64_t deliver_at_time         # ms since the epoch; 0: immediately
    int32_t num_messages            # in the batch; 1 for a single message; not validated
    uint32_t uncompressed_size      # of the payload; 0: not set
    int32_t marker_type             # -1: not a marker
    uint64_t txnid_least_bits
    uint64_t txnid_most_bits
    bint has_txn                    # has both parts of the id of a transaction
    uint32_t fields                 # number of all fields, including unknown ones
    bint is_batch
    bint is_encrypted               # has an encryption key
    bint has_uncompressed_size
    bint has_null_value             # the null_value flag of the message
    int32_t compression             # CompressionType
    uint32_t compacted_indexes      # messages that compaction has retained in the batch
    const uint8_t *partition_key
    uint32_t partition_key_size
    bint partition_key_b64
    const uint8_t *ordering_key
    uint32_t ordering_key_size
    const uint8_t *producer_name
    uint32_t producer_name_size
    const uint8_t *uuid             # of a chunked message
    uint32_t uuid_size
    int32_t num_chunks              # 0: not chunked
    int32_t chunk_id                # from 0

# The fields of SingleMessageMetadata that compaction uses. It precedes each message of a batch.
cdef struct BatchedPeek:
    const uint8_t *partition_key    # NULL: none
    uint32_t partition_key_size
    int32_t payload_size
    bint has_null_value
    bint is_compacted_out           # compaction has removed the message

cdef enum:
    # size prefix of SingleMessageMetadata, and its payload_size field
    BATCHED_MESSAGE_BYTES_MIN = 6

# Return True if a payload of so many bytes can hold the number of messages in its metadata. No
# message is smaller than BATCHED_MESSAGE_BYTES_MIN, encrypted or (by the producer's
# uncompressed_size) uncompressed. Clients may write 0 for a single message.
cdef inline bint has_room_for_messages(const MetadataPeek *peek, uint32_t payload_bytes) noexcept:
    cdef uint32_t most = max(payload_bytes, peek.uncompressed_size)
    if peek.num_messages <= 1:
        return peek.num_messages >= 0
    return <int64_t>peek.num_messages * BATCHED_MESSAGE_BYTES_MIN <= <int64_t>most

# Return the type of a BaseCommand and the bytes of its message, if it has the layout that every
# client writes (type first, message second, nothing after). Otherwise DECODE_MALFORMED: protobuf
# decides.
cdef int decode_base(const uint8_t *data, uint32_t size, uint32_t *type_out,
                     const uint8_t **message, uint32_t *message_size) noexcept nogil

cdef int decode_send(const uint8_t *data, uint32_t size, SendCommand *out) noexcept nogil
cdef int decode_flow(const uint8_t *data, uint32_t size, FlowCommand *out) noexcept nogil
cdef int decode_ack(const uint8_t *data, uint32_t size, AckCommand *out) noexcept nogil
cdef int decode_redeliver(const uint8_t *data, uint32_t size, RedeliverCommand *out) noexcept nogil
# Iterate over the ids of an ACK or (field 2) of a REDELIVER_UNACKNOWLEDGED_MESSAGES. `at` is an
# offset that starts at 0. Returns 1 with `out` filled, 0 at the end, or DECODE_MALFORMED.
cdef int decode_next_id(const uint8_t *data, uint32_t size, uint32_t field_number, uint32_t *at,
                        AckedId *out) noexcept nogil
# Copy up to words_max words of the ack set of one id. Returns the number of words, or an error.
cdef int decode_ack_set(const AckedId *id, int64_t *words, uint32_t words_max) noexcept nogil
cdef int peek_metadata(const uint8_t *data, uint32_t size, MetadataPeek *out) noexcept nogil
cdef int peek_batched(const uint8_t *data, uint32_t size, BatchedPeek *out) noexcept nogil
# Return the broker timestamp of a BrokerEntryMetadata in ms since the epoch; 0 if missing or
# malformed.
cdef uint64_t peek_broker_timestamp(const uint8_t *data, uint32_t size) noexcept nogil

cdef enum:
    RECEIPT_BYTES_MAX = 80          # a whole SEND_RECEIPT frame
    MESSAGE_HEADER_BYTES_MAX = 112  # a MESSAGE frame without ack set and stored bytes
    ACK_SET_WORD_BYTES_MAX = 11     # maximum size of each ack set word

# Build a whole SEND_RECEIPT frame at out (RECEIPT_BYTES_MAX bytes). Returns its size.
cdef uint32_t build_receipt(uint8_t *out, uint64_t producer_id, uint64_t sequence_id,
                            uint64_t highest_sequence_id, uint64_t ledger_id,
                            uint64_t entry_id) noexcept nogil

# Build the start of a MESSAGE frame at out; payload_size stored bytes complete the frame. Returns
# its size, at most MESSAGE_HEADER_BYTES_MAX + ACK_SET_WORD_BYTES_MAX * ack_set_words. A partition
# or consumer_epoch of -1 is omitted.
cdef uint32_t build_message_header(uint8_t *out, uint64_t consumer_id, uint64_t ledger_id,
                                   uint64_t entry_id, int32_t partition,
                                   uint32_t redelivery_count, const int64_t *ack_set,
                                   uint32_t ack_set_words, int64_t consumer_epoch,
                                   uint32_t payload_size) noexcept nogil
