"""What an authentication provider is: a file of its own that knows one method."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from pyxbroker.base.errors import AuthenticationError

CLIENT_ADDRESS: ContextVar[str] = ContextVar("CLIENT_ADDRESS", default="")
"""Where the credentials come from that are being looked at, in the task that does it."""


class Identity(NamedTuple):
    """Who somebody has proved to be, and until when that counts."""

    role: str | None
    expires_at: float | None = None  # seconds since 1970


class Told(AuthenticationError):
    """A refusal whose sentence, Pulsar's, says nothing of what was shown: who has named the method
    of a request by HTTP is told it.
    """


class NotShown(Told):
    """A request by HTTP has nothing that the provider could look at."""


class NotChecked(AuthenticationError):
    """A refusal since nobody can tell now whether what was shown is right: the issuer of a token
    cannot be asked, or too many passwords wait. It is no guess, and does not count as one.
    """


class TokenExpired(AuthenticationError):
    """A refusal of a token whose time is over."""


class WrongAudience(AuthenticationError):
    """A refusal of a token that is for another audience."""


class Provider(Protocol):
    """Looks at credentials of one method.

    Whatever it raises is a refusal. What is wrong is for the log: its sentences do not repeat what
    was shown, and who is refused is not told, unless it is Told.
    """

    method: str
    """As clients name it."""
    of_certificate: bool
    """What is shown is the common name of the client's certificate, and nothing that it sends."""

    async def authenticate(self, shown: bytes) -> Identity:
        """Whose credentials these are. Raises AuthenticationError."""
        ...

    def shown_by(self, headers: Mapping[str, str], query: Mapping[str, str]) -> bytes:
        """The credentials in a request by HTTP. Raises NotShown."""
        ...


def joined(*parts: bytes) -> bytes:
    """The parts of what somebody shows as one, by which they are told apart: each with its length
    before it. Nothing, where all are empty.
    """
    if not any(parts):
        return b""
    return b"".join(len(each).to_bytes(4, "big") + each for each in parts)
