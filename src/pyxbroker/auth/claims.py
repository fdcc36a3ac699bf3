"""Claims of a JSON Web Token with a verified signature: times, audience and role.

A refused client learns no reason, and the messages do not repeat the token.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jwt

from pyxbroker.auth.provider import NoCredentials, TokenExpired, WrongAudience
from pyxbroker.base.errors import AuthenticationError

TOKEN_BYTES_MAX = 16 << 10
"""Longer tokens are refused. The head of an HTTP request has no room for them either."""

BEARER = "Bearer "
_CHECKED_HERE = ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")
# This module checks the times, with the same clock as later checks of the expiry.
_OPTIONS: Any = {"verify_signature": True} | {f"verify_{name}": False for name in _CHECKED_HERE}
_OPTIONS_UNVERIFIED: Any = {**_OPTIONS, "verify_signature": False}
# Exceptions of PyJWT for malformed tokens.
_UNUSABLE = (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError)

Claims = Mapping[str, Any]


def check_size(token: bytes) -> None:
    if len(token) > TOKEN_BYTES_MAX:
        raise AuthenticationError(f"The token is longer than {TOKEN_BYTES_MAX} bytes.")


def verified_claims(token: bytes, key: Any, algorithms: list[str]) -> Claims:
    """Return the claims of a token signed with the key. Raises AuthenticationError."""
    try:
        found: Claims = jwt.decode(token, key, algorithms=algorithms, options=_OPTIONS)
    except _UNUSABLE as error:
        raise _unusable(error) from None
    return found


def unverified(token: bytes) -> tuple[Claims, Claims]:
    """Return the header and claims of a token without verification, to choose the key for its
    verification. Raises AuthenticationError.
    """
    try:
        found = jwt.api_jwt.decode_complete(token, options=_OPTIONS_UNVERIFIED)
    except _UNUSABLE as error:
        raise _unusable(error) from None
    return found["header"], found["payload"]


def _unusable(error: Exception) -> AuthenticationError:
    # The message of the exception may have parts of the token.
    return AuthenticationError(f"The token cannot be used: {type(error).__name__}.")


def time_of(claims: Claims, name: str) -> float | None:
    found = claims.get(name)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) < 2**53:
        raise AuthenticationError(f"The claim {name} of the token is not a time.")
    return float(found)


def check_times(claims: Claims, now: float, skew_s: float) -> float | None:
    """Return the expiry of a token. Raises AuthenticationError if it has expired, or is not valid
    yet.
    """
    begins, ends = time_of(claims, "nbf"), time_of(claims, "exp")
    if begins is not None and now < begins - skew_s:
        raise AuthenticationError("The token is not valid yet.")
    if ends is None:
        return None
    if now >= ends + skew_s:
        raise TokenExpired("The token has expired.")
    return ends + skew_s


def check_audience(claims: Claims, name: str, allowed: Collection[str]) -> None:
    """Raise AuthenticationError unless one of the token's audiences is allowed."""
    found = claims.get(name)
    audiences = found if isinstance(found, list) else [found]
    if not any(isinstance(each, str) and each in allowed for each in audiences):
        raise WrongAudience("The token is for another audience.")


def role_of(claims: Claims, name: str) -> str | None:
    """Return the role of a token, of several the first; None without one."""
    found = claims.get(name)
    if isinstance(found, list):
        found = found[0] if found else None
    if found is not None and not isinstance(found, str):
        raise AuthenticationError("The role in the token is not text.")
    return found or None


def bearer_of(headers: Mapping[str, str]) -> str | None:
    """Return the token of a request's header, or None without the header. Raises NoCredentials."""
    header = headers.get("authorization")
    if header is None:
        return None
    if not header.startswith(BEARER):
        raise NoCredentials("Invalid HTTP Authorization header")
    return header.removeprefix(BEARER)


def shown_of(token: str | None) -> bytes:
    """Encode a token as credentials. Raises NoCredentials if it is missing or blank."""
    if token is None:
        raise NoCredentials("Invalid HTTP Authorization header")
    if not token.strip():
        raise NoCredentials("Blank token found")
    return token.encode()
