"""TLS of one server connection, for both ports: Python's ssl with limits that OpenSSL lacks.

OpenSSL processes all available records until one yields plain text, and answers every request for a
new key or another handshake, without a limit. Here records are passed to it one by one. Records
without plain text are counted, and a connection with too many of them is closed. OpenSSL does not
check the client's certificate when it resumes a session, so its expiry is checked here.

OpenSSL caches TLS 1.2 sessions of 20,480 connections that ended with a close_notify of either side,
and Python cannot disable that. With client certificates, in chains of up to 100 KB, the cache could
take gigabytes. If a client has presented a certificate, OpenSSL therefore neither sends nor sees a
close_notify: the connection just ends, and its session with it.
"""

from __future__ import annotations

import ssl
import time
from typing import Any

ALERT = 21  # content type of a record
HEADER_BYTES = 5  # of a record: content type, version, and length
HANDSHAKE_RECORDS_MAX = 256
# Records without plain text per MiB of plain text. A key lasts for millions of records.
IDLE_RECORDS_MAX = 32
IDLE_RESET_BYTES = 1 << 20


class ServerConnection(ssl.SSLObject):
    """An SSLObject with the limits above. It reads records from `incoming`."""

    _inner: ssl.MemoryBIO  # the buffer that OpenSSL reads
    _incoming: ssl.MemoryBIO
    _outgoing: ssl.MemoryBIO

    def set_buffers(
        self, incoming: ssl.MemoryBIO, inner: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
    ) -> None:
        """Set the buffers, right after creation."""
        self._incoming, self._inner, self._outgoing = incoming, inner, outgoing
        self._header = b""  # of the current record, while incomplete
        self._left = 0  # bytes of the current record that are still missing
        self._records = 0  # of the handshake
        self._idle = 0  # records without plain text
        self._opened = 0  # bytes of plain text since `_idle` was reset
        self._refusal = ""
        self._would_be_cached = False  # OpenSSL would cache the session with a client certificate
        self._has_ended = False  # an end that OpenSSL must not see

    def do_handshake(self) -> None:
        while True:
            self._check()
            try:
                super().do_handshake()
            except ssl.SSLWantReadError:
                if not self._feed():
                    raise
                self._records += self._left == 0
                if self._records > HANDSHAKE_RECORDS_MAX:
                    self._refusal = "too many records for a handshake"
            else:
                break
        self._would_be_cached = self.version() == "TLSv1.2" and self.getpeercert(True) is not None
        if self.session_reused and has_expired(self.getpeercert()):
            self._refusal = "the certificate of an earlier session has expired"
            self._check()

    def read(self, size: int = 1024, buffer: Any = None) -> Any:
        while True:
            self._check()
            # Read the plain text of one record before the next record is passed on.
            is_new = not self.pending() and self._feed()
            if self._has_ended:
                return b"" if buffer is None else 0
            answers = self._outgoing.pending
            try:
                got = super().read(size, buffer)
            except ssl.SSLWantReadError:
                if is_new:
                    self._count_idle(self._outgoing.pending > answers)
                if not self._incoming.pending:
                    self._check()
                    raise
            else:
                self._count_plain_text(got if isinstance(got, int) else len(got))
                return got

    def unwrap(self) -> None:
        while not self._would_be_cached:
            self._check()
            try:
                super().unwrap()
            except ssl.SSLWantReadError:
                if not self._feed():
                    raise
                self._count_idle(False)
            else:
                return

    def _feed(self) -> bool:
        """Pass the available bytes of one record to OpenSSL. Return False if none exist."""
        if self._has_ended:
            return False
        if self._left:
            piece = self._incoming.read(self._left)
            self._left -= len(piece)
        else:
            piece = self._incoming.read(HEADER_BYTES - len(self._header))
            if self._would_be_cached and not self._header and piece[:1] == bytes([ALERT]):
                self._has_ended = True  # after the handshake every alert is an end
                return False
            self._header += piece
            if len(self._header) == HEADER_BYTES:
                self._left = int.from_bytes(self._header[3:], "big")
                self._header = b""
                if self._left:
                    body = self._incoming.read(self._left)
                    self._left -= len(body)
                    piece += body
        if piece:
            self._inner.write(piece)
        elif self._incoming.eof and not self._inner.eof:
            self._has_ended = self._would_be_cached  # the end of the stream is an end, too
            if not self._would_be_cached:
                self._inner.write_eof()
        return bool(piece)

    def _count_idle(self, has_answered: bool) -> None:
        """Count a record without plain text, unless the current record is only incomplete."""
        if self._left or self._header:
            return
        self._idle += 1
        if has_answered and self.version() == "TLSv1.2":
            # In TLS 1.2 OpenSSL answers only one kind of client record here: a renegotiation.
            self._refusal = "the client requests a renegotiation"
        elif self._idle > IDLE_RECORDS_MAX:
            self._refusal = "too many records without data"

    def _count_plain_text(self, size: int) -> None:
        self._opened += size
        if self._opened >= IDLE_RESET_BYTES:
            self._opened = self._idle = 0

    def _check(self) -> None:
        """Raise SSLError, on every call, once the connection was refused."""
        if self._refusal:
            error = ssl.SSLError(ssl.SSL_ERROR_SSL, self._refusal)
            error.reason = self._refusal
            raise error


class ServerContext(ssl.SSLContext):
    """A TLS context whose connections are ServerConnections."""

    sslobject_class = ServerConnection

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **more: Any
    ) -> ssl.SSLObject:
        inner = ssl.MemoryBIO()
        made = super().wrap_bio(inner, outgoing, *args, **more)
        assert isinstance(made, ServerConnection)
        made.set_buffers(incoming, inner, outgoing)
        return made


def has_expired(certificate: dict[str, Any] | None) -> bool:
    """Return True if a certificate, as returned by getpeercert, has expired."""
    if not certificate:
        return False
    return ssl.cert_time_to_seconds(certificate["notAfter"]) < time.time()
