"""Key_Shared: key hashes, and which consumer may receive which entries; see keys.pxd."""
from libc.stdint cimport uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy, memset

from pyxbroker.turn_watch cimport turn_now_ns

cdef enum:
    STATES_PER_PAGE = 64
    PAGES = KEY_HASHES // STATES_PER_PAGE
    PAGES_PER_GROUP = 32
    GROUPS = PAGES // PAGES_PER_GROUP
    KEY_BYTES = 1024                # decoded keys up to this size use the stack
    POST_EVERY = 64                 # average number of entries per post
    NEAR_STEPS = 8                  # steps of a search before it uses the posts
    # bytes of a producer name that are hashed for messages without a key
    PRODUCER_NAME_BYTES = 512


cdef inline uint32_t _rotate(uint32_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (32 - bits))


cdef uint32_t murmur3(const uint8_t *data, uint32_t size) noexcept nogil:
    cdef uint32_t hash = 0
    cdef uint32_t block
    cdef uint32_t i = 0
    while size - i >= 4:
        memcpy(&block, data + i, 4)
        hash ^= _rotate(block * <uint32_t>0xcc9e2d51, 15) * <uint32_t>0x1b873593
        hash = _rotate(hash, 13) * 5 + <uint32_t>0xe6546b64
        i += 4
    if i < size:
        block = data[i]
        if size - i > 1:
            block |= <uint32_t>data[i + 1] << 8
        if size - i > 2:
            block |= <uint32_t>data[i + 2] << 16
        hash ^= _rotate(block * <uint32_t>0xcc9e2d51, 15) * <uint32_t>0x1b873593
    hash ^= size
    hash = (hash ^ (hash >> 16)) * <uint32_t>0x85ebca6b
    hash = (hash ^ (hash >> 13)) * <uint32_t>0xc2b2ae35
    return (hash ^ (hash >> 16)) & 0x7fffffff


cdef inline int _base64_digit(uint8_t char) noexcept nogil:
    if 65 <= char <= 90:
        return char - 65
    if 97 <= char <= 122:
        return char - 71
    if 48 <= char <= 57:
        return char + 4
    if char == 43:
        return 62
    return 63 if char == 47 else -1


cdef int64_t decode_base64(const uint8_t *data, uint32_t size, uint8_t *out) noexcept nogil:
    cdef uint32_t bits = 0
    cdef uint32_t n = 0
    cdef uint32_t i
    cdef int digit
    cdef int64_t written = 0
    if size and size % 4 == 0 and data[size - 1] == 61:
        size -= 2 if data[size - 2] == 61 else 1
    for i in range(size):
        digit = _base64_digit(data[i])
        if digit < 0:
            return -1
        bits = (bits << 6) | <uint32_t>digit
        n += 6
        if n >= 8:
            n -= 8
            out[written] = <uint8_t>(bits >> n)
            written += 1
    return -1 if n == 6 else written


cdef uint32_t _hash_of_base64(const uint8_t *data, uint32_t size) noexcept nogil:
    cdef uint8_t small[KEY_BYTES]
    cdef uint8_t *decoded = small
    cdef int64_t n = -1
    cdef uint32_t hash
    if size > KEY_BYTES:
        decoded = <uint8_t *>malloc(size)
    if decoded != NULL:
        n = decode_base64(data, size, decoded)
    # Pulsar's constant for an entry whose key cannot be decoded.
    hash = murmur3(decoded, <uint32_t>n) if n >= 0 else murmur3(b"NONE_KEY", 8)
    if decoded != small:
        free(decoded)
    return hash


cdef uint32_t _hash_of_no_key(const MetadataPeek *peek) noexcept nogil:
    cdef char name[PRODUCER_NAME_BYTES + 24]
    cdef uint32_t size = min(peek.producer_name_size, <uint32_t>PRODUCER_NAME_BYTES)
    memcpy(name, peek.producer_name, size)
    size += <uint32_t>snprintf(name + size, 24, "-%lld", <long long>peek.sequence_id)
    return murmur3(<uint8_t *>name, size)


