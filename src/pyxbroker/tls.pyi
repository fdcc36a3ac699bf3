"""What Python sees of tls.pyx: TLS on one client's socket."""

from ssl import SSLContext
from typing import Any

class TlsStream:
    """The server's side of TLS on a socket."""

    def __init__(self, context: SSLContext) -> None: ...
    @property
    def established(self) -> bool:
        """The handshake is over."""
    @property
    def has_more(self) -> bool:
        """Plain text had no room, and waits here."""
    @property
    def failure(self) -> str | None:
        """OpenSSL's name of what the peer did wrong."""
    @property
    def certificate(self) -> dict[str, Any] | None:
        """The client's certificate as ssl's getpeercert tells it; None without a trusted one."""
