# Encodings of integers: big-endian, as in frames and entries, and protobuf varints.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    VARINT_BYTES_MAX = 10

cdef extern from "bytes.h" nogil:
    uint32_t load_be32(const uint8_t *at) noexcept
    int64_t load_be64(const uint8_t *at) noexcept
    void store_be32(uint8_t *at, uint32_t value) noexcept
    void store_be64(uint8_t *at, uint64_t value) noexcept

# Write a varint of at most VARINT_BYTES_MAX bytes at p. Returns the end.
cdef inline uint8_t *put_varint(uint8_t *p, uint64_t value) noexcept nogil:
    while value >= 0x80:
        p[0] = <uint8_t>(value & 0x7f) | 0x80
        p += 1
        value >>= 7
    p[0] = <uint8_t>value
    return p + 1

cdef inline uint32_t varint_size(uint64_t value) noexcept nogil:
    cdef uint32_t size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size

# Read the varint at data[at[0]] and advance at[0] past it. Returns -1 and changes nothing if it
# exceeds data[0:size] or VARINT_BYTES_MAX. Bits beyond 64 are dropped, as protobuf does.
cdef inline int get_varint(const uint8_t *data, uint32_t size, uint32_t *at,
                           uint64_t *out) noexcept nogil:
    cdef uint64_t value = 0
    cdef uint32_t shift = 0
    cdef uint32_t i = at[0]
    cdef uint8_t byte
    while i < size and shift < 70:
        byte = data[i]
        i += 1
        if shift < 64:
            value |= <uint64_t>(byte & 0x7f) << shift
        if byte < 0x80:
            at[0] = i
            out[0] = value
            return 0
        shift += 7
    return -1
