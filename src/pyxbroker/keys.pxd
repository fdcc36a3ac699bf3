# Key_Shared: key hashes, and which consumer may receive which entries.
#
# A hash has an owner: the consumer that the selector assigns it to (broker/dispatch). It may also
# have a holder: the consumer with unsettled entries of the hash. While holder and owner differ, the
# hash is draining, and no entry of it is sent. This preserves the order within a key while hashes
# move. Entries that cannot be sent when they are read wait here, in order, by hash.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t

from pyxbroker.commands cimport MetadataPeek

cdef enum:
    KEY_HASHES = 65536              # hashes are 1..65535; 0 means none

# Decode size characters to out (3 bytes per 4 characters, and 2 more). Returns the number of bytes,
# or -1 if malformed. Like Java's decoder, this accepts missing padding.
cdef int64_t decode_base64(const uint8_t *data, uint32_t size, uint8_t *out) noexcept nogil
# Murmur3, 32 bits, seed 0, without the sign bit; murmur3(b"hello") is 0x248bfa47.
cdef uint32_t murmur3(const uint8_t *data, uint32_t size) noexcept nogil
# Return the hash of an entry's ordering key, else of its partition key, else of a key unique to the
# entry. hashes is the number of hashes (KEY_HASHES, or one less for a ring, which excludes 0).
cdef int32_t key_hash(const MetadataPeek *peek, uint32_t hashes) noexcept nogil

# A waiting entry. The entries of a hash form an ordered list. A random one of POST_EVERY is also a
# post: posts form a sparse second list that shortens searches, as in a skip list.
cdef struct Waiting:
    int64_t ledger_id
    int64_t entry_id
    uint32_t next                   # 0: the last of its hash (or of the free list)
    uint32_t next_post              # next post; 0: the last post, or not a post

cdef struct KeyState:
    uint32_t first                  # first waiting entry; 0: none
    uint32_t last
    uint32_t first_post             # 0: none
    uint32_t last_post
    uint32_t returned               # entry requeued last; the next search starts there
    int32_t held                    # number of entries sent and not settled
    int32_t holder                  # slot of the consumer with those entries; 0: none
    int32_t queued                  # slot whose ready queue contains the hash; 0: none
    int32_t draining                # holder and owner differed when owners changed last

# Two-level pages of states, 64 hashes per page. A page exists while a hash of it is in use. Most
# subscriptions use few keys, and thousands of subscriptions may use none.
cdef struct KeyGroup:
    KeyState *pages[32]             # NULL where no hash is in use
    uint16_t in_use[32]             # number of hashes in use, by page
    uint16_t pages_in_use

# Ring buffer of the hashes of one owner that have entries to send.
cdef struct ReadyQueue:
    uint16_t *hashes
    uint32_t capacity
    uint32_t first
    uint32_t count

# The state of one Key_Shared subscription. Consumers are identified by slots, counted from 1.
cdef class KeyShared:
    cdef KeyGroup **groups          # by hash; NULL where none is in use
    cdef Waiting *entries           # index 0 is unused
    cdef uint32_t entries_size
    cdef uint32_t entries_used      # number of entries ever allocated from `entries`
    cdef uint32_t free_entry        # head of the free list; 0: empty
    # random state that selects posts, so that no message order can defeat them
    cdef uint32_t random_state
    cdef readonly int64_t comparisons  # entries compared while searching for insert positions
    cdef ReadyQueue *queues         # by slot
    cdef int32_t slots              # length of queues
    cdef uint16_t *range_ends       # ascending last hashes of ranges
    cdef int32_t *range_owners
    cdef int32_t ranges
    cdef readonly bint ordered      # False: order within a key does not matter
    cdef readonly uint32_t hashes   # see key_hash
    cdef readonly int64_t waiting   # number of waiting entries
    cdef readonly int64_t queued    # number of hashes in ready queues
    cdef public bint has_new_ready  # a hash became ready since the caller cleared this
    cdef readonly object drained    # dict: number of hashes that each slot has drained
    cdef readonly int64_t drained_total
    cdef int32_t owner(self, int32_t hash) noexcept
    # Return True if a new entry of a hash may be sent to its owner now.
    cdef bint may_send(self, int32_t hash, int32_t slot) noexcept
    # Return True if the first waiting entry of a hash may be sent to its owner.
    cdef bint may_send_first(self, int32_t hash, int32_t slot) noexcept
    # Record that an entry was sent, or is settled.
    cdef int hold(self, int32_t hash, int32_t slot) except -1
    cdef int release(self, int32_t hash, int32_t slot) except -1
    # Queue an entry after the waiting entries of its hash (wait), or in order among them (requeue).
    cdef int wait(self, int32_t hash, int64_t ledger_id, int64_t entry_id) except -1
    cdef int requeue(self, int32_t hash, int64_t ledger_id, int64_t entry_id) except -1
    # Return True if an entry is the first waiting one of its hash; remove that entry.
    cdef bint is_first(self, int32_t hash, int64_t ledger_id, int64_t entry_id) noexcept
    cdef int remove_first(self, int32_t hash) except -1
    cdef KeyState *_page(self, int32_t page) noexcept
    cdef KeyState *_find(self, int32_t hash) noexcept
    cdef KeyState *_acquire_state(self, int32_t hash) except NULL
    cdef int _free_if_unused(self, int32_t hash, KeyState *state) noexcept
    cdef bint _is_ready(self, KeyState *state, int32_t slot) noexcept
    cdef int _check_ready(self, int32_t hash, KeyState *state) except -1
    cdef int64_t _drop(self, int64_t first_ledger, int64_t first, int64_t last_ledger,
                       int64_t last) except -1
    cdef int _drop_of(self, int32_t hash, KeyState *state, int64_t first_ledger,
                      int64_t first, int64_t last_ledger, int64_t last) except -1
    cdef bint _is_before(self, uint32_t at, const Waiting *entry) noexcept
    cdef uint32_t _post_before(self, KeyState *state, const Waiting *entry) noexcept
    cdef int _maybe_make_post(self, KeyState *state, uint32_t at, bint is_last) noexcept
    cdef uint32_t _new_entry(self, int64_t ledger_id, int64_t entry_id) except 0
    cdef int _push(self, int32_t slot, int32_t hash) except -1
    cdef int32_t _pop(self, int32_t slot) noexcept
    cdef int _free(self) noexcept
