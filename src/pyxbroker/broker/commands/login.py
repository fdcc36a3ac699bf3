"""Logins: how a client has authenticated at CONNECT, and how it renews expired credentials.

Mirrors what Pulsar's ServerCnx does for `authenticate` and `refreshAuthenticationCredentials`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyxbroker.auth.principal import Principal
from pyxbroker.auth.provider import joined
from pyxbroker.proto import PulsarApi as pb

if TYPE_CHECKING:
    from pyxbroker.auth.authentication import Authentication, Verified

# Pulsar's WebSocket service sends this for no principal.
WEB_SOCKET_ORIGINAL = "__websocket_dummy_original_principle"
LEGACY_PREFIX = "AuthMethod"  # of the enum names that older clients use


class Login:
    """The credentials behind a session's principal, and their renewal."""

    __slots__ = ("_proxy_expires_at", "can_refresh", "is_challenged", "method", "verified")

    def __init__(
        self, verified: Verified, method: str, can_refresh: bool, proxy: Verified | None = None
    ) -> None:
        self.verified = verified  # of the client, which renews it
        self.method = method
        self.can_refresh = can_refresh
        self.is_challenged = False  # a challenge waits for the client's answer
        # Of a proxy that has authenticated itself in addition to its client.
        self._proxy_expires_at = None if proxy is None else proxy.identity.expires_at

    def has_expired(self, now: float) -> bool:
        """Return True if the credentials have expired. `now` is in seconds since 1970."""
        return _is_over(self.verified.identity.expires_at, now)

    def has_proxy_expired(self, now: float) -> bool:
        """Return True if the proxy's credentials have expired. They cannot be renewed."""
        return _is_over(self._proxy_expires_at, now)

    async def renew(self, authentication: Authentication, method: str, shown: bytes) -> bool:
        """Verify the client's answer to a challenge. Return False if its role has changed.

        Raises AuthenticationError.
        """
        again = await authentication.verify_again(self.verified, method, shown)
        if again.identity.role != self.verified.identity.role:
            return False
        self.verified = again
        return True


def method_of(connect: Any) -> str:
    """Return the authentication method of a CONNECT. Older clients send a number."""
    if connect.auth_method_name:
        return str(connect.auth_method_name)
    if connect.HasField("auth_method"):
        return pb.AuthMethod.Name(connect.auth_method).removeprefix(LEGACY_PREFIX).lower()
    return ""


def shown_by(connect: Any, common_name: str) -> tuple[str, bytes]:
    """Return the method and credentials that identify a login among failed ones."""
    original = connect.original_auth_data.encode()
    return method_of(connect), joined(connect.auth_data, common_name.encode(), original)


async def log_in(
    authentication: Authentication, connect: Any, verify_original: bool, common_name: str = ""
) -> tuple[Principal, Login]:
    """Authenticate the sender of a CONNECT, which may be a proxy for another client. common_name is
    that of the connection's client certificate. With `verify_original` the client behind the proxy
    must authenticate, too. Without it the proxy is trusted, and no credentials can be renewed.

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
        role = other.identity.role  # a proxy for an anonymous client gets the anonymous role
    return Principal(role, other.identity.role), Login(other, method, can_refresh, proxy=own)


def _is_over(expires_at: float | None, now: float) -> bool:
    return expires_at is not None and expires_at <= now


def answer_of(message: Any) -> tuple[str, bytes] | None:
    """Return the method and credentials of an AUTH_RESPONSE, or None if one is missing."""
    response = message.response
    if not (response.HasField("auth_data") and response.auth_method_name):
        return None
    return response.auth_method_name, response.auth_data
