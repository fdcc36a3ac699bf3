"""The interface of authentication providers; each provider has a module of its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from pyxbroker.base.errors import AuthenticationError

CLIENT_ADDRESS: ContextVar[str] = ContextVar("CLIENT_ADDRESS", default="")
"""Address that the credentials come from, in the task that verifies them."""


class Identity(NamedTuple):
    """A verified role, and the end of its validity."""

    role: str | None
    expires_at: float | None = None  # seconds since 1970


class PublicRefusal(AuthenticationError):
    """Raised with Pulsar's text, which reveals nothing about the credentials. It is sent to the
    client if an HTTP request names its method.
    """


class NoCredentials(PublicRefusal):
    """Raised if an HTTP request has no credentials for the provider."""


class NotChecked(AuthenticationError):
    """Raised if credentials cannot be checked now: the issuer of a token cannot be reached, or too
    many passwords wait. It does not count as a failed login.
    """


class TokenExpired(AuthenticationError):
    """Raised for an expired token."""


class WrongAudience(AuthenticationError):
    """Raised for a token with another audience."""


class Provider(Protocol):
    """Verifies the credentials of one method.

    Every exception is a refusal. The message is for the log, and does not contain the credentials.
    The client does not get it, unless it is a PublicRefusal.
    """

    method: str
    """Name of the method in clients."""
    of_certificate: bool
    """True: the credentials are the common name of the client's certificate."""

    async def authenticate(self, shown: bytes) -> Identity:
        """Verify credentials. Raises AuthenticationError."""
        ...

    def shown_by(self, headers: Mapping[str, str], query: Mapping[str, str]) -> bytes:
        """Return the credentials of an HTTP request. Raises NoCredentials."""
        ...


def joined(*parts: bytes) -> bytes:
    """Join parts of credentials to a unique key, each with its length before it. Return an empty
    key if all parts are empty.
    """
    if not any(parts):
        return b""
    return b"".join(len(each).to_bytes(4, "big") + each for each in parts)