cdef int32_t key_hash(const MetadataPeek *peek, uint32_t hashes) noexcept nogil:
    cdef uint32_t hash
    if peek.ordering_key != NULL:
        hash = murmur3(peek.ordering_key, peek.ordering_key_size)
    elif peek.partition_key == NULL:
        hash = _hash_of_no_key(peek)
    elif peek.partition_key_b64:
        hash = _hash_of_base64(peek.partition_key, peek.partition_key_size)
    else:
        hash = murmur3(peek.partition_key, peek.partition_key_size)
    hash = hash % hashes + (KEY_HASHES - hashes)
    return <int32_t>hash if hash else 1


cdef int _compare(const void *a, const void *b) noexcept nogil:
    cdef const Waiting *x = <const Waiting *>a
    cdef const Waiting *y = <const Waiting *>b
    if x.ledger_id != y.ledger_id:
        return -1 if x.ledger_id < y.ledger_id else 1
    return (x.entry_id > y.entry_id) - (x.entry_id < y.entry_id)


cdef inline bint _is_past(int64_t ledger_id, int64_t entry_id, int64_t other_ledger_id,
                          int64_t other_entry_id) noexcept nogil:
    return ledger_id > other_ledger_id or (ledger_id == other_ledger_id
                                           and entry_id > other_entry_id)


