# Key_Shared: hashes of keys, and which message of which key may go to whom.
#
# A hash of keys has an owner: the consumer that the selector gives it to (broker/dispatch). It may
# also have a holder: the consumer that has messages of it which are not settled. While the holder
# is not the owner the hash is draining, and nothing of it is sent; so the order within a key is
# kept while hashes move. What cannot be sent when it is read waits here, in order, by hash.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t

from pyxbroker.commands cimport MetadataPeek

cdef enum:
    KEY_HASHES = 65536              # hashes are 1..65535; 0 stands for none

# Decodes size characters to out (3 bytes for each 4 of them, and 2 more); the bytes, or -1 when
# malformed. As Java's decoder does, it takes what lacks its padding.
cdef int64_t decode_base64(const uint8_t *data, uint32_t size, uint8_t *out) noexcept nogil
# Murmur3, 32 bits, seed 0, without the sign bit; murmur3(b"hello") is 0x248bfa47.
cdef uint32_t murmur3(const uint8_t *data, uint32_t size) noexcept nogil
# The hash of an entry's key: the ordering key, else the partition key, else one that no other entry
# has. hashes: how many there are (KEY_HASHES, or one less for a ring, which leaves out 0).
cdef int32_t key_hash(const MetadataPeek *peek, uint32_t hashes) noexcept nogil

# An entry that waits; entries of one hash are a list in order. About one of POST_EVERY is a post,
# as chance has it: they are a list of their own, by which a place far away is found.
cdef struct Waiting:
    int64_t ledger_id
    int64_t entry_id
    uint32_t next                   # 0: the last of its hash (or of the free ones)
    uint32_t next_post              # of a post; 0: it is the last one, or none

cdef struct KeyState:
    uint32_t first                  # of the entries that wait, 0: none
    uint32_t last
    uint32_t first_post             # 0: none
    uint32_t last_post
    uint32_t returned               # the one that came back last, where the next is looked for
    int32_t held                    # entries sent and not settled
    int32_t holder                  # slot of the consumer that has them, 0: nobody
    int32_t queued                  # slot in whose ready queue it is, 0: in none
    int32_t draining                # whether its holder was not its owner when owners changed last

# Pages of states, of 64 hashes each; there is one as long as a hash of one of its pages is in use.
# Most subscriptions know of few keys, and there may be thousands of those that know of none.
cdef struct KeyGroup:
    KeyState *pages[32]             # NULL where no hash is in use
    uint16_t in_use[32]             # hashes, by page
    uint16_t pages_in_use

# Hashes of one owner that have something to send; a ring.
cdef struct ReadyQueue:
    uint16_t *hashes
    uint32_t capacity
    uint32_t first
    uint32_t count

# The state of one Key_Shared subscription. Consumers are slots, counted from 1.
cdef class KeyShared:
    cdef KeyGroup **groups          # by hash; NULL where none is in use
    cdef Waiting *entries           # index 0 is no entry
    cdef uint32_t entries_size
    cdef uint32_t entries_used      # of them, those that were ever given out
    cdef uint32_t free_entry        # first of those that came back, 0: none
    cdef uint32_t chance            # which entries become posts: no order of them can know it
    cdef readonly int64_t looked_at  # entries, to find the places of those that came back
    cdef ReadyQueue *queues         # by slot
    cdef int32_t slots              # of them
    cdef uint16_t *range_ends       # ascending: the last hash of each range, and its owner
    cdef int32_t *range_owners
    cdef int32_t ranges
    cdef readonly bint ordered      # False: order within a key does not matter to the consumers
    cdef readonly uint32_t hashes   # see key_hash
    cdef readonly int64_t waiting   # entries
    cdef readonly int64_t queued    # hashes in ready queues
    cdef public bint news           # a hash became ready since somebody set this to False
    cdef readonly object drained    # how many hashes each slot has drained, where any; a dict
    cdef readonly int64_t drained_total
    cdef int32_t owner(self, int32_t hash) noexcept
    # Whether a new entry of a hash may go to its owner now, rather than wait.
    cdef bint may_send(self, int32_t hash, int32_t slot) noexcept
    # Whether the first entry that waits of a hash may go to its owner.
    cdef bint may_go_on(self, int32_t hash, int32_t slot) noexcept
    # An entry was sent, or is settled.
    cdef int hold(self, int32_t hash, int32_t slot) except -1
    cdef int release(self, int32_t hash, int32_t slot) except -1
    # An entry waits, behind (wait) or among (wait_again) those of its hash.
    cdef int wait(self, int32_t hash, int64_t ledger_id, int64_t entry_id) except -1
    cdef int wait_again(self, int32_t hash, int64_t ledger_id, int64_t entry_id) except -1
    # Whether an entry is the first that waits of its hash, and what may be done with it.
    cdef bint is_first(self, int32_t hash, int64_t ledger_id, int64_t entry_id) noexcept
    cdef int drop_first(self, int32_t hash) except -1
    cdef KeyState *_page(self, int32_t page) noexcept
    cdef KeyState *_find(self, int32_t hash) noexcept
    cdef KeyState *_use(self, int32_t hash) except NULL
    cdef int _check_unused(self, int32_t hash, KeyState *state) noexcept
    cdef bint _is_ready(self, KeyState *state, int32_t slot) noexcept
    cdef int _check_ready(self, int32_t hash, KeyState *state) except -1
    cdef int64_t _drop(self, int64_t first_ledger, int64_t first, int64_t last_ledger,
                       int64_t last) except -1
    cdef int _drop_of(self, int32_t hash, KeyState *state, int64_t first_ledger,
                      int64_t first, int64_t last_ledger, int64_t last) except -1
    cdef bint _is_before(self, uint32_t at, const Waiting *entry) noexcept
    cdef uint32_t _post_before(self, KeyState *state, const Waiting *entry) noexcept
    cdef int _try_post(self, KeyState *state, uint32_t at, bint is_last) noexcept
    cdef uint32_t _new_entry(self, int64_t ledger_id, int64_t entry_id) except 0
    cdef int _push(self, int32_t slot, int32_t hash) except -1
    cdef int32_t _pop(self, int32_t slot) noexcept
    cdef int _free(self) noexcept
