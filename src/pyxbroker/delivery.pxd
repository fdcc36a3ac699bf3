# Delivery: what a consumer may receive, has received, and has not acknowledged yet.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from pyxbroker.ackset cimport AckSet
from pyxbroker.commands cimport MetadataPeek
from pyxbroker.connection cimport Connection
from pyxbroker.entry cimport AckItem, AckRun, EntryBatch
from pyxbroker.keys cimport KeyShared

# Unacknowledged messages of a subscription or of the whole broker. At the limit it blocks until
# fewer than half of the limit are unacknowledged.
cdef class UnackedCount:
    cdef readonly int64_t messages
    cdef readonly int64_t limit             # 0: none
    cdef readonly bint blocked      # the limit was reached
    cdef readonly UnackedCount whole        # the enclosing count, or None
    cdef readonly int64_t share             # messages allowed while the enclosing count is blocked
    cdef int add(self, int64_t messages) noexcept       # negative for acknowledgements
    cdef bint stops(self) noexcept          # True if nothing more may be sent

# What was sent to the consumers of a subscription since the last take(), for dispatch rates.
cdef class SentCount:
    cdef int64_t entries
    cdef int64_t messages
    cdef int64_t bytes

cdef enum:
    HELD_PAGE_BITS = 5
    HELD_PAGE_ENTRIES = 1 << HELD_PAGE_BITS

# The holder slots of HELD_PAGE_ENTRIES consecutive entries; 0: not held.
cdef class HeldPage:
    cdef int32_t slots[HELD_PAGE_ENTRIES]
    cdef int32_t used               # slots that are not 0

# Finds the consumer that holds an entry, at a cost independent of the number of consumers.
cdef class Holders:
    cdef list consumers                     # by slot; the first and all free slots are None
    cdef list free                          # free slots
    cdef dict ledgers                       # ledger id -> {entry id >> HELD_PAGE_BITS: HeldPage}
    cdef HeldPage last_page                 # the page used last, or None
    cdef int64_t last_ledger_id
    cdef int64_t last_number
    cdef HeldPage _page(self, int64_t ledger_id, int64_t number)
    cdef int hold(self, int64_t ledger_id, int64_t entry_id, int32_t slot) except -1
    cdef int release(self, int64_t ledger_id, int64_t entry_id, int32_t slot) except -1
    cdef ConsumerState find(self, int64_t ledger_id, int64_t entry_id)
    cdef int _settle_batch(self, AckItem *item, AckSet acks, dict redelivery_counts,
                           dict others) except -1

cdef enum SkipReason:
    NOT_SKIPPED             # eligible
    NO_PERMITS              # no permits, or closed
    AT_LIMIT
    SOCKET_FULL

# Round-robin order of the consumers of a Shared subscription. A consumer that cannot receive
# entries is skipped until that changes. Finding the next one takes logarithmic time.
cdef class Rotation:
    cdef list consumers                     # by slot, in order of arrival; None: removed
    # a tree from index 1: node n has the best level of 2n and 2n+1
    cdef int64_t *levels
    cdef Py_ssize_t width                   # index of the first leaf; one leaf for each slot
    cdef Py_ssize_t gone                    # slots of removed consumers
    cdef Py_ssize_t turn_of                 # slot to search from
    cdef Py_ssize_t chosen                  # the slot that next() returned; -1: none
    cdef int64_t at_limit                   # number of consumers skipped for their limit
    # connection -> {consumer: None}, skipped for a full socket
    cdef dict full
    cdef list newly_full                    # connections in `full` since take_newly_full()
    cdef readonly int64_t eligibility_checks
    cdef Py_ssize_t _find(self, Py_ssize_t start, int64_t level) noexcept
    cdef int _set(self, Py_ssize_t slot, int64_t level) noexcept
    cdef int _rebuild(self) except -1
    cdef int _skip(self, ConsumerState consumer, SkipReason why) except -1
    cdef int _stop_skipping(self, ConsumerState consumer) except -1

# The hot half of a consumer. broker/subscriptions/consumer.py adds the policies.
cdef class ConsumerState:
    cdef readonly Connection connection
    cdef readonly uint64_t consumer_id
    cdef readonly int32_t partition         # partition index of the topic; -1: none
    # permits left; negative after a batch that exceeded them
    cdef int64_t wanted
    cdef public int64_t unacked_messages    # delivered, not acknowledged
    cdef readonly int64_t unacked_max       # limit of unacked_messages; 0: none
    cdef public bint wants_broker_metadata  # the client accepts broker entry metadata
    cdef public UnackedCount unacked_total  # of its subscription; None: not limited
    cdef public SentCount sent_total        # of its subscription; None: no dispatch rate
    cdef Holders holders                    # of its subscription; None: it is the only consumer
    cdef int32_t holder_slot                # its index in holders
    cdef Rotation rotation                  # of a Shared subscription, or None
    cdef Py_ssize_t rotation_slot           # its index in rotation
    cdef SkipReason skip_reason             # reason why the rotation skips it
    cdef public int64_t consumer_epoch      # -1: the client does not use epochs
    cdef public bint closed
    # False: nothing is redelivered, or everything after the mark
    cdef public bint tracks_pending
    cdef public int32_t priority_level      # of a Shared subscription: 0 is the highest
    cdef public KeyShared keys              # of a Key_Shared subscription, or None
    cdef public int32_t slot                # its index in keys
    cdef readonly uint64_t msg_out          # counters since creation
    cdef readonly uint64_t bytes_out
    cdef readonly uint64_t chunks_out       # chunks of chunked messages
    cdef readonly uint64_t redelivered
    cdef readonly double messages_per_entry  # moving average over sent entries
    cdef readonly int64_t first_sent_ms     # wall clock of the first delivery; 0: none
    cdef readonly int64_t last_sent_ms      # wall clock of the last delivery
    cdef readonly uint64_t acked
    cdef bint at_limit                      # unacked_max was reached
    cdef uint64_t pinned_in                 # the last round that sent it entries of a batch
    cdef dict pending                       # ledger id -> {entry id: messages | key hash << 32}
    cdef void _mark_sent(self) except *     # records that output was queued on the connection
    cdef bint _can_take(self) noexcept
    cdef int64_t _settle(self, int64_t ledger_id, int64_t entry_id) except -1
    cdef int _on_settled(self, int64_t held) except -1
    cdef int _reduce_unacked(self, int64_t messages) except -1
    cdef int _send(self, EntryBatch batch, int i, int32_t messages, bytes ack_set, int32_t hash,
                   uint32_t redelivery_count, bint pin) except -1

# Consumers that have permits but cannot receive: one for each cause.
cdef class BlockedConsumers:
    cdef readonly list consumers            # one at a limit, and one of each connection
    cdef bint limited                       # True if `consumers` has one at a limit
    cdef Connection last                    # connection of the consumer checked last
    cdef set connections                    # connections of `consumers`; None: no connection
    cdef int add(self, ConsumerState consumer) except -1

# The revoked deliveries of a consumer, and the owners of their bookkeeping.
cdef class TakenBack:
    cdef dict pending                       # moved from the consumer
    cdef int64_t ledger_id
    cdef dict entries                       # of this ledger, partly put back; or None
    cdef KeyShared keys                     # or None
    cdef int32_t slot                       # the consumer's index in keys
    cdef Holders holders                    # or None
    cdef int32_t holder_slot                # the consumer's index in holders

# Decode the metadata of an entry. Returns False for entries that clients never receive: markers,
# those of aborted transactions, and those that cannot be decoded.
cdef bint peek_message(EntryBatch batch, int i, MetadataPeek *peek) except -1
