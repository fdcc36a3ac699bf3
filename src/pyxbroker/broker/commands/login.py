"""How a connection's client has said who it is: at its CONNECT, and again when that has expired.

Mirrors what Pulsar's ServerCnx does for `authenticate` and `refreshAuthenticationCredentials`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyxbroker.auth.principal import Principal
from pyxbroker.auth.provider import joined
from pyxbroker.proto import PulsarApi as pb

if TYPE_CHECKING:
    from pyxbroker.auth.authentication import Authentication, Verified

# What the WebSocket service of Pulsar says for whom it asks: nobody else.
WEB_SOCKET_ORIGINAL = "__websocket_dummy_original_principle"
LEGACY_PREFIX = "AuthMethod"  # of the names in the enum of older clients


class Login:
    """What a session's principal was made of, and what becomes of it when that expires."""

    __slots__ = ("_proxy_expires_at", "can_refresh", "is_challenged", "method", "verified")

    def __init__(
        self, verified: Verified, method: str, can_refresh: bool, proxy: Verified | None = None
    ) -> None:
        self.verified = verified  # of the client: what it is asked for again
        self.method = method
        self.can_refresh = can_refresh
        self.is_challenged = False  # the client was asked, and has not answered
        # Of a proxy that has shown its own besides.
        self._proxy_expires_at = None if proxy is None else proxy.identity.expires_at

    def has_expired(self, now: float) -> bool:
        """Whether what was shown does not count any more. `now` is in seconds since 1970."""
        return _is_over(self.verified.identity.expires_at, now)

    def has_proxy_expired(self, now: float) -> bool:
        """The same of what its proxy has shown, which nobody can be asked for again."""
        return _is_over(self._proxy_expires_at, now)

    async def renew(self, authentication: Authentication, method: str, shown: bytes) -> bool:
        """The client has answered a challenge; whether it is still the same one.

        Raises AuthenticationError.
        """
        again = await authentication.verify_again(self.verified, method, shown)
        if again.identity.role != self.verified.identity.role:
            return False
        self.verified = again
        return True


def method_of(connect: Any) -> str:
    """The method that a CONNECT names. Older clients have a number for it."""
    if connect.auth_method_name:
        return str(connect.auth_method_name)
    if connect.HasField("auth_method"):
        return pb.AuthMethod.Name(connect.auth_method).removeprefix(LEGACY_PREFIX).lower()
    return ""


def shown_by(connect: Any, common_name: str) -> tuple[str, bytes]:
    """Method and credentials by which failed logins are told apart."""
    original = connect.original_auth_data.encode()
    return method_of(connect), joined(connect.auth_data, common_name.encode(), original)


async def log_in(
    authentication: Authentication, connect: Any, verify_original: bool, common_name: str = ""
) -> tuple[Principal, Login]:
    """Who sends a CONNECT, for itself or for somebody behind it; common_name: of the certificate
    that the connection began with. With `verify_original` the one behind it
    has to prove who it is as well; else its proxy's word counts, which is not to be asked again.

    Raises AuthenticationError.
    """
    method = method_of(connect)
    can_refresh = bool(connect.feature_flags.supports_auth_refresh)
    own = await authentication.verify(method, connect.auth_data, common_name)
    role = own.identity.role
    original = connect.original_principal
    if not original or original == WEB_SOCKET_ORIGINAL:
        return Principal(role), Login(own, method, can_refresh)
    if not verify_original:
        return Principal(role, original), Login(own, method, can_refresh=False)
    method = connect.original_auth_method
    other = await authentication.verify(method, connect.original_auth_data.encode())
    if other.provider is None:
        role = other.identity.role  # whoever brings somebody anonymous is no more than that
    return Principal(role, other.identity.role), Login(other, method, can_refresh, proxy=own)


def _is_over(expires_at: float | None, now: float) -> bool:
    return expires_at is not None and expires_at <= now


def answer_of(message: Any) -> tuple[str, bytes] | None:
    """Method and credentials of an AUTH_RESPONSE; None when one is missing."""
    response = message.response
    if not (response.HasField("auth_data") and response.auth_method_name):
        return None
    return response.auth_method_name, response.auth_data
