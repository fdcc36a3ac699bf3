# Growable columns in the memory layout of Arrow arrays (the Arrow columnar format).
#
# The owner of a column zeroes its memory before use and releases it with `free_column`. Each row
# must be added to each column of a table by exactly one of the functions below.
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

cdef enum:
    WIDTH_VARIABLE = 0              # a column of bytes or text: offsets and data
    WIDTH_BITS = -1                 # a column of booleans
    MEMORY_BYTES_MIN = 1024
    OFFSET_MAX = 0x7fffffff         # Arrow's offsets have 32 bits

cdef struct Memory:
    uint8_t *data
    size_t size
    size_t capacity
    # size when it was last exported; the next allocation starts with it
    size_t expected

cdef struct Column:
    int width                       # bytes of a value, or WIDTH_...
    int64_t nulls
    Memory valid                    # a bit for each row up to the last null; 0: null
    Memory offsets                  # 0, then the end of each value in data; WIDTH_VARIABLE only
    Memory data

cdef inline int reserve(Memory *memory, size_t more) except -1:
    cdef size_t grown
    cdef void *moved
    if memory.capacity - memory.size >= more:
        return 0
    grown = max(memory.capacity + memory.capacity // 2, <size_t>MEMORY_BYTES_MIN, memory.expected)
    grown = max(grown, memory.size + more)
    moved = realloc(memory.data, grown)
    if moved == NULL:
        raise MemoryError("no memory for %d bytes of a column" % grown)
    memory.data = <uint8_t *>moved
    memory.capacity = grown
    return 0

cdef inline void free_memory(Memory *memory) noexcept:
    free(memory.data)
    memset(memory, 0, sizeof(Memory))

cdef inline void free_column(Column *column) noexcept:
    free_memory(&column.valid)
    free_memory(&column.offsets)
    free_memory(&column.data)

cdef inline int add_offset(Memory *offsets, size_t end) except -1:
    cdef int32_t value = <int32_t>end
    if end > OFFSET_MAX:
        raise OverflowError("the values of a column exceed 2 GiB")
    reserve(offsets, 8)
    if offsets.size == 0:
        memset(offsets.data, 0, 4)
        offsets.size = 4
    memcpy(offsets.data + offsets.size, &value, 4)
    offsets.size += 4
    return 0

cdef inline int add_bytes(Column *column, const uint8_t *data, size_t size) except -1:
    reserve(&column.data, size)
    if size:
        memcpy(column.data.data + column.data.size, data, size)
    column.data.size += size
    return add_offset(&column.offsets, column.data.size)

# Append a value of the column's width, in native byte order.
cdef inline int add_value(Column *column, const void *value) except -1:
    reserve(&column.data, column.width)
    memcpy(column.data.data + column.data.size, value, column.width)
    column.data.size += column.width
    return 0

cdef inline int _make_bits(Memory *bits, int64_t row, int fill) except -1:
    cdef size_t more
    if bits.size <= <size_t>(row >> 3):
        more = <size_t>(row >> 3) + 1 - bits.size
        reserve(bits, more)
        memset(bits.data + bits.size, fill, more)
        bits.size += more
    return 0

cdef inline int add_truth(Column *column, int64_t row, bint value) except -1:
    _make_bits(&column.data, row, 0)
    if value:
        column.data.data[row >> 3] |= 1 << (row & 7)
    return 0

cdef inline int add_null(Column *column, int64_t row) except -1:
    _make_bits(&column.valid, row, 0xff)
    column.valid.data[row >> 3] &= ~(1 << (row & 7))
    column.nulls += 1
    if column.width == WIDTH_VARIABLE:
        return add_offset(&column.offsets, column.data.size)
    if column.width == WIDTH_BITS:
        return add_truth(column, row, False)
    reserve(&column.data, column.width)
    memset(column.data.data + column.data.size, 0, column.width)
    column.data.size += column.width
    return 0

# Complete a column for Arrow: the first offset even without rows, and validity bits for all rows.
cdef inline int complete(Column *column, int64_t rows) except -1:
    if column.nulls and rows:
        _make_bits(&column.valid, rows - 1, 0xff)
    if column.width == WIDTH_VARIABLE and column.offsets.size == 0:
        reserve(&column.offsets, 4)
        memset(column.offsets.data, 0, 4)
        column.offsets.size = 4
    return 0
