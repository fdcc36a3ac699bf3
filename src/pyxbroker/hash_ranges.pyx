"""Hash ranges of STICKY Key_Shared consumers; see hash_ranges.pxd."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

from array import array

from pyxbroker.integers cimport get_varint

cdef enum:
    HASH_LAST = 65535               # the highest hash
    MODE_FIELD = 1                  # KeySharedMeta.keySharedMode
    RANGES_FIELD = 3                # KeySharedMeta.hashRanges
    OUT_OF_ORDER_FIELD = 4          # KeySharedMeta.allowOutOfOrderDelivery
    WIRE_VARINT = 0
    WIRE_FIXED64 = 1
    WIRE_BYTES = 2
    WIRE_FIXED32 = 5
    ORDER_BITS = 64
    DIGIT_BITS = 8
    DIGIT_VALUES = 1 << DIGIT_BITS


cdef inline uint64_t _order(const HashRange *range) noexcept nogil:
    # Flip the sign bits, so that negative numbers sort first.
    return (<uint64_t>(<uint32_t>range.first ^ 0x80000000u) << 32) | (
        <uint32_t>range.last ^ 0x80000000u)


cdef HashRange *_sort(HashRange *from_, HashRange *to, int32_t count) noexcept nogil:
    """Radix sort, least significant byte first. `to` has the same capacity; return the array that
    holds the result.
    """
    cdef uint32_t places[DIGIT_VALUES]
    cdef uint64_t differing = 0
    cdef uint32_t place, found
    cdef int32_t i
    cdef int shift = -DIGIT_BITS
    cdef int value
    for i in range(1, count):
        differing |= _order(&from_[i]) ^ _order(&from_[0])
    while shift < ORDER_BITS - DIGIT_BITS:
        shift += DIGIT_BITS
        if differing >> shift & (DIGIT_VALUES - 1) == 0:
            continue
        memset(places, 0, sizeof(places))
        for i in range(count):
            places[_order(&from_[i]) >> shift & (DIGIT_VALUES - 1)] += 1
        place = 0
        for value in range(DIGIT_VALUES):
            found = places[value]
            places[value] = place
            place += found
        for i in range(count):
            value = <int>(_order(&from_[i]) >> shift & (DIGIT_VALUES - 1))
            to[places[value]] = from_[i]
            places[value] += 1
        from_, to = to, from_
    return from_


cdef class HashRanges:
    """The hash ranges that one consumer requests."""

    def __dealloc__(self):
        free(self.items)

    @staticmethod
    def of(ranges):
        """Create from (first, last) pairs."""
        cdef HashRanges made = HashRanges()
        for first, last in ranges:
            made._append(first, last)
        made._finish()
        return made

    @staticmethod
    def of_message(bytes message not None, int32_t ranges_max):
        """Parse a serialized KeySharedMeta to (mode, ranges, allowOutOfOrderDelivery).

        More than ranges_max ranges are returned unsorted. Raise ValueError for malformed bytes.
        """
        cdef HashRanges made = HashRanges()
        cdef uint64_t mode = 0
        cdef bint out_of_order = False
        cdef const uint8_t *data = message
        cdef uint32_t size = <uint32_t>len(message)
        cdef uint32_t at = 0
        cdef uint32_t end
        cdef uint64_t key, value
        cdef uint64_t bounds[3]
        while at < size:
            if get_varint(data, size, &at, &key) != 0 or key >> 3 == 0:
                raise ValueError("malformed KeySharedMeta")
            if key & 7 == WIRE_FIXED64 or key & 7 == WIRE_FIXED32:
                value = 8 if key & 7 == WIRE_FIXED64 else 4
            elif (key & 7 != WIRE_VARINT and key & 7 != WIRE_BYTES
                    or get_varint(data, size, &at, &value) != 0):
                raise ValueError("malformed KeySharedMeta")
            if key & 7 == WIRE_VARINT:
                if key >> 3 == MODE_FIELD:
                    mode = value
                elif key >> 3 == OUT_OF_ORDER_FIELD:
                    out_of_order = value != 0
                continue
            if value > size - at:
                raise ValueError("malformed KeySharedMeta")
            end = at + <uint32_t>value
            if key >> 3 != RANGES_FIELD or key & 7 != WIRE_BYTES:
                at = end
                continue
            bounds[1] = bounds[2] = 0
            while at < end:
                if (get_varint(data, end, &at, &key) != 0
                        or get_varint(data, end, &at, &value) != 0):
                    raise ValueError("malformed IntRange")
                if key == 1 << 3 or key == 2 << 3:
                    bounds[key >> 3] = value
            made._append(<int32_t>bounds[1], <int32_t>bounds[2])
        if made.count <= ranges_max:
            made._finish()
        return mode, made, out_of_order

    cdef int _append(self, int32_t first, int32_t last) except -1:
        cdef int32_t grown
        cdef void *moved
        if self.count == self.capacity:
            grown = max(self.capacity * 2, 4)
            moved = realloc(self.items, <size_t>grown * sizeof(HashRange))
            if moved == NULL:
                raise MemoryError("no memory for ranges of hashes")
            self.items = <HashRange *>moved
            self.capacity = grown
        self.items[self.count].first = first
        self.items[self.count].last = last
        self.count += 1
        if last < first and self.backward is None:
            self.backward = (first, last)
        return 0

    cdef int _finish(self) except -1:
        """Sort all ranges, detect overlaps, and release excess capacity."""
        cdef int32_t i
        cdef void *moved
        if self.count == 0:
            return 0
        moved = realloc(self.items, <size_t>self.count * sizeof(HashRange))
        if moved != NULL:
            self.items = <HashRange *>moved
            self.capacity = self.count
        for i in range(1, self.count):
            if _order(&self.items[i - 1]) > _order(&self.items[i]):
                self._sort()
                break
        for i in range(1, self.count):
            if self.items[i].first <= self.items[i - 1].last:
                self.overlap = (self[i - 1], self[i])
                break
        return 0

    cdef int _sort(self) except -1:
        """Sort in linear time, independent of the present order."""
        cdef HashRange *other = <HashRange *>malloc(<size_t>self.count * sizeof(HashRange))
        if other == NULL:
            raise MemoryError("no memory for ranges of hashes")
        if _sort(self.items, other, self.count) != self.items:
            self.items, other = other, self.items
        free(other)
        return 0

    def __len__(self):
        return self.count

    def __getitem__(self, int32_t i):
        if not 0 <= i < self.count:
            raise IndexError(i)
        return self.items[i].first, self.items[i].last


cdef class HeldRanges:
    """The ranges of all consumers of a subscription. Consumers are identified by slots from 1."""

    def __dealloc__(self):
        free(self.items)

    def conflict(self, HashRanges asked not None):
        """Return the slot of a consumer whose ranges overlap the requested ones; 0 if there is
        none.
        """
        cdef int32_t i
        cdef int32_t at = 0
        for i in range(asked.count):
            while at < self.count and self.items[at].last < asked.items[i].first:
                at += 1
            if at == self.count:
                break
            if self.items[at].first <= asked.items[i].last:
                return self.items[at].slot
        return 0

    def add(self, int32_t slot, HashRanges ranges not None):
        """Add the ranges of a consumer. They do not overlap existing ones."""
        cdef int32_t total = self.count + ranges.count
        cdef int32_t mine = 0
        cdef int32_t i = 0
        cdef int32_t at
        cdef HeldRange *merged = <HeldRange *>malloc(<size_t>max(total, 1) * sizeof(HeldRange))
        if merged == NULL:
            raise MemoryError("no memory for ranges of hashes")
        for at in range(total):
            if mine == self.count or (
                    i < ranges.count and ranges.items[i].first < self.items[mine].first):
                merged[at].first = ranges.items[i].first
                merged[at].last = ranges.items[i].last
                merged[at].slot = slot
                i += 1
            else:
                merged[at] = self.items[mine]
                mine += 1
        free(self.items)
        self.items = merged
        self.count = total

    def remove(self, int32_t slot):
        """Remove the ranges of a consumer."""
        cdef int32_t kept = 0
        cdef int32_t i
        cdef void *moved
        for i in range(self.count):
            if self.items[i].slot != slot:
                self.items[kept] = self.items[i]
                kept += 1
        self.count = kept
        moved = realloc(self.items, <size_t>max(kept, 1) * sizeof(HeldRange))
        if moved != NULL:
            self.items = <HeldRange *>moved

    def owners(self):
        """Return the ascending last hashes of ranges ("H") and the slots of their owners ("i"); 0:
        none.
        """
        ends = array("H", bytes(4 * (self.count + 1)))
        slots = array("i", bytes(8 * (self.count + 1)))
        cdef unsigned short[::1] end = ends
        cdef int[::1] owner = slots
        cdef int32_t free_from = 0
        cdef int32_t count = 0
        cdef int32_t i
        for i in range(self.count):
            if self.items[i].last < 0 or self.items[i].first > HASH_LAST:
                continue  # outside of the existing hashes
            if self.items[i].first > free_from:
                end[count] = <unsigned short>(self.items[i].first - 1)
                owner[count] = 0
                count += 1
            end[count] = <unsigned short>min(self.items[i].last, HASH_LAST)
            owner[count] = self.items[i].slot
            count += 1
            free_from = min(self.items[i].last, HASH_LAST) + 1
        return ends[:count], slots[:count]
