"""TLS on one client's socket; tls.pxd describes the parts.

The socket's bytes and those of the records go through two buffers that all connections share: they
are empty between calls, and one loop makes the calls. Small frames become full records on their
way out, and stored entries are copied this once, which is little beside their encryption.
"""
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t

import ssl as _ssl

from pyxbroker.buffers cimport OutVector

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int, void *, size_t, int)
    ssize_t send(int, const void *, size_t, int)
    const int MSG_NOSIGNAL

cdef enum:
    BUFFER_BYTES = 64 * 1024        # of one read, and of the plain text of one write

cdef uint8_t[BUFFER_BYTES] buffer_in
cdef uint8_t[BUFFER_BYTES] buffer_out

WantRead = _ssl.SSLWantReadError
ZeroReturn = _ssl.SSLZeroReturnError
SslError = _ssl.SSLError


cdef class TlsStream:
    """The server's side of TLS on a socket. context: an ssl.SSLContext."""

    def __cinit__(self, context):
        self.context = context
        self.incoming = _ssl.MemoryBIO()
        self.outgoing = _ssl.MemoryBIO()

    @property
    def certificate(self):
        """The client's certificate as ssl tells it, if it showed one that is trusted; or None."""
        return self.ssl.getpeercert() if self.established else None

    cdef int64_t receive(self, int fd, uint8_t *at, uint64_t room) except? -3:
        cdef ssize_t n
        if self.failure is not None:
            return TLS_FAILED
        if not self.has_more:
            n = recv(fd, buffer_in, BUFFER_BYTES, 0)
            if n < 0:
                if errno == EAGAIN or errno == EINTR:
                    return TLS_AGAIN
                return 0
            if n == 0:
                return 0  # with or without a farewell: frames say themselves where they end
            if self.ssl is None:
                self.ssl = self.context.wrap_bio(self.incoming, self.outgoing, server_side=True)
                self.context = None
            self.incoming.write(PyMemoryView_FromMemory(<char *>buffer_in, n, PyBUF_READ))
        try:
            if not self.established and not self._shake_hands():
                return TLS_AGAIN
            return self._open(at, room)
        except ZeroReturn:
            self.has_more = False
            return 0
        except SslError as error:
            self.has_more = False
            self.failure = error.reason or str(error)
            return TLS_FAILED

    cdef bint _shake_hands(self) except -1:
        """Whether the handshake is over."""
        try:
            self.ssl.do_handshake()
        except WantRead:
            return False
        self.established = True
        return True

    cdef int64_t _open(self, uint8_t *at, uint64_t room) except? -3:
        """Plain text of the records that are here."""
        cdef uint64_t total = 0
        cdef Py_ssize_t got
        # The end, or what is broken, may have been met already: it is told when asked again.
        cdef bint is_due = self.has_more
        self.has_more = False
        try:
            while total < room:
                # With the last record opened, asking once more would cost an exception.
                if not is_due and not self.incoming.pending and not self.ssl.pending():
                    break
                is_due = False
                got = self.ssl.read(
                    room - total,
                    PyMemoryView_FromMemory(<char *>at + total, room - total, PyBUF_WRITE))
                if got <= 0:
                    self.has_more = total > 0  # the end comes after what is before it
                    return <int64_t>total
                total += <uint64_t>got
            else:
                self.has_more = self.incoming.pending > 0 or self.ssl.pending() > 0
        except WantRead:
            pass  # the rest of a record has not come yet
        except SslError:
            if total == 0:
                raise
            self.has_more = True  # what is before it is good; the next call meets it again
        return <int64_t>total if total else TLS_AGAIN

    cdef int64_t output_bytes(self) except -1:
        cdef int64_t made = self.outgoing.pending
        return made if self.unsent is None else made + len(self.unsent) - self.unsent_at

    cdef int send(self, OutVector out, int fd) except? -1:
        cdef uint64_t size
        cdef int code
        while True:
            code = self._send_records(fd)
            if code != 0:
                return code
            if out.pending == 0:
                out.clear()
                return 0
            if not self.established:
                return 0  # no frame has come, so none is due; an error of the start is not told
            size = out.take(buffer_out, BUFFER_BYTES)
            self.ssl.write(PyMemoryView_FromMemory(<char *>buffer_out, size, PyBUF_READ))

    cdef int _send_records(self, int fd) except? -1:
        """Sends the records that are made: 0 all sent, 1 the socket is full, -errno."""
        cdef ssize_t sent
        cdef const char *data
        while True:
            if self.unsent is None:
                if not self.outgoing.pending:
                    return 0
                self.unsent = self.outgoing.read()
                self.unsent_at = 0
            data = self.unsent
            sent = send(fd, data + self.unsent_at, len(self.unsent) - self.unsent_at, MSG_NOSIGNAL)
            if sent < 0:
                if errno == EINTR:
                    continue
                return 1 if errno == EAGAIN else -errno
            self.unsent_at += sent
            if self.unsent_at == len(self.unsent):
                self.unsent = None

    cdef int say_goodbye(self, OutVector out, int fd) except -1:
        """Sends what the socket takes at once, and that nothing follows. For the end."""
        try:
            if self.send(out, fd) == 0 and self.established and self.failure is None:
                self.ssl.unwrap()
        except WantRead:
            pass  # the peer's farewell, which nobody waits for
        except SslError:
            return 0  # the end of a connection that is broken already
        self._send_records(fd)
        return 0
