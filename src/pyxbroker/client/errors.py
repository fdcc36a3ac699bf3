"""Errors of the client. No text and no representation of them has a secret."""

from __future__ import annotations

import asyncio
import os

from pyxbroker.proto import PulsarApi as pb

RETRIABLE_CODES = frozenset(
    ("ServiceNotReady", "TooManyRequests", "MetadataError", "PersistenceError")
)
"""ServerErrors after which the same request may succeed a moment later."""

BUSY_CODES = frozenset(("ProducerBusy", "ConsumerBusy"))
"""ServerErrors of a name that another connection holds: possibly our own broken one."""


class ClientError(Exception):
    """The root of all errors of the client."""


class BadSetting(ClientError):
    """A setting of the client has a value that cannot be used."""


class CredentialsError(ClientError):
    """The credentials cannot be obtained: a file is unreadable, or an OAuth2 server refuses."""


class IssuerUnreachable(CredentialsError):
    """The OAuth2 server does not answer."""


CLOSED_BY_SERVER = "the server closed the connection"


class ConnectionFailed(ClientError):
    """A connection cannot be opened, or it ended."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url}: {reason}")
        self.url = url
        self.reason = reason


class ConnectFailed(ConnectionFailed):
    """No server accepts a connection at the address."""


def network_reason(error: OSError | asyncio.TimeoutError) -> str:
    """Return why a connection is not opened or has ended, without the event loop's words."""
    alert = getattr(error, "reason", None)  # of ssl.SSLError, whose number is none of the system
    if isinstance(alert, str):
        return alert.lower().replace("_", " ")
    if isinstance(error, OSError) and (error.errno or 0) > 0:
        return os.strerror(error.errno).lower()  # type: ignore[arg-type]
    text = error.strerror if isinstance(error, OSError) else ""  # of a name that is not known
    return text or str(error) or "timed out"


class TlsFailed(ConnectionFailed):
    """The TLS handshake failed, for another reason than the server's certificate."""


class AnswerTimeout(ConnectionFailed):
    """The server did not answer in time."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "the server did not answer in time")


class NoPong(ConnectionFailed):
    """The server did not answer PING in time."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "the broker does not answer PING")


class ProtocolFault(ConnectionFailed):
    """The server sent bytes that are not Pulsar's protocol."""


class NotPulsar(ProtocolFault):
    """The server at the address is not a Pulsar broker."""


class UntrustedCertificate(ClientError):
    """The server's certificate is not trusted, or is for another host."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"the certificate of {url} is not trusted: {reason}")
        self.url = url
        self.reason = reason


class Closed(ClientError):
    """The client, producer or consumer was closed by its user."""


class RedirectLoop(ClientError):
    """Servers redirect the client to each other without an end."""


class BadRedirect(ClientError):
    """A web server redirects from TLS to plain HTTP, or to something that is not a web URL."""

    def __init__(self, origin: str, status: int, target: str) -> None:
        where = f"to {target}, which has no TLS" if target else "to no URL of a web server"
        super().__init__(f"{origin} redirects ({status}) {where}.")
        self.origin = origin
        self.status = status
        self.target = target
        """The origin of the URL without TLS; empty: there is no URL."""


class NoSuchListener(ClientError):
    """The owner of a topic has no URL of the kind (with or without TLS) that the client uses."""


class SendTimeout(ClientError):
    """A message was not acknowledged in time. The broker may have stored it nevertheless."""


class MessageTooLarge(ClientError):
    """A message has more bytes than the broker accepts."""

    def __init__(self, topic: str, size: int, limit: int) -> None:
        super().__init__(f"a message has {size} bytes, and the broker of {topic} takes {limit}.")
        self.size = size
        self.limit = limit


class DamagedEntry(ClientError):
    """An entry that cannot be decoded."""


class BrokerRefused(ClientError):
    """The broker answered a request with a ServerError."""

    def __init__(self, code: str, message: str, url: str = "") -> None:
        super().__init__(f"the broker refused the request ({code}): {message}")
        self.code = code
        """The name of the ServerError."""
        self.message = message
        self.url = url

    @property
    def is_retriable(self) -> bool:
        return self.code in RETRIABLE_CODES


class ConnectionRefused(BrokerRefused):
    """The broker answered CONNECT with a ServerError."""


class HttpRefused(ClientError):
    """A web server answered a request with an error status."""

    def __init__(self, url: str, status: int, reason: str) -> None:
        super().__init__(f"{url} answered {status}: {reason}")
        self.url = url
        self.status = status
        self.reason = reason


def code_name(code: int) -> str:
    """Return the name of a ServerError, or its number if this build does not know it."""
    known = pb.ServerError.values()
    return str(pb.ServerError.Name(code)) if code in known else str(code)
