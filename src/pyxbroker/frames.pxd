# Frames of the binary protocol: parsing, and checking of payloads.
#
# All integers are big-endian (Commands and PulsarDecoder in Pulsar):
#
#   0  4  total size: number of bytes after this field
#   4  4  command size
#   8  n  protobuf BaseCommand
#   .. ..  SEND and MESSAGE only: the payload section, which is stored as it is:
#          2  0x0e01        checksum magic (optional)
#          4  CRC32C        over everything after it, to the end of the frame
#          4  metadata size
#          m  protobuf MessageMetadata
#          .. payload
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    FRAME_INCOMPLETE = 0
    FRAME_TOO_LARGE = -1        # total size above the limit
    FRAME_MALFORMED = -2        # command size exceeds total size, or is 0

    PAYLOAD_OK = 0
    PAYLOAD_CHECKSUM = -1       # CRC32C differs
    PAYLOAD_MALFORMED = -2      # sizes exceed the frame

    CHECKSUM_MAGIC = 0x0e01
    FRAME_PADDING_BYTES = 10240     # maximum excess of a frame over maxMessageSize

cdef struct Frame:
    const uint8_t *command      # BaseCommand
    uint32_t command_size
    const uint8_t *payload      # the payload section; empty for simple commands
    uint32_t payload_size

cdef struct Payload:
    const uint8_t *metadata     # MessageMetadata
    uint32_t metadata_size
    uint32_t crc                # CRC32C of the whole payload section as stored

# Find the frame at data[0:size]. Returns its whole size (> 4), FRAME_INCOMPLETE or an error.
cdef int64_t frame_next(const uint8_t *data, uint64_t size, uint32_t frame_bytes_max,
                        Frame *out) noexcept nogil

# Check the payload section of a SEND: magic, CRC32C, metadata size.
cdef int payload_check(const uint8_t *data, uint32_t size, Payload *out) noexcept nogil

# Find the metadata of stored bytes without checking the checksum again. Returns 0 or
# PAYLOAD_MALFORMED.
cdef int payload_metadata(const uint8_t *data, uint32_t size, const uint8_t **metadata,
                          uint32_t *metadata_size) noexcept nogil

# Return the size of the broker entry metadata (0x0e02, size, message) that may precede the payload
# section of an entry; 0 without one, more than `size` if it exceeds the data.
cdef uint32_t broker_metadata_size(const uint8_t *data, uint32_t size) noexcept nogil
