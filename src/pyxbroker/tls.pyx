"""TLS on a client's socket; tls.pxd describes the parts.

Socket data and records pass through two buffers shared by all connections. The buffers are empty
between calls, and all calls come from one event loop. Small frames are combined to full records.
Stored entries are copied once, which is cheap compared to their encryption.
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
    """One side of TLS on a socket. context is an ssl.SSLContext."""

    def __cinit__(self, context, bint is_client=False, server_hostname=None):
        self.context = context
        self.incoming = _ssl.MemoryBIO()
        self.outgoing = _ssl.MemoryBIO()
        if is_client:
            self.ssl = context.wrap_bio(self.incoming, self.outgoing,
                                        server_hostname=server_hostname)
            self.context = None
            self._handshake()

    @property
    def certificate(self):
        """The client's certificate as ssl.getpeercert() returns it; None without a trusted one."""
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
                return 0  # with or without close_notify: frames have their own lengths
            if self.ssl is None:
                self.ssl = self.context.wrap_bio(self.incoming, self.outgoing, server_side=True)
                self.context = None
            self.incoming.write(PyMemoryView_FromMemory(<char *>buffer_in, n, PyBUF_READ))
        try:
            if not self.established and not self._handshake():
                return TLS_AGAIN
            return self._open(at, room)
        except ZeroReturn:
            self.has_more = False
            return 0
        except SslError as error:
            self.has_more = False
            self.failure = error.reason or str(error)
            return TLS_FAILED

    cdef bint _handshake(self) except -1:
        """Advance the handshake; return True once it is complete."""
        try:
            self.ssl.do_handshake()
        except WantRead:
            return False
        self.established = True
        return True

    cdef int64_t _open(self, uint8_t *at, uint64_t room) except? -3:
        """Decrypt the available records."""
        cdef uint64_t total = 0
        cdef Py_ssize_t got
        # The end or an error may have been reached in the previous call. Reading again reports it.
        cdef bint is_due = self.has_more
        self.has_more = False
        try:
            while total < room:
                # After the last record another read would raise an exception, which is expensive.
                if not is_due and not self.incoming.pending and not self.ssl.pending():
                    break
                is_due = False
                got = self.ssl.read(
                    room - total,
                    PyMemoryView_FromMemory(<char *>at + total, room - total, PyBUF_WRITE))
                if got <= 0:
                    self.has_more = total > 0  # return the data first, the end in the next call
                    return <int64_t>total
                total += <uint64_t>got
            else:
                self.has_more = self.incoming.pending > 0 or self.ssl.pending() > 0
        except WantRead:
            pass  # the record is incomplete
        except SslError:
            if total == 0:
                raise
            self.has_more = True  # return the data first; the next call meets the error again
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
                # no frame was received, so none is due; the peer of a failed handshake gets no
                # frame
                return 0
            size = out.take(buffer_out, BUFFER_BYTES)
            self.ssl.write(PyMemoryView_FromMemory(<char *>buffer_out, size, PyBUF_READ))

    cdef int _send_records(self, int fd) except? -1:
        """Send the queued records. Returns 0 if all are sent, 1 if the socket is full, or -errno.
        """
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

    cdef int close_notify(self, OutVector out, int fd) except -1:
        """Send what the socket accepts immediately, then close_notify. Called before closing."""
        try:
            if self.send(out, fd) == 0 and self.established and self.failure is None:
                self.ssl.unwrap()
        except WantRead:
            pass  # the close_notify of the peer, which is not awaited
        except SslError:
            return 0  # the connection is broken already
        self._send_records(fd)
        return 0
