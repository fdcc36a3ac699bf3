"""The server's TLS of one connection, on both ports: ssl's own, with what OpenSSL leaves out.

OpenSSL opens all records that are there until one brings plain text, and answers each that asks for
something (a new key, another handshake), without an end. So records are handed on to it one by one,
those that bring nothing are counted, and a connection with too many of them ends. A handshake that
goes on with an earlier session does not look at the client's certificate: its time is looked at
here.

OpenSSL keeps the sessions of TLS 1.2 of 20,480 connections that ended with a farewell of either
side, and Python cannot tell it not to. With the certificates of their clients, chains of up to 100
KB, these could be gigabytes. So of who has shown one no farewell is said or heard by OpenSSL: the
connection just ends, and its session with it.
"""

from __future__ import annotations

import ssl
import time
from typing import Any

ALERT = 21  # the kind of a record
HEADER_BYTES = 5  # of a record: its kind, a version, and how many bytes follow
HANDSHAKE_RECORDS_MAX = 256
# Of those without plain text, in a MiB of it. A key lasts for millions of records.
IDLE_RECORDS_MAX = 32
FORGIVING_BYTES = 1 << 20


class ServerConnection(ssl.SSLObject):
    """As its base class, but for what is said above. `incoming` is what has come for it."""

    _inner: ssl.MemoryBIO  # which OpenSSL reads
    _incoming: ssl.MemoryBIO
    _outgoing: ssl.MemoryBIO

    def takes_from(
        self, incoming: ssl.MemoryBIO, inner: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
    ) -> None:
        """Its buffers, right after it was made."""
        self._incoming, self._inner, self._outgoing = incoming, inner, outgoing
        self._header = b""  # while it is not whole
        self._left = 0  # bytes of the record that are to come
        self._records = 0  # of the handshake
        self._idle = 0  # records without plain text
        self._opened = 0  # bytes of plain text since those were forgiven
        self._refusal = ""
        self._is_kept = False  # with its client's certificate, once a farewell is said or heard
        self._has_left = False  # a farewell was not heard

    def do_handshake(self) -> None:
        while True:
            self._check()
            try:
                super().do_handshake()
            except ssl.SSLWantReadError:
                if not self._hand_on():
                    raise
                self._records += self._left == 0
                if self._records > HANDSHAKE_RECORDS_MAX:
                    self._refusal = "too many records for a handshake"
            else:
                break
        self._is_kept = self.version() == "TLSv1.2" and self.getpeercert(True) is not None
        if self.session_reused and has_expired(self.getpeercert()):
            self._refusal = "the certificate of an earlier session has expired"
            self._check()

    def read(self, size: int = 1024, buffer: Any = None) -> Any:
        while True:
            self._check()
            # What one record brought is taken first.
            is_new = not self.pending() and self._hand_on()
            if self._has_left:
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
                self._forgive(got if isinstance(got, int) else len(got))
                return got

    def unwrap(self) -> None:
        while not self._is_kept:
            self._check()
            try:
                super().unwrap()
            except ssl.SSLWantReadError:
                if not self._hand_on():
                    raise
                self._count_idle(False)
            else:
                return

    def _hand_on(self) -> bool:
        """Gives OpenSSL what is here of one record; False when nothing is."""
        if self._has_left:
            return False
        if self._left:
            piece = self._incoming.read(self._left)
            self._left -= len(piece)
        else:
            piece = self._incoming.read(HEADER_BYTES - len(self._header))
            if self._is_kept and not self._header and piece[:1] == bytes([ALERT]):
                self._has_left = True  # whatever it tells: after the handshake each is an end
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
            self._has_left = self._is_kept  # that is a farewell, too
            if not self._is_kept:
                self._inner.write_eof()
        return bool(piece)

    def _count_idle(self, has_answered: bool) -> None:
        """OpenSSL has nothing to give: since a record is not whole, or was without plain text."""
        if self._left or self._header:
            return
        self._idle += 1
        if has_answered and self.version() == "TLSv1.2":
            # Of what clients of it send, OpenSSL answers this alone here: that it will not.
            self._refusal = "the client wants another handshake"
        elif self._idle > IDLE_RECORDS_MAX:
            self._refusal = "too many records without data"

    def _forgive(self, size: int) -> None:
        self._opened += size
        if self._opened >= FORGIVING_BYTES:
            self._opened = self._idle = 0

    def _check(self) -> None:
        """Raises SSLError, again and again, for who was refused."""
        if self._refusal:
            error = ssl.SSLError(ssl.SSL_ERROR_SSL, self._refusal)
            error.reason = self._refusal
            raise error


class ServerContext(ssl.SSLContext):
    """Makes connections like that."""

    sslobject_class = ServerConnection

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **more: Any
    ) -> ssl.SSLObject:
        inner = ssl.MemoryBIO()
        made = super().wrap_bio(inner, outgoing, *args, **more)
        assert isinstance(made, ServerConnection)
        made.takes_from(incoming, inner, outgoing)
        return made


def has_expired(certificate: dict[str, Any] | None) -> bool:
    """Of one as ssl's getpeercert tells it."""
    if not certificate:
        return False
    return ssl.cert_time_to_seconds(certificate["notAfter"]) < time.time()
