"""Tokens: JSON Web Tokens that somebody has signed with a key known here (Pulsar's
AuthenticationProviderToken).

Which algorithms count follows from the key alone, never from what a token says of itself: a token
without a signature, and one that is signed with a public key as if that were a secret, are refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jwt

from pyxbroker.auth.provider import Identity, NotShown
from pyxbroker.auth.secrets import read_secret
from pyxbroker.base.errors import AuthenticationError
from pyxbroker.base.properties import ConfigError
from pyxbroker.settings.config import Config

TOKEN_BYTES_MAX = 16 << 10
"""Longer ones are not looked at. The head of a request by HTTP has no room for them either."""

SECRET_BITS_MIN = 256
RSA_BITS_MIN = 2048
CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
BEARER = "Bearer "
_PEM = b"-----BEGIN "
_CHECKED_ELSEWHERE = ("verify_iat", "verify_aud", "verify_iss", "verify_sub", "verify_jti")


class TokenProvider:
    """Looks at tokens by one key. Raises ConfigError for settings that cannot be used."""

    method = "token"
    of_certificate = False

    def __init__(self, config: Config, clock: Callable[[], float] = time.time) -> None:
        self._key, self._algorithms = _key_of(config)
        self._role_claim = config.tokenAuthClaim or "sub"
        self._audience_claim = config.tokenAudienceClaim
        self._audience = config.tokenAudience
        self._skew_s = config.tokenAllowedClockSkewSeconds
        self._clock = clock
        if bool(self._audience_claim) != bool(self._audience):
            raise ConfigError(
                "tokenAudienceClaim and tokenAudience belong together: set both, or neither."
            )
        # The times are looked at here, by the same clock as later when a token expires.
        self._options: Any = dict.fromkeys(("verify_exp", "verify_nbf", *_CHECKED_ELSEWHERE), False)
        self._options["verify_signature"] = True

    async def authenticate(self, shown: bytes) -> Identity:
        if len(shown) > TOKEN_BYTES_MAX:
            raise AuthenticationError(f"The token is longer than {TOKEN_BYTES_MAX} bytes.")
        claims = self._claims(shown)
        expires_at = self._check_times(claims)
        self._check_audience(claims)
        return Identity(self._role(claims), expires_at)

    def shown_by(self, headers: Mapping[str, str], query: Mapping[str, str]) -> bytes:
        header = headers.get("authorization")
        if header is None and "token" in query:
            token = query["token"]
        elif header is not None and header.startswith(BEARER):
            token = header.removeprefix(BEARER)
        else:
            raise NotShown("Invalid HTTP Authorization header")
        if not token.strip():
            raise NotShown("Blank token found")
        return token.encode()

    def _claims(self, token: bytes) -> dict[str, Any]:
        try:
            return jwt.decode(token, self._key, algorithms=self._algorithms, options=self._options)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError) as error:
            # Its text may have parts of the token.
            raise AuthenticationError(
                f"The token cannot be used: {type(error).__name__}."
            ) from None

    def _check_times(self, claims: dict[str, Any]) -> float | None:
        """When the token expires. Raises AuthenticationError when it has, or is not valid yet."""
        now = self._clock()
        begins, ends = _time_of(claims, "nbf"), _time_of(claims, "exp")
        if begins is not None and now < begins - self._skew_s:
            raise AuthenticationError("The token is not valid yet.")
        if ends is None:
            return None
        if now >= ends + self._skew_s:
            raise AuthenticationError("The token has expired.")
        return ends + self._skew_s

    def _check_audience(self, claims: dict[str, Any]) -> None:
        if not self._audience_claim:
            return
        found = claims.get(self._audience_claim)
        audiences = found if isinstance(found, list) else [found]
        if self._audience not in audiences:
            raise AuthenticationError("The token is for another audience.")

    def _role(self, claims: dict[str, Any]) -> str | None:
        """The role of a token, of several the first; None when it has none."""
        found = claims.get(self._role_claim)
        if isinstance(found, list):
            found = found[0] if found else None
        if found is not None and not isinstance(found, str):
            raise AuthenticationError("The role in the token is not text.")
        return found or None


def _time_of(claims: dict[str, Any], name: str) -> float | None:
    found = claims.get(name)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) < 2**53:
        raise AuthenticationError(f"The claim {name} of the token is not a time.")
    return float(found)


def _key_of(config: Config) -> tuple[Any, list[str]]:
    """The key and the algorithms that it is for. Raises ConfigError."""
    if config.tokenSecretKey:
        return _secret_key(read_secret("tokenSecretKey", config.tokenSecretKey))
    if config.tokenPublicKey:
        data = read_secret("tokenPublicKey", config.tokenPublicKey)
        return _public_key(data, config.tokenPublicAlg)
    raise ConfigError("Tokens need tokenSecretKey or tokenPublicKey, and neither is set.")


def _secret_key(secret: bytes) -> tuple[bytes, list[str]]:
    if secret.lstrip().startswith(_PEM):
        raise ConfigError(
            "tokenSecretKey is a key or certificate in PEM, not a secret; a public key belongs to"
            " tokenPublicKey."
        )
    bits = len(secret) * 8
    if bits < SECRET_BITS_MIN:
        raise ConfigError(
            f"tokenSecretKey has {bits} bits, and at least {SECRET_BITS_MIN} are needed."
        )
    return secret, [f"HS{size}" for size in (256, 384, 512) if bits >= size]


def _public_key(data: bytes, algorithm: str) -> tuple[Any, list[str]]:
    # With the first key: few brokers have one.
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import (
        load_der_public_key,
        load_pem_public_key,
    )

    is_pem = data.lstrip().startswith(_PEM)
    try:
        key = load_pem_public_key(data) if is_pem else load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(
            "tokenPublicKey is no public key (X.509 SubjectPublicKeyInfo, DER or PEM)."
        ) from None
    if algorithm.startswith("ES"):
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ConfigError(f"tokenPublicKey is no EC key, and tokenPublicAlg is {algorithm}.")
        if key.curve.name not in CURVES:
            raise ConfigError(f"tokenPublicKey has the curve {key.curve.name}, which no token has.")
        return key, [CURVES[key.curve.name]]
    if not isinstance(key, rsa.RSAPublicKey):
        raise ConfigError(f"tokenPublicKey is no RSA key, and tokenPublicAlg is {algorithm}.")
    if key.key_size < RSA_BITS_MIN:
        raise ConfigError(
            f"tokenPublicKey has {key.key_size} bits, and at least {RSA_BITS_MIN} are needed."
        )
    return key, [f"{kind}{size}" for kind in ("RS", "PS") for size in (256, 384, 512)]
