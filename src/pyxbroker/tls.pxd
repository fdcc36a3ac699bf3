# TLS on a client's socket: moves records between the kernel and the slab and output of a
# connection. Python's ssl implements the protocol in memory buffers. No object is created per
# message.
from libc.stdint cimport int64_t, uint8_t, uint64_t

from pyxbroker.buffers cimport OutVector

cdef enum:
    TLS_AGAIN = -1                  # no data now; wait for the socket
    TLS_FAILED = -2                 # protocol error of the peer; see `failure`
    RECORD_BYTES_MAX = 16384        # plain text per record; limit of one read

cdef class TlsStream:
    # until the first bytes arrive, so that silent connections are cheap
    cdef object context
    cdef object ssl                 # ssl.SSLObject; None until then
    cdef object incoming            # ssl.MemoryBIO: received records not decrypted yet
    cdef object outgoing            # ssl.MemoryBIO: records to send
    cdef bytes unsent               # taken from `outgoing`, valid from unsent_at; None: nothing
    cdef Py_ssize_t unsent_at
    cdef readonly bint established  # the handshake is complete
    # decrypted data remains; the socket does not become readable for it
    cdef readonly bint has_more
    cdef readonly str failure
    # Like recv(2): returns the number of plain-text bytes stored at `at`, 0 at the end of the
    # stream, TLS_AGAIN, or TLS_FAILED. One call reads the socket once. room is not 0.
    cdef int64_t receive(self, int fd, uint8_t *at, uint64_t room) except? -3
    # Like OutVector.send: 0 if all is sent, 1 if the socket is full, or -errno.
    cdef int send(self, OutVector out, int fd) except? -1
    # Return the size of the records that wait for the socket, including those of the protocol
    # itself.
    cdef int64_t output_bytes(self) except -1
    cdef int close_notify(self, OutVector out, int fd) except -1
    cdef int64_t _open(self, uint8_t *at, uint64_t room) except? -3
    cdef bint _handshake(self) except -1
    cdef int _send_records(self, int fd) except? -1