cdef class KeyShared:
    """The assignment of keys to consumers, and the order of each key; see keys.pxd."""

    def __cinit__(self, bint ordered, uint32_t hashes=KEY_HASHES):
        if not KEY_HASHES - 1 <= hashes <= KEY_HASHES:
            raise ValueError("the number of hashes is %d or %d, not %d"
                             % (KEY_HASHES - 1, KEY_HASHES, hashes))
        self.random_state = <uint32_t>turn_now_ns() | 1
        self.ordered = ordered
        self.hashes = hashes
        self.drained = {}
        self.groups = <KeyGroup **>calloc(GROUPS, sizeof(void *))
        if self.groups == NULL:
            raise MemoryError("no memory for a Key_Shared subscription")

    def __dealloc__(self):
        self._free()
        free(self.groups)
        free(self.range_ends)
        free(self.range_owners)

    cdef int _free(self) noexcept:
        cdef int i, j
        if self.groups == NULL:
            return 0  # the allocation in __cinit__ failed
        for i in range(GROUPS):
            if self.groups[i] == NULL:
                continue
            for j in range(PAGES_PER_GROUP):
                free(self.groups[i].pages[j])
            free(self.groups[i])
            self.groups[i] = NULL
        for i in range(self.slots):
            free(self.queues[i].hashes)
        free(self.queues)
        free(self.entries)
        self.queues = NULL
        self.entries = NULL
        return 0

    def clear(self):
        """Clear everything except the owners of hashes."""
        self._free()
        self.slots = 0
        self.entries_size = self.entries_used = self.free_entry = 0
        self.waiting = self.queued = 0
        self.has_new_ready = False

    # --- owners -------------------------------------------------------------------------------

    def set_owners(self, const uint16_t[::1] last_hashes not None,
                   const int32_t[::1] slots not None):
        """Set the owners of hashes: the last hash of each range ("H"), ascending, and the slot
        ("i") of its owner; 0 is none.
        """
        cdef int32_t count = <int32_t>last_hashes.shape[0]
        cdef int32_t i
        cdef uint16_t *ends
        cdef int32_t *owners
        if slots.shape[0] != count:
            raise ValueError("%d ranges need as many owners, not %d" % (count, slots.shape[0]))
        ends = <uint16_t *>malloc(max(count, 1) * sizeof(uint16_t))
        owners = <int32_t *>malloc(max(count, 1) * sizeof(int32_t))
        if ends == NULL or owners == NULL:
            free(ends)
            free(owners)
            raise MemoryError("no memory for %d ranges of hashes" % count)
        for i in range(count):
            ends[i] = last_hashes[i]
            owners[i] = slots[i]
        free(self.range_ends)
        free(self.range_owners)
        self.range_ends = ends
        self.range_owners = owners
        self.ranges = count
        self._rebuild_queues()

    def _rebuild_queues(self):
        """Rebuild the ready queues for the present owners."""
        cdef int32_t page, i
        cdef KeyState *states
        cdef KeyState *state
        cdef bint was_queued
        for i in range(self.slots):
            self.queues[i].count = 0
        self.queued = 0
        for page in range(PAGES):
            states = self._page(page)
            if states == NULL:
                continue
            for i in range(STATES_PER_PAGE):
                state = &states[i]
                state.draining = (
                    state.held and self.owner(page * STATES_PER_PAGE + i) != state.holder
                )
                was_queued = state.queued != 0
                state.queued = 0
                if state.first:
                    self._check_ready(page * STATES_PER_PAGE + i, state)
                elif was_queued:
                    self._free_if_unused(page * STATES_PER_PAGE + i, state)
                    if self._page(page) == NULL:
                        break

    def draining(self):
        """Return the hashes whose holder is not their owner: (slot of the holder, hash, number of
        its unsettled entries, number of waiting entries).
        """
        cdef int32_t page, i
        cdef uint32_t at
        cdef KeyState *states
        cdef KeyState *state
        found = []
        for page in range(PAGES):
            states = self._page(page)
            if states == NULL:
                continue
            for i in range(STATES_PER_PAGE):
                state = &states[i]
                if not state.draining:
                    continue
                waiting = 0
                at = state.first
                while at:
                    waiting += 1
                    at = self.entries[at].next
                found.append((state.holder, page * STATES_PER_PAGE + i, state.held, waiting))
        return found

    def ownerless(self):
        """Return the number of waiting entries whose hash has no owner."""
        cdef int32_t page, i
        cdef uint32_t at
        cdef KeyState *states
        cdef int64_t found = 0
        for page in range(PAGES):
            states = self._page(page)
            if states == NULL:
                continue
            for i in range(STATES_PER_PAGE):
                at = states[i].first
                if at and self.owner(page * STATES_PER_PAGE + i) == 0:
                    while at:
                        found += 1
                        at = self.entries[at].next
        return found

    def reset_drained(self, int32_t slot):
        """Reset the drained count of a slot that is assigned to another consumer."""
        self.drained.pop(slot, None)

    cdef int32_t owner(self, int32_t hash) noexcept:
        cdef int32_t low = 0
        cdef int32_t high = self.ranges
        cdef int32_t middle
        while low < high:
            middle = (low + high) // 2
            if self.range_ends[middle] < hash:
                low = middle + 1
            else:
                high = middle
        return self.range_owners[low] if low < self.ranges else 0

    # --- states of hashes ---------------------------------------------------------------------

    cdef KeyState *_page(self, int32_t page) noexcept:
        cdef KeyGroup *group = self.groups[page // PAGES_PER_GROUP]
        return NULL if group == NULL else group.pages[page % PAGES_PER_GROUP]

    cdef KeyState *_find(self, int32_t hash) noexcept:
        cdef KeyState *page = self._page(hash // STATES_PER_PAGE)
        return NULL if page == NULL else &page[hash % STATES_PER_PAGE]

    cdef KeyState *_acquire_state(self, int32_t hash) except NULL:
        cdef int32_t at = hash // STATES_PER_PAGE % PAGES_PER_GROUP
        cdef KeyGroup **place = &self.groups[hash // STATES_PER_PAGE // PAGES_PER_GROUP]
        cdef KeyGroup *group
        cdef KeyState *state
        if place[0] == NULL:
            place[0] = <KeyGroup *>calloc(1, sizeof(KeyGroup))
        group = place[0]
        if group != NULL and group.pages[at] == NULL:
            group.pages[at] = <KeyState *>calloc(STATES_PER_PAGE, sizeof(KeyState))
        if group == NULL or group.pages[at] == NULL:
            raise MemoryError("no memory for the keys of a subscription")
        state = &group.pages[at][hash % STATES_PER_PAGE]
        if not (state.held or state.first or state.queued):
            if group.in_use[at] == 0:
                group.pages_in_use += 1
            group.in_use[at] += 1
        return state

    cdef int _free_if_unused(self, int32_t hash, KeyState *state) noexcept:
        cdef int32_t at = hash // STATES_PER_PAGE % PAGES_PER_GROUP
        cdef KeyGroup **place = &self.groups[hash // STATES_PER_PAGE // PAGES_PER_GROUP]
        cdef KeyGroup *group = place[0]
        if state.held or state.first or state.queued:
            return 0
        group.in_use[at] -= 1
        if group.in_use[at] == 0:
            free(group.pages[at])
            group.pages[at] = NULL
            group.pages_in_use -= 1
            if group.pages_in_use == 0:
                free(group)
                place[0] = NULL
        return 0

    cdef bint _is_ready(self, KeyState *state, int32_t slot) noexcept:
        return not self.ordered or state.held == 0 or state.holder == slot

    cdef bint may_send(self, int32_t hash, int32_t slot) noexcept:
        cdef KeyState *state
        if not self.ordered:
            return True
        state = self._find(hash)
        return state == NULL or (state.first == 0 and self._is_ready(state, slot))

    cdef bint may_send_first(self, int32_t hash, int32_t slot) noexcept:
        return self._is_ready(self._find(hash), slot)

    cdef int hold(self, int32_t hash, int32_t slot) except -1:
        cdef KeyState *state
        if self.ordered:
            state = self._acquire_state(hash)
            state.held += 1
            state.holder = slot
        return 0

    cdef int release(self, int32_t hash, int32_t slot) except -1:
        cdef KeyState *state
        if not self.ordered:
            return 0
        state = self._find(hash)
        if state == NULL or state.held == 0 or state.holder != slot:
            raise AssertionError("slot %d does not hold hash %d" % (slot, hash))
        state.held -= 1
        if state.held == 0:
            state.holder = 0
            if state.draining:
                state.draining = 0
                self.drained[slot] = self.drained.get(slot, 0) + 1
                self.drained_total += 1
            if state.first:
                self._check_ready(hash, state)
            self._free_if_unused(hash, state)
        return 0

    # --- waiting entries ----------------------------------------------------------------------

    cdef uint32_t _new_entry(self, int64_t ledger_id, int64_t entry_id) except 0:
        cdef uint32_t at = self.free_entry
        cdef uint32_t grown
        cdef void *moved
        if at:
            self.free_entry = self.entries[at].next
        else:
            if self.entries_used + 1 >= self.entries_size:
                grown = self.entries_size * 2 if self.entries_size else 64
                moved = realloc(self.entries, grown * sizeof(Waiting))
                if moved == NULL:
                    raise MemoryError("no memory for entries that wait for their consumer")
                self.entries = <Waiting *>moved
                self.entries_size = grown
            self.entries_used += 1
            at = self.entries_used
        self.entries[at].ledger_id = ledger_id
        self.entries[at].entry_id = entry_id
        self.entries[at].next = 0
        self.entries[at].next_post = 0
        self.waiting += 1
        return at

    cdef bint _is_before(self, uint32_t at, const Waiting *entry) noexcept:
        self.comparisons += 1
        return _compare(&self.entries[at], entry) < 0

    cdef uint32_t _post_before(self, KeyState *state, const Waiting *entry) noexcept:
        """Return the last post before an entry; 0 if none exists."""
        cdef uint32_t post = 0
        cdef uint32_t following = state.first_post
        while following and self._is_before(following, entry):
            post = following
            following = self.entries[post].next_post
        return post

    cdef int _maybe_make_post(self, KeyState *state, uint32_t at, bint is_last) noexcept:
        """Make an inserted entry a post at random; is_last: it is the last entry of its list."""
        cdef Waiting *entry = &self.entries[at]
        cdef uint32_t before = state.last_post
        self.random_state ^= self.random_state << 13
        self.random_state ^= self.random_state >> 17
        self.random_state ^= self.random_state << 5
        if self.random_state % POST_EVERY:
            return 0
        if not is_last:
            before = self._post_before(state, entry)
        if before:
            entry.next_post = self.entries[before].next_post
            self.entries[before].next_post = at
        else:
            entry.next_post = state.first_post
            state.first_post = at
        if entry.next_post == 0:
            state.last_post = at
        return 0

    cdef int wait(self, int32_t hash, int64_t ledger_id, int64_t entry_id) except -1:
        cdef KeyState *state = self._find(hash)
        cdef uint32_t at
        if (state != NULL and state.first
                and _is_past(self.entries[state.last].ledger_id,
                             self.entries[state.last].entry_id, ledger_id, entry_id)):
            # Out of order: insert it at its position.
            return self.requeue(hash, ledger_id, entry_id)
        at = self._new_entry(ledger_id, entry_id)
        state = self._acquire_state(hash)
        if state.first:
            self.entries[state.last].next = at
            state.last = at
            self._maybe_make_post(state, at, True)
            return 0
        state.first = state.last = at
        state.returned = 0
        self._maybe_make_post(state, at, True)
        return self._check_ready(hash, state)

    cdef int requeue(self, int32_t hash, int64_t ledger_id, int64_t entry_id) except -1:
        cdef uint32_t at = self._new_entry(ledger_id, entry_id)
        cdef Waiting *new = &self.entries[at]
        cdef KeyState *state = self._acquire_state(hash)
        cdef uint32_t before = 0
        cdef uint32_t after = state.first
        cdef uint32_t post
        cdef int steps = 0
        # Entries are mostly requeued in ascending or descending runs, so the search is short.
        if state.returned and self._is_before(state.returned, new):
            before = state.returned
            after = self.entries[before].next
        while after and self._is_before(after, new):
            before = after
            steps += 1
            if steps == NEAR_STEPS:
                post = self._post_before(state, new)
                if post and self._is_before(before, &self.entries[post]):
                    before = post
            after = self.entries[before].next
        new.next = after
        state.returned = at
        if after == 0:
            state.last = at
        self._maybe_make_post(state, at, after == 0)
        if before:
            self.entries[before].next = at
            return 0
        state.first = at
        return self._check_ready(hash, state)

    cdef bint is_first(self, int32_t hash, int64_t ledger_id, int64_t entry_id) noexcept:
        cdef KeyState *state = self._find(hash)
        if state == NULL or state.first == 0:
            return False
        return (self.entries[state.first].entry_id == entry_id
                and self.entries[state.first].ledger_id == ledger_id)

    cdef int remove_first(self, int32_t hash) except -1:
        cdef KeyState *state = self._find(hash)
        cdef uint32_t at = state.first
        if state.returned == at:
            state.returned = 0
        if state.first_post == at:
            state.first_post = self.entries[at].next_post
            if state.first_post == 0:
                state.last_post = 0
        state.first = self.entries[at].next
        self.entries[at].next = self.free_entry
        self.free_entry = at
        self.waiting -= 1
        if state.first == 0:
            state.last = 0
            self._free_if_unused(hash, state)
        return 0

    def drop(self, int64_t ledger_id, int64_t first, int64_t last):
        """Remove waiting entries first..last of a ledger that were deleted; return their number.

        Scans all waiting entries.
        """
        return self._drop(ledger_id, first, ledger_id, last)

    def drop_up_to(self, int64_t ledger_id, int64_t entry_id):
        """Remove all waiting entries up to a position; return their number."""
        return self._drop(-1, 0, ledger_id, entry_id)

    cdef int64_t _drop(self, int64_t first_ledger, int64_t first, int64_t last_ledger,
                       int64_t last) except -1:
        cdef int32_t page, i
        cdef int64_t before = self.waiting
        cdef KeyState *states
        cdef KeyState *state
        for page in range(PAGES):
            for i in range(STATES_PER_PAGE):
                states = self._page(page)
                if states == NULL:
                    break
                state = &states[i]
                if state.first:
                    self._drop_of(page * STATES_PER_PAGE + i, state, first_ledger, first,
                                  last_ledger, last)
        return before - self.waiting

    cdef int _drop_of(self, int32_t hash, KeyState *state, int64_t first_ledger,
                      int64_t first, int64_t last_ledger, int64_t last) except -1:
        cdef uint32_t kept = 0
        cdef uint32_t at = state.first
        cdef uint32_t following
        cdef Waiting *entry
        state.first = state.last = state.returned = 0
        state.first_post = state.last_post = 0
        while at:
            entry = &self.entries[at]
            following = entry.next
            if (not _is_past(first_ledger, first, entry.ledger_id, entry.entry_id)
                    and not _is_past(entry.ledger_id, entry.entry_id, last_ledger, last)):
                self.entries[at].next = self.free_entry
                self.free_entry = at
                self.waiting -= 1
            else:
                self.entries[at].next = 0
                self.entries[at].next_post = 0
                self._maybe_make_post(state, at, True)
                if kept:
                    self.entries[kept].next = at
                else:
                    state.first = at
                kept = at
            at = following
        state.last = kept
        if kept == 0:
            self._free_if_unused(hash, state)
        return 0

    # --- ready queues -------------------------------------------------------------------------

    cdef int _check_ready(self, int32_t hash, KeyState *state) except -1:
        cdef int32_t slot = self.owner(hash)
        if slot == 0 or state.queued or not self._is_ready(state, slot):
            return 0
        self._push(slot, hash)
        state.queued = slot
        self.has_new_ready = True
        return 0

    cdef int _push(self, int32_t slot, int32_t hash) except -1:
        cdef ReadyQueue *queue
        cdef void *moved
        cdef uint16_t *hashes
        cdef uint32_t i
        if slot >= self.slots:
            moved = realloc(self.queues, (slot + 1) * sizeof(ReadyQueue))
            if moved == NULL:
                raise MemoryError("no memory for the consumers of a subscription")
            self.queues = <ReadyQueue *>moved
            memset(&self.queues[self.slots], 0, (slot + 1 - self.slots) * sizeof(ReadyQueue))
            self.slots = slot + 1
        queue = &self.queues[slot]
        if queue.count == queue.capacity:
            hashes = <uint16_t *>malloc(max(queue.capacity * 2, 16) * sizeof(uint16_t))
            if hashes == NULL:
                raise MemoryError("no memory for the keys of a consumer")
            for i in range(queue.count):
                hashes[i] = queue.hashes[(queue.first + i) % queue.capacity]
            free(queue.hashes)
            queue.hashes = hashes
            queue.capacity = max(queue.capacity * 2, 16)
            queue.first = 0
        queue.hashes[(queue.first + queue.count) % queue.capacity] = <uint16_t>hash
        queue.count += 1
        self.queued += 1
        return 0

    cdef int32_t _pop(self, int32_t slot) noexcept:
        cdef ReadyQueue *queue = &self.queues[slot]
        cdef int32_t hash = queue.hashes[queue.first]
        queue.first = (queue.first + 1) % queue.capacity
        queue.count -= 1
        self.queued -= 1
        return hash

    def has_ready(self, int32_t slot):
        """Return True if an entry waits that may be sent to a consumer now."""
        cdef KeyState *state
        cdef int32_t hash
        while slot < self.slots and self.queues[slot].count:
            hash = self.queues[slot].hashes[self.queues[slot].first]
            state = self._find(hash)
            if state.first:
                return True
            self._pop(slot)
            state.queued = 0
            self._free_if_unused(hash, state)
        return False

    def plan(self, int32_t slot, int64_t count_max, int64_t gap_max):
        """Return the entries to read for a consumer: [(ledger_id, first, last)], ascending.

        The ranges contain up to count_max entries that may be sent to it, and gaps of at most
        gap_max other entries. Hashes are served round-robin over successive calls.
        """
        cdef uint32_t turns = self.queues[slot].count if slot < self.slots else 0
        cdef int64_t n = 0
        cdef uint32_t at
        cdef int32_t hash
        cdef KeyState *state
        cdef Waiting *planned
        if turns == 0 or count_max <= 0:
            return []
        # With no waiting entry, one iteration still removes unused hashes from the queue.
        count_max = min(count_max, max(<int64_t>self.waiting, <int64_t>1))
        planned = <Waiting *>malloc(<size_t>count_max * sizeof(Waiting))
        if planned == NULL:
            raise MemoryError("no memory for a plan of %d entries" % count_max)
        try:
            while turns and n < count_max:
                turns -= 1
                hash = self._pop(slot)
                state = self._find(hash)
                at = state.first
                if at == 0:
                    state.queued = 0
                    self._free_if_unused(hash, state)
                    continue
                self._push(slot, hash)
                while at and n < count_max:
                    planned[n] = self.entries[at]
                    n += 1
                    at = self.entries[at].next
            qsort(planned, n, sizeof(Waiting), _compare)
            return _stretches(planned, n, gap_max)
        finally:
            free(planned)

    # Most methods below are for tests; pending consumers use put_back.

    def owner_of(self, int32_t hash):
        """Return the slot that owns a hash; 0: none."""
        return self.owner(hash)

    def may_be_sent(self, int32_t hash, int32_t slot):
        """Return True if a new entry of a hash may be sent to its owner now."""
        return self.may_send(hash, slot)

    def sent(self, int32_t hash, int32_t slot):
        """Record that an entry was sent to a consumer."""
        self.hold(hash, slot)

    def settled(self, int32_t hash, int32_t slot):
        """Record that an entry was acknowledged or revoked."""
        self.release(hash, slot)

    def put(self, int32_t hash, int64_t ledger_id, int64_t entry_id):
        """Queue a new entry after the waiting entries of its hash."""
        self.wait(hash, ledger_id, entry_id)

    def put_back(self, int32_t hash, int64_t ledger_id, int64_t entry_id):
        """Queue an entry that was sent, in order among the waiting entries of its hash."""
        self.requeue(hash, ledger_id, entry_id)

    def take(self, int32_t hash, int64_t ledger_id, int64_t entry_id):
        """Remove an entry if it is the first waiting one of its hash; return True if it was."""
        if not self.is_first(hash, ledger_id, entry_id):
            return False
        self.remove_first(hash)
        return True

    def holder_of(self, int32_t hash):
        """Return (slot, number of unsettled entries) of the holder of a hash."""
        cdef KeyState *state = self._find(hash)
        if state == NULL:
            return 0, 0
        return state.holder, state.held

    @property
    def states_in_use(self):
        """Number of hashes with any state."""
        cdef int i, j
        cdef int64_t n = 0
        for i in range(GROUPS):
            if self.groups[i] != NULL:
                for j in range(PAGES_PER_GROUP):
                    n += self.groups[i].in_use[j]
        return n

    @property
    def bytes_held(self):
        """Memory of the hash states in bytes, without waiting entries."""
        cdef int i, j
        cdef int64_t size = GROUPS * sizeof(void *)
        for i in range(GROUPS):
            if self.groups[i] != NULL:
                size += sizeof(KeyGroup)
                for j in range(PAGES_PER_GROUP):
                    if self.groups[i].pages[j] != NULL:
                        size += STATES_PER_PAGE * sizeof(KeyState)
        return size


cdef list _stretches(const Waiting *planned, int64_t count, int64_t gap_max):
    cdef list found = []
    cdef int64_t i
    cdef int64_t first = 0
    for i in range(1, count + 1):
        if (i < count and planned[i].ledger_id == planned[i - 1].ledger_id
                and planned[i].entry_id - planned[i - 1].entry_id - 1 <= gap_max):
            continue
        found.append((planned[first].ledger_id, planned[first].entry_id, planned[i - 1].entry_id))
        first = i
    return found


def murmur3_of(const uint8_t[::1] data not None):
    """Return the Murmur3 hash of bytes, 32 bits, seed 0, without the sign bit."""
    return murmur3(&data[0] if data.shape[0] else <const uint8_t *>b"", <uint32_t>data.shape[0])


def key_hash_of(producer_name, uint64_t sequence_id, ordering_key=None, partition_key=None,
                bint is_base64=False, uint32_t hashes=KEY_HASHES):
    """Return the key hash of an entry from the fields of its metadata; None for missing fields."""
    cdef MetadataPeek peek
    cdef bytes name = producer_name
    cdef bytes ordering = ordering_key
    cdef bytes partition = partition_key
    memset(&peek, 0, sizeof(peek))
    peek.sequence_id = sequence_id
    peek.producer_name = name
    peek.producer_name_size = <uint32_t>len(name)
    if ordering is not None:
        peek.ordering_key = ordering
        peek.ordering_key_size = <uint32_t>len(ordering)
    if partition is not None:
        peek.partition_key = partition
        peek.partition_key_size = <uint32_t>len(partition)
        peek.partition_key_b64 = is_base64
    return key_hash(&peek, hashes)
