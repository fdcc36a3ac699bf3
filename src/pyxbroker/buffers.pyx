"""Slabs to read into and vectors to write from; buffers.pxd describes their ownership."""
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset


cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len


cdef extern from "<sys/socket.h>" nogil:
    cdef struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int, const msghdr *, int)
    int MSG_NOSIGNAL

cdef enum:
    PIECES_PER_CALL = 512           # below IOV_MAX of every system


cdef class Slab:
    def __cinit__(self, uint64_t size):
        self.data = <uint8_t *>malloc(size)
        if self.data == NULL:
            raise MemoryError("no memory for a slab of %d bytes" % size)
        self.size = size

    def __dealloc__(self):
        free(self.data)


cdef class SlabPool:
    def __cinit__(self):
        self.free = []

    cdef Slab acquire(self, uint64_t size):
        if size <= SLAB_BYTES:
            if self.free:
                return self.free.pop()
            return Slab(SLAB_BYTES)
        return Slab(size)

    cdef int release(self, Slab slab) except -1:
        if slab.size == SLAB_BYTES and len(self.free) < SLABS_KEPT_MAX:
            self.free.append(slab)
        return 0

    cdef list sizes(self):
        return [(<Slab>slab).size for slab in self.free]


cdef class OutVector:
    def __cinit__(self):
        self.owners = []

    def __dealloc__(self):
        free(self.arena)
        free(self.pieces)

    cdef uint8_t *reserve(self, uint32_t size) noexcept:
        cdef uint64_t wanted = self.arena_used + size
        cdef uint64_t grown = self.arena_size if self.arena_size else OUT_ARENA_BYTES
        cdef void *moved
        if wanted > self.arena_size:
            self._forget_sent_arena()
            wanted = self.arena_used + size
        if wanted > self.arena_size:
            while grown < wanted:
                grown *= 2
            moved = realloc(self.arena, grown)
            if moved == NULL:
                return NULL
            self.arena = <uint8_t *>moved
            self.arena_size = grown
        # A header without its payload would corrupt everything sent after it.
        if self._make_room(2) != 0:
            return NULL
        return self.arena + self.arena_used

    cdef int commit(self, uint32_t size) except -1:
        cdef Piece *last
        if self.pieces_count > self.first:
            last = &self.pieces[self.pieces_count - 1]
            if last.data == NULL and last.offset + last.size == self.arena_used:
                last.size += size
                self.arena_used += size
                self.pending += size
                return 0
        self._append(NULL, self.arena_used, size, False)
        self.arena_used += size
        return 0

    cdef int reference(self, const uint8_t *data, uint32_t size, object owner) except -1:
        if owner is not None:
            self.owners.append(owner)
        return self._append(data, 0, size, owner is not None)

    cdef int _append(self, const uint8_t *data, uint64_t offset, uint32_t size,
                     bint owned) except -1:
        cdef Piece *piece
        if self._make_room(1) != 0:
            raise MemoryError("no memory for the output vector of a connection")
        piece = &self.pieces[self.pieces_count]
        piece.data = data
        piece.offset = offset
        piece.size = size
        piece.owned = owned
        self.pieces_count += 1
        self.pending += size
        return 0

    cdef int _make_room(self, uint32_t pieces) noexcept:
        cdef uint32_t grown
        cdef void *moved
        if self.pieces_count + pieces > self.pieces_capacity:
            self._forget_sent_pieces()
        if self.pieces_count + pieces > self.pieces_capacity:
            grown = self.pieces_capacity * 2 if self.pieces_capacity else 16
            moved = realloc(self.pieces, grown * sizeof(Piece))
            if moved == NULL:
                return -1
            self.pieces = <Piece *>moved
            self.pieces_capacity = grown
        return 0

    # A slow peer may never accept the last byte, so sent pieces must not accumulate. Moving the
    # remaining ones pays off when they take less room than the sent ones.

    cdef void _forget_sent_pieces(self) noexcept:
        if self.first == 0 or self.first * 2 < self.pieces_count:
            return
        self.pieces_count -= self.first
        memmove(self.pieces, self.pieces + self.first, self.pieces_count * sizeof(Piece))
        self.first = 0

    cdef void _forget_sent_arena(self) noexcept:
        cdef uint64_t sent = self.arena_used
        cdef uint32_t i
        for i in range(self.first, self.pieces_count):
            if self.pieces[i].data == NULL:
                sent = self.pieces[i].offset
                break
        if sent == 0 or sent * 2 < self.arena_used:
            return
        self.arena_used -= sent
        if self.arena_used:
            memmove(self.arena, self.arena + sent, self.arena_used)
        for i in range(self.first, self.pieces_count):
            self.pieces[i].offset -= sent if self.pieces[i].data == NULL else 0

    cdef int send(self, int fd) noexcept:
        cdef iovec vector[PIECES_PER_CALL]
        cdef msghdr header
        cdef ssize_t sent
        memset(&header, 0, sizeof(header))
        while self.pending:
            header.msg_iov = vector
            header.msg_iovlen = self._fill(vector, PIECES_PER_CALL)
            sent = sendmsg(fd, &header, MSG_NOSIGNAL)
            if sent < 0:
                if errno == EINTR:
                    continue
                return 1 if errno == EAGAIN else -errno
            self._consume(<uint64_t>sent)
        self.clear()
        return 0

    cdef uint64_t take(self, uint8_t *to, uint64_t size) noexcept:
        cdef iovec vector[PIECES_PER_CALL]
        cdef uint64_t taken = 0
        cdef uint64_t part
        cdef uint64_t of_these
        cdef int count, i
        while self.pending and taken < size:
            count = self._fill(vector, PIECES_PER_CALL)
            of_these = 0
            for i in range(count):
                part = min(<uint64_t>vector[i].iov_len, size - taken)
                memcpy(to + taken, vector[i].iov_base, part)
                taken += part
                of_these += part
                if taken == size:
                    break
            self._consume(of_these)
        return taken

    cdef int _fill(self, void *vector, int capacity) noexcept:
        cdef iovec *out = <iovec *>vector
        cdef uint32_t i = self.first
        cdef uint32_t skip = self.first_sent
        cdef int n = 0
        cdef Piece *piece
        while i < self.pieces_count and n < capacity:
            piece = &self.pieces[i]
            out[n].iov_base = <void *>((piece.data if piece.data != NULL
                                        else self.arena + piece.offset) + skip)
            out[n].iov_len = piece.size - skip
            skip = 0
            n += 1
            i += 1
        return n

    cdef void _consume(self, uint64_t sent) noexcept:
        cdef uint32_t left
        self.pending -= sent
        while sent:
            left = self.pieces[self.first].size - self.first_sent
            if sent < left:
                self.first_sent += <uint32_t>sent
                break
            sent -= left
            self.owners_sent += self.pieces[self.first].owned
            self.first += 1
            self.first_sent = 0
        # The last owner may also keep later pieces that have no owner of their own.
        if self.owners_sent > 1:
            del self.owners[:self.owners_sent - 1]
            self.owners_sent = 1

    cdef void clear(self) noexcept:
        self.pieces_count = 0
        self.first = 0
        self.first_sent = 0
        self.pending = 0
        self.arena_used = 0
        if self.arena_size > 16 * OUT_ARENA_BYTES:
            free(self.arena)
            self.arena = NULL
            self.arena_size = 0
        if self.pieces_capacity > 4096:
            free(self.pieces)
            self.pieces = NULL
            self.pieces_capacity = 0
        self.owners_sent = 0
        if self.owners:
            self.owners.clear()

    # The methods below are for tests.

    def append(self, bytes data not None):
        """Copy data into the vector."""
        cdef uint8_t *at = self.reserve(<uint32_t>len(data))
        if at == NULL:
            raise MemoryError("no memory for %d bytes" % len(data))
        memcpy(at, <const uint8_t *>data, len(data))
        self.commit(<uint32_t>len(data))

    def lend(self, data, owner):
        """Append a reference to the memory of data, which owner keeps alive (None: the previous
        owner).
        """
        cdef const uint8_t[::1] view = data
        self.reference(&view[0], <uint32_t>view.shape[0], owner)

    def send_to(self, int fd):
        """Send; return 0 if all is sent, 1 if the socket is full, or -errno."""
        return self.send(fd)

    @property
    def held(self):
        """(arena bytes, piece capacity, number of owners) currently held."""
        return self.arena_size, self.pieces_capacity, len(self.owners)
