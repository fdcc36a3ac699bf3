# TLS on one client's socket: records in and out, between the kernel and a connection's slab and
# output. Python's ssl does the protocol, over bytes in memory; nothing here is made per message.
from libc.stdint cimport int64_t, uint8_t, uint64_t

from pyxbroker.buffers cimport OutVector

cdef enum:
    TLS_AGAIN = -1                  # nothing to give now: the socket will tell when there is more
    TLS_FAILED = -2                 # the peer does not speak TLS, or not as it has to: `failure`
    RECORD_BYTES_MAX = 16384        # of plain text in one record, which one read gives at most

cdef class TlsStream:
    cdef object context             # until something comes: who stays silent is cheap
    cdef object ssl                 # ssl.SSLObject; None until then
    cdef object incoming            # ssl.MemoryBIO: records that came and are not opened yet
    cdef object outgoing            # and those that are made and wait for the socket
    cdef bytes unsent               # taken from `outgoing`, from unsent_at on; None: nothing
    cdef Py_ssize_t unsent_at
    cdef readonly bint established  # the handshake is over
    cdef readonly bint has_more     # plain text that had no room: the socket does not tell of it
    cdef readonly str failure
    # Like recv(2): how many bytes of plain text there are at `at` now, 0 when the peer has ended,
    # TLS_AGAIN, or TLS_FAILED. One call reads the socket once. room is not 0.
    cdef int64_t receive(self, int fd, uint8_t *at, uint64_t room) except? -3
    # Like OutVector.send: 0 all sent, 1 the socket is full, -errno.
    cdef int send(self, OutVector out, int fd) except? -1
    # Bytes of records that wait for the socket: frames, and answers to what TLS itself asks for.
    cdef int64_t output_bytes(self) except -1
    cdef int say_goodbye(self, OutVector out, int fd) except -1
    cdef int64_t _open(self, uint8_t *at, uint64_t room) except? -3
    cdef bint _shake_hands(self) except -1
    cdef int _send_records(self, int fd) except? -1
