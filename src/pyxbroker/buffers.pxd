# Who owns bytes: slabs that sockets read into, and the vector that a socket writes from.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    SLAB_BYTES = 512 * 1024
    SLABS_KEPT_MAX = 16             # free slabs kept for reuse, so that their pages stay warm
    OUT_ARENA_BYTES = 4096          # first size of the arena of small frames

# Memory that a socket reads into. Frames are slices of it; it is reused when nobody needs them.
cdef class Slab:
    cdef uint8_t *data
    cdef uint64_t size              # bytes

cdef class SlabPool:
    cdef list free                  # slabs of SLAB_BYTES
    # A slab of at least size bytes.
    cdef Slab acquire(self, uint64_t size)
    # Takes a slab back; the caller holds no slice of it any more.
    cdef int release(self, Slab slab) except -1
    # The bytes of each slab that waits for its next use.
    cdef list sizes(self)

# A run of bytes to send: in the arena (data NULL, offset counts) or somebody else's memory.
cdef struct Piece:
    const uint8_t *data
    uint64_t offset                 # in the arena
    uint32_t size
    bint owned                      # brought an owner

# Bytes waiting for one socket, in order: small frames are built in the arena, stored entries are
# referenced where they lie and kept alive by owners until everything before them was sent.
cdef class OutVector:
    cdef uint8_t *arena
    cdef uint64_t arena_size
    cdef uint64_t arena_used
    cdef Piece *pieces
    cdef uint32_t pieces_count
    cdef uint32_t pieces_capacity
    cdef uint32_t first             # the first piece not sent yet
    cdef uint32_t first_sent        # bytes of it already sent
    cdef readonly uint64_t pending  # bytes not sent yet
    cdef list owners                # in the order of the owned pieces, which they came with
    cdef uint32_t owners_sent       # owned pieces that are sent and whose owners are still held
    # Room for size bytes of a small frame, and for one reference behind it, so that neither fails;
    # valid until the next call. NULL when out of memory.
    cdef uint8_t *reserve(self, uint32_t size) noexcept
    # The last size bytes of the reserved room are part of the vector now.
    cdef int commit(self, uint32_t size) except -1
    # References memory that owner keeps (owner None: kept by the owner given last).
    cdef int reference(self, const uint8_t *data, uint32_t size, object owner) except -1
    # Sends as much as the socket takes: 0 all sent, 1 the socket is full, -errno.
    cdef int send(self, int fd) noexcept
    # Copies up to size bytes to `to`; they count as sent. Returns how many.
    cdef uint64_t take(self, uint8_t *to, uint64_t size) noexcept
    cdef void clear(self) noexcept
    cdef int _append(self, const uint8_t *data, uint64_t offset, uint32_t size,
                     bint owned) except -1
    # Room for so many pieces more; -1 when out of memory.
    cdef int _make_room(self, uint32_t pieces) noexcept
    cdef void _forget_sent_pieces(self) noexcept
    cdef void _forget_sent_arena(self) noexcept
    cdef int _fill(self, void *vector, int capacity) noexcept
    cdef void _consume(self, uint64_t sent) noexcept
