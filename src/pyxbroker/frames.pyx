"""Frame scan and payload check of the binary protocol; frames.pxd describes the layout."""
from cpython.pycapsule cimport PyCapsule_GetPointer

from pyxbroker.integers cimport load_be32
from pyxbroker.native cimport NATIVE_API_CAPSULE, native_api

from pyxbroker import _native

cdef native_api *_api = <native_api *>PyCapsule_GetPointer(_native._c_api, NATIVE_API_CAPSULE)

FRAME_PADDING = FRAME_PADDING_BYTES


cdef int64_t frame_next(const uint8_t *data, uint64_t size, uint32_t frame_bytes_max,
                        Frame *out) noexcept nogil:
    cdef uint32_t total, command_size
    if size < 4:
        return FRAME_INCOMPLETE
    total = load_be32(data)
    if total > frame_bytes_max:
        return FRAME_TOO_LARGE
    if total < 4:
        return FRAME_MALFORMED
    if size < 8:
        return FRAME_INCOMPLETE
    command_size = load_be32(data + 4)
    if command_size == 0 or command_size > total - 4:
        return FRAME_MALFORMED
    if size < <uint64_t>total + 4:
        return FRAME_INCOMPLETE
    out.command = data + 8
    out.command_size = command_size
    out.payload = data + 8 + command_size
    out.payload_size = total - 4 - command_size
    return <int64_t>total + 4


cdef int payload_check(const uint8_t *data, uint32_t size, Payload *out) noexcept nogil:
    cdef uint32_t rest
    if broker_metadata_size(data, size) != 0:
        # Only brokers add this metadata. Clients must not: the checksum after it would not be
        # found.
        return PAYLOAD_MALFORMED
    if payload_metadata(data, size, &out.metadata, &out.metadata_size) != 0:
        return PAYLOAD_MALFORMED
    if data[0] == 0x0e and data[1] == 0x01:
        rest = _api.crc32c(0, data + 6, size - 6)
        if rest != load_be32(data + 2):
            return PAYLOAD_CHECKSUM
        # Hash the payload once: derive the checksum for the disk from that of the wire.
        out.crc = _api.crc32c_combine(_api.crc32c(0, data, 6), rest, size - 6)
    else:
        out.crc = _api.crc32c(0, data, size)
    return PAYLOAD_OK


cdef uint32_t broker_metadata_size(const uint8_t *data, uint32_t size) noexcept nogil:
    cdef uint32_t length
    if size < 6 or data[0] != 0x0e or data[1] != 0x02:
        return 0
    length = load_be32(data + 2)
    return 6 + length if length <= size - 6 else 0xffffffff


cdef int payload_metadata(const uint8_t *data, uint32_t size, const uint8_t **metadata,
                          uint32_t *metadata_size) noexcept nogil:
    cdef uint32_t at = broker_metadata_size(data, size)
    cdef uint32_t length
    if at > size:
        return PAYLOAD_MALFORMED
    if size - at >= 6 and data[at] == 0x0e and data[at + 1] == 0x01:
        at += 6
    if size - at < 4:
        return PAYLOAD_MALFORMED
    length = load_be32(data + at)
    at += 4
    if length > size - at:
        return PAYLOAD_MALFORMED
    metadata[0] = data + at
    metadata_size[0] = length
    return 0


# The functions below are for tests.

def scan(const uint8_t[::1] data not None, uint32_t frame_bytes_max):
    """Scan whole frames from the start of data.

    Return (frames, consumed, error): frames as (command, payload) bytes, consumed in bytes, and
    None, "too large" or "malformed" for the frame at data[consumed:].
    """
    cdef Frame frame
    cdef uint64_t at = 0
    cdef uint64_t size = data.shape[0]
    cdef int64_t n = 0
    frames = []
    while at < size:
        n = frame_next(&data[0] + at, size - at, frame_bytes_max, &frame)
        if n <= 0:
            break
        frames.append((frame.command[:frame.command_size], frame.payload[:frame.payload_size]))
        at += n
    error = {FRAME_TOO_LARGE: "too large", FRAME_MALFORMED: "malformed"}.get(n)
    return frames, at, error


def check_payload(const uint8_t[::1] data not None):
    """Return (code, metadata, CRC32C of data). Codes: 0 intact, -1 checksum, -2 malformed."""
    cdef Payload payload
    cdef const uint8_t *start = NULL
    if data.shape[0] > 0:
        start = &data[0]
    code = payload_check(start, <uint32_t>data.shape[0], &payload)
    if code != PAYLOAD_OK:
        return code, None, None
    return code, payload.metadata[:payload.metadata_size], payload.crc
