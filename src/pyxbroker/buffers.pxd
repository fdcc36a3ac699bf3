# Buffers and their owners: slabs that sockets are read into, and the vector that a socket is
# written from.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    SLAB_BYTES = 512 * 1024
    SLABS_KEPT_MAX = 16             # free slabs retained for reuse, so that their pages stay mapped
    OUT_ARENA_BYTES = 4096          # initial size of the arena for small frames

# Memory that a socket is read into. Frames are slices of it. It is reused once no slice is in use.
cdef class Slab:
    cdef uint8_t *data
    cdef uint64_t size              # bytes

cdef class SlabPool:
    cdef list free                  # slabs of SLAB_BYTES
    # Return a slab of at least size bytes.
    cdef Slab acquire(self, uint64_t size)
    # Take a slab back. The caller holds no slice of it any more.
    cdef int release(self, Slab slab) except -1
    # Return the size of each free slab.
    cdef list sizes(self)

# Consecutive bytes to send: in the arena (data NULL, offset valid) or in the memory of an owner.
cdef struct Piece:
    const uint8_t *data
    uint64_t offset                 # in the arena
    uint32_t size
    bint owned                      # has an entry of its own in `owners`

# Bytes queued for one socket, in order. Small frames are built in the arena. Stored entries are
# referenced in place; their owners are held until everything before them is sent.
cdef class OutVector:
    cdef uint8_t *arena
    cdef uint64_t arena_size
    cdef uint64_t arena_used
    cdef Piece *pieces
    cdef uint32_t pieces_count
    cdef uint32_t pieces_capacity
    cdef uint32_t first             # the first piece not completely sent
    cdef uint32_t first_sent        # bytes of it already sent
    cdef readonly uint64_t pending  # bytes not sent yet
    cdef list owners                # owners of the owned pieces, in order
    cdef uint32_t owners_sent       # owned pieces that are sent and whose owners are still held
    # Reserve size bytes for a small frame, and room for one reference after it, so that neither
    # append fails. The pointer is valid until the next call. Returns NULL when out of memory.
    cdef uint8_t *reserve(self, uint32_t size) noexcept
    # Append the first size bytes of the reserved room to the vector.
    cdef int commit(self, uint32_t size) except -1
    # Append a reference to memory that owner keeps alive (None: the previous owner keeps it).
    cdef int reference(self, const uint8_t *data, uint32_t size, object owner) except -1
    # Send as much as the socket accepts. Returns 0 if all is sent, 1 if the socket is full, or
    # -errno.
    cdef int send(self, int fd) noexcept
    # Copy up to size bytes to `to` and count them as sent. Returns the number of bytes.
    cdef uint64_t take(self, uint8_t *to, uint64_t size) noexcept
    cdef void clear(self) noexcept
    cdef int _append(self, const uint8_t *data, uint64_t offset, uint32_t size,
                     bint owned) except -1
    # Make room for more pieces. Returns -1 when out of memory.
    cdef int _make_room(self, uint32_t pieces) noexcept
    cdef void _forget_sent_pieces(self) noexcept
    cdef void _forget_sent_arena(self) noexcept
    cdef int _fill(self, void *vector, int capacity) noexcept
    cdef void _consume(self, uint64_t sent) noexcept
