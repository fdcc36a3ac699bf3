# The hot path of `pyxbroker perf`: builds SEND frames in bulk, and reads receipts and messages.
#
# Latencies count from the time for which a message was scheduled, not from the time at which it was
# sent. A broker that stops for a second therefore shows in all messages of that second.
#
# A stamp at the start of a payload (STAMP_BYTES) tells the receiver when the message was scheduled:
#
#   0  8  STAMP_MAGIC
#   8  8  nanoseconds since 1970 for which the (first) message was scheduled, big-endian
#   16 8  nanoseconds from one message of a batch to the next
#
# In a batch only the first message has a stamp. Compressed payloads and payloads shorter than
# STAMP_BYTES have none; the receiver uses the publish time of their metadata.
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    STAMP_BYTES = 24
    ACK_IDS_MAX = 1000              # message ids in one ACK
    REFERENCE_BYTES_MIN = 16384     # payloads of this size are not copied into the frames
    SEND_OVERHEAD_BYTES = 256       # of a SEND frame, without producer name, key and payload

    KEY_NONE = 0
    KEY_FIXED = 1                   # one key per producer
    KEY_INCREMENT = 2               # 0, 1, 2, ...
    KEY_RANDOM = 3                  # random numbers

# A histogram of microseconds. Its buckets are those of an HdrHistogram with 3 significant digits:
# 2048 of width 1, then 1024 of width 2, 1024 of width 4, and so on.
cdef class Latencies:
    cdef uint64_t *counts
    cdef readonly uint64_t count
    cdef readonly int64_t total_us
    cdef readonly int64_t min_us    # 0: no value
    cdef readonly int64_t max_us
    cdef void add(self, int64_t us, uint64_t count) noexcept nogil

# Numbers of one group of producers or of consumers.
cdef class LoadStats:
    cdef readonly uint64_t messages     # acknowledged by the broker, or received
    cdef readonly uint64_t bytes        # of their payloads
    cdef readonly uint64_t sent         # written, with or without receipt
    cdef readonly uint64_t failures     # refused by the broker, or never answered
    cdef readonly Latencies latencies
    # From the moment of sending to the receipt: what tools report that have no schedule.
    cdef readonly Latencies since_sent
    cdef uint64_t taken_messages        # as of the last call of take()
    cdef uint64_t taken_bytes
    cdef uint64_t taken_failures

# The payload of an entry with a number of messages, ready to be copied into a frame.
cdef class Body:
    cdef bytes data
    cdef uint32_t size              # bytes of data that belong to the entry
    cdef uint32_t stamp_at          # offset of the stamp in data
    cdef uint32_t head              # bytes up to the end of the stamp; 0: no stamp
    cdef uint32_t rest_crc          # CRC32C of data[head:size]
    cdef uint32_t messages
    cdef uint32_t unpacked_size     # before compression

# The payloads of one group of producers.
cdef class LoadPayload:
    cdef bytes payload              # of one message
    cdef bytes batch                # batch_max messages with their metadata; empty: no batches
    cdef readonly uint32_t size     # of one message
    cdef uint32_t slot              # bytes of one message in `batch`
    cdef readonly uint32_t batch_max    # 1: no batches
    cdef readonly uint32_t entry_bytes_max
    cdef readonly int codec         # CompressionType
    cdef object compress            # compress(codec, bytes) -> bytes
    cdef dict bodies                # by number of messages
    cdef uint64_t bodies_bytes      # of compressed payloads in `bodies`
    cdef Body body(self, uint32_t messages)

# An entry without receipt.
cdef struct SentEntry:
    uint64_t sequence_id
    int64_t scheduled_ns            # CLOCK_MONOTONIC; of the first message
    int64_t sent_ns
    int64_t step_ns                 # from one message of the batch to the next
    uint32_t messages

cdef class LoadProducer:
    cdef readonly uint64_t producer_id
    cdef bytes name
    cdef LoadPayload payload
    cdef LoadStats stats
    cdef int key_mode
    cdef bytes key
    cdef uint64_t key_bound         # random keys are below it
    cdef uint64_t random_state
    cdef uint64_t next_sequence_id
    cdef readonly uint64_t quota    # messages still to send
    cdef SentEntry *pending         # a ring, in the order of the sequence ids
    cdef uint32_t pending_first
    cdef uint32_t pending_count
    cdef uint32_t pending_capacity
    cdef readonly uint32_t outstanding      # messages without receipt
    cdef readonly uint32_t outstanding_max
    # The schedule. interval_ns 0: as fast as receipts come.
    cdef int64_t first_ns
    cdef uint64_t scheduled         # messages sent since first_ns
    cdef double interval_ns
    cdef int64_t window_ns          # time that a batch waits for further messages
    cdef int64_t due_ns(self) noexcept
    # Return the number of messages to send in one entry now; 0: none.
    cdef uint32_t ready(self, int64_t now_ns) noexcept
    # Return the number of messages that the schedule has due and that are not sent.
    cdef uint64_t backlog(self, int64_t now_ns) noexcept
    # Write a SEND frame at out, without the part of its payload that is only referenced. Returns
    # the end of what was written.
    cdef uint8_t *write(self, uint8_t *out, Body body, int64_t now_ns,
                        int64_t wall_offset_ns) except NULL
    cdef uint8_t *_write_metadata(self, uint8_t *at, Body body, int64_t publish_time_ms) noexcept
    cdef uint64_t _random(self) noexcept
    cdef void on_receipt(self, uint64_t sequence_id, bint is_stored, int64_t now_ns) noexcept

# A bytes object that frames are written into before anything else can see it.
cdef class FrameMemory:
    cdef PyObject *frames
    cdef uint8_t *data(self) noexcept
    # Return the first bytes, and keep the object no longer than them.
    cdef bytes take(self, uint64_t size)

cdef class LoadConsumer:
    cdef readonly uint64_t consumer_id
    cdef LoadStats stats
    cdef readonly uint32_t permits_max
    cdef uint32_t used              # permits used since the last FLOW
    cdef bint acknowledges
    cdef bytearray ids              # field 3 of ACK, once for each entry that is not acknowledged
    cdef uint32_t ids_count

cdef class LoadConnection:
    cdef list producers             # by producer_id - first_producer_id
    cdef list consumers             # by consumer_id - first_consumer_id
    cdef uint64_t first_producer_id
    cdef uint64_t first_consumer_id
    cdef uint32_t turn              # the producer that sends first next time
    cdef uint64_t entry_bytes_max
    cdef int64_t wall_offset_ns     # CLOCK_REALTIME minus CLOCK_MONOTONIC
    cdef bytearray answers          # FLOW and ACK frames to send
    # The first frame that was not consumed is complete, and not one that this module reads.
    cdef readonly bint is_other_next
    # When the next message is due (CLOCK_MONOTONIC); 0: after a receipt; -1: never.
    cdef readonly int64_t next_due_ns
    cdef uint64_t _room(self, uint64_t bytes_max, int64_t now_ns) except? 0
    cdef int _find_next_due(self) except -1
    cdef int _on_receipt(self, const uint8_t *data, uint32_t size, int64_t now_ns) except -1
    cdef int _on_message(self, const uint8_t *data, uint32_t size, const uint8_t *section,
                         uint32_t section_size, int64_t now_ns) except -1
    cdef int _count_message(self, LoadStats stats, const uint8_t *section, uint32_t section_size,
                            int64_t now_ns) except -1
    cdef int _flush_acks(self, LoadConsumer consumer) except -1

# A timer with a file descriptor, for an event loop whose own timers count in milliseconds.
cdef class WakeTimer:
    cdef readonly int fd
