# Delivery: what one consumer may get, has got and has not acknowledged yet.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from pyxbroker.ackset cimport AckSet
from pyxbroker.commands cimport MetadataPeek
from pyxbroker.connection cimport Connection
from pyxbroker.entry cimport AckItem, AckRun, EntryBatch
from pyxbroker.keys cimport KeyShared

# Messages that are sent and not acknowledged, of a subscription or of the whole broker. At its
# limit it blocks until less than half of the limit is left.
cdef class UnackedCount:
    cdef readonly int64_t messages
    cdef readonly int64_t limit             # 0: none
    cdef readonly bint blocked
    cdef readonly UnackedCount whole        # what this is a part of, or None
    cdef readonly int64_t share             # what this may have while the whole blocks
    cdef int add(self, int64_t messages) noexcept       # negative: they are acknowledged
    cdef bint stops(self) noexcept          # nothing more may be sent

# What was sent to the consumers of a subscription since it was asked last, where rates limit that.
cdef class SentCount:
    cdef int64_t entries
    cdef int64_t messages
    cdef int64_t bytes

cdef enum:
    HELD_PAGE_BITS = 5
    HELD_PAGE_ENTRIES = 1 << HELD_PAGE_BITS

# The slots of the consumers that have so many entries with consecutive ids; 0: nobody has it.
cdef class HeldPage:
    cdef int32_t slots[HELD_PAGE_ENTRIES]
    cdef int32_t used               # slots that are not 0

# Which consumer of a subscription has an entry: found at the same cost however many there are.
cdef class Holders:
    cdef list consumers                     # by slot; the first one, and free ones, are None
    cdef list free                          # slots that nobody has any more
    cdef dict ledgers                       # ledger id -> {entry id >> HELD_PAGE_BITS: HeldPage}
    cdef HeldPage last_page                 # the one that was used last, or None
    cdef int64_t last_ledger_id
    cdef int64_t last_number
    cdef HeldPage _page(self, int64_t ledger_id, int64_t number)
    cdef int hold(self, int64_t ledger_id, int64_t entry_id, int32_t slot) except -1
    cdef int release(self, int64_t ledger_id, int64_t entry_id, int32_t slot) except -1
    cdef ConsumerState find(self, int64_t ledger_id, int64_t entry_id)
    cdef int _settle_batch(self, AckItem *item, AckSet acks, dict redelivery_counts,
                           dict others) except -1

cdef enum PassedOver:
    NOT_PASSED_OVER         # it is asked when its turn comes
    NO_PERMITS              # or it is closed
    AT_LIMIT
    SOCKET_FULL

# Whose turn it is among the consumers of a Shared subscription. Who cannot take entries when asked
# is passed over until that changes, so it is found in a few steps however many there are.
cdef class Rotation:
    cdef list consumers                     # by slot, as they came; None: has left
    cdef int64_t *levels                    # a tree, from 1 on: node n has the best of 2n and 2n+1
    cdef Py_ssize_t width                   # its leaves are from here on, one for each slot
    cdef Py_ssize_t gone                    # slots of those that have left
    cdef Py_ssize_t turn_of                 # the slot that comes first
    cdef Py_ssize_t chosen                  # the slot that next() has found; -1: none
    cdef int64_t at_limit                   # consumers that were passed over for their limit
    cdef dict full                          # connection -> {consumer: None}, passed over for it
    cdef list newly_full                    # those of them that nobody waits for yet
    cdef readonly int64_t asked             # how often a consumer was asked whether it can take any
    cdef Py_ssize_t _find(self, Py_ssize_t start, int64_t level) noexcept
    cdef int _set(self, Py_ssize_t slot, int64_t level) noexcept
    cdef int _rebuild(self) except -1
    cdef int _pass_over(self, ConsumerState consumer, PassedOver why) except -1
    cdef int _ask_again(self, ConsumerState consumer) except -1

# The hot half of a consumer; broker/subscriptions/consumer.py adds the policy.
cdef class ConsumerState:
    cdef readonly Connection connection
    cdef readonly uint64_t consumer_id
    cdef readonly int32_t partition         # index of the topic's partition, -1: none
    cdef int64_t wanted                     # permits: messages still wanted; below 0 after a batch
    cdef public int64_t unacked_messages    # delivered, not acknowledged
    cdef readonly int64_t unacked_max       # delivered before acks must come; 0: no limit
    cdef public bint wants_block            # of broker entry metadata; others do not get it
    cdef public UnackedCount unacked_total  # of its subscription; None: not limited
    cdef public SentCount sent_total        # of its subscription; None: no rate limits it
    cdef Holders holders                    # of its subscription; None: there is no other consumer
    cdef int32_t holder_slot                # the consumer's number there
    cdef Rotation rotation                  # of a Shared subscription, or None
    cdef Py_ssize_t rotation_slot           # the consumer's number there
    cdef PassedOver passed_over             # and why it is not asked, if so
    cdef public int64_t consumer_epoch      # -1: the client knows of none
    cdef public bint closed
    cdef public bint tracks_pending         # False: nothing is redelivered, or all after the mark
    cdef public int32_t priority_level      # of a Shared subscription: 0 comes first
    cdef public KeyShared keys              # of a Key_Shared subscription, or None
    cdef public int32_t slot                # the consumer's number there
    cdef readonly uint64_t msg_out          # counters since the consumer came
    cdef readonly uint64_t bytes_out
    cdef readonly uint64_t chunks_out       # of messages in chunks
    cdef readonly uint64_t redelivered
    cdef readonly double messages_per_entry  # moving average of what was sent to it
    cdef readonly int64_t first_sent_ms     # when it was sent something first, 0: never; wall clock
    cdef readonly int64_t last_sent_ms      # and last
    cdef readonly uint64_t acked
    cdef bint at_limit                      # unacked_max was reached
    cdef uint64_t pinned_in                 # the round in which it got entries of a batch last
    cdef dict pending                       # ledger id -> {entry id: messages | key hash << 32}
    cdef void _mark_sent(self) except *     # something for it is queued on its connection
    cdef bint _can_take(self) noexcept
    cdef int64_t _settle(self, int64_t ledger_id, int64_t entry_id) except -1
    cdef int _settled(self, int64_t held) except -1
    cdef int _less_unacked(self, int64_t messages) except -1
    cdef int _send(self, EntryBatch batch, int i, int32_t messages, bytes ack_set, int32_t hash,
                   uint32_t redelivery_count, bint pin) except -1

# Of those that can take nothing although they have permits, some that can say why.
cdef class Blocked:
    cdef readonly list consumers            # one at a limit, and one of each connection
    cdef bint limited                       # there is one at a limit
    cdef Connection last                    # that a consumer was added for, or was there already
    cdef set connections                    # all of those; None: there are none
    cdef int add(self, ConsumerState consumer) except -1

# What a consumer had delivered when that was taken back, with who is to be told of each entry.
cdef class TakenBack:
    cdef dict pending                       # as the consumer had it
    cdef int64_t ledger_id
    cdef dict entries                       # of this ledger, being put back; or None
    cdef KeyShared keys                     # or None
    cdef int32_t slot                       # the consumer's number there
    cdef Holders holders                    # or None
    cdef int32_t holder_slot                # the consumer's number there

# Fills peek; False for an entry that no client may see: a marker, or one that cannot be decoded.
cdef bint peek_message(EntryBatch batch, int i, MetadataPeek *peek) noexcept
