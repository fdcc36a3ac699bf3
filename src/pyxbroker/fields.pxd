# Parsing of protobuf (proto2) fields in place.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyxbroker.integers cimport get_varint

cdef enum:
    WIRE_VARINT = 0
    WIRE_FIXED64 = 1
    WIRE_BYTES = 2
    WIRE_FIXED32 = 5

cdef struct Field:
    uint32_t number
    uint32_t wire                   # WIRE_...
    uint64_t value                  # of a varint
    const uint8_t *data             # of the other wire types, within the message
    uint32_t size

# Parse the field at data[at[0]] and advance at[0] past it. Returns -1 if it exceeds data[0:size],
# is invalid, or belongs to a group.
cdef inline int parse_field(const uint8_t *data, uint32_t size, uint32_t *at,
                            Field *out) noexcept nogil:
    cdef uint64_t key, length
    if get_varint(data, size, at, &key) != 0:
        return -1
    out.number = <uint32_t>(key >> 3)
    out.wire = key & 7
    if out.number == 0 or key >> 32 != 0:
        return -1
    if out.wire == WIRE_VARINT:
        return get_varint(data, size, at, &out.value)
    if out.wire == WIRE_BYTES:
        if get_varint(data, size, at, &length) != 0:
            return -1
    elif out.wire == WIRE_FIXED64:
        length = 8
    elif out.wire == WIRE_FIXED32:
        length = 4
    else:
        return -1
    if length > size - at[0]:
        return -1
    out.data = data + at[0]
    out.size = <uint32_t>length
    at[0] += <uint32_t>length
    return 0
