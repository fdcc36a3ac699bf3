# Delivery: what one consumer may get, has got and has not acknowledged yet.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from pyxbroker.ackset cimport AckSet
from pyxbroker.connection cimport Connection
from pyxbroker.entry cimport AckRun, EntryBatch

# The hot half of a consumer; broker/consumer.py adds the policy.
cdef class ConsumerState:
    cdef readonly Connection connection
    cdef readonly uint64_t consumer_id
    cdef readonly int32_t partition         # index of the topic's partition, -1: none
    cdef public int64_t permits             # messages the client still wants; below 0 after a batch
    cdef public int64_t unacked_messages    # delivered, not acknowledged
    cdef public int64_t unacked_max         # delivered before acks must come; 0: no limit
    cdef public uint64_t consumer_epoch
    cdef public bint closed
    cdef readonly uint64_t msg_out          # counters since the consumer came
    cdef readonly uint64_t bytes_out
    cdef readonly uint64_t redelivered
    cdef double messages_per_entry          # moving average of what was sent to it
    cdef dict pending                       # ledger id -> {entry id: messages in the entry}
    cdef bint _can_take(self) noexcept
    cdef int64_t _settle(self, int64_t ledger_id, int64_t entry_id) except -1
    cdef int _send(self, EntryBatch batch, int i, int32_t messages, bytes ack_set,
                   uint32_t redelivery_count, bint pin) except -1
