"""Type stub of tls.pyx: TLS on a client's socket."""

from ssl import SSLContext
from typing import Any

class TlsStream:
    """One side of TLS on a socket. The client's side begins the handshake."""

    def __init__(
        self, context: SSLContext, is_client: bool = False, server_hostname: str | None = None
    ) -> None: ...
    @property
    def established(self) -> bool:
        """True once the handshake is complete."""
    @property
    def has_more(self) -> bool:
        """True if decrypted data did not fit and waits here."""
    @property
    def failure(self) -> str | None:
        """OpenSSL's name for the peer's error, or None."""
    @property
    def certificate(self) -> dict[str, Any] | None:
        """The client's certificate as ssl.getpeercert() returns it; None without a trusted one."""
