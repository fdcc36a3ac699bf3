"""Tokens: JSON Web Tokens signed with a key from the settings (Pulsar's
AuthenticationProviderToken).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyxbroker.auth.claims import (
    bearer_of,
    check_audience,
    check_size,
    check_times,
    role_of,
    shown_of,
    verified_claims,
)
from pyxbroker.auth.provider import Identity
from pyxbroker.auth.secrets import read_secret, secret_name
from pyxbroker.auth.signing_keys import load_public_key, load_secret_key
from pyxbroker.base.clock import wall_s
from pyxbroker.base.properties import ConfigError
from pyxbroker.settings.config import Config


class TokenProvider:
    """Verifies tokens with one key. Raises ConfigError for unusable settings."""

    method = "token"
    of_certificate = False

    def __init__(self, config: Config, clock: Callable[[], float] = wall_s) -> None:
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

    async def authenticate(self, shown: bytes) -> Identity:
        check_size(shown)
        claims = verified_claims(shown, self._key, self._algorithms)
        expires_at = check_times(claims, self._clock(), self._skew_s)
        if self._audience_claim:
            check_audience(claims, self._audience_claim, (self._audience,))
        return Identity(role_of(claims, self._role_claim), expires_at)

    def shown_by(self, headers: Mapping[str, str], query: Mapping[str, str]) -> bytes:
        found = bearer_of(headers)
        if found is None and "token" in query:
            found = query["token"]
        return shown_of(found)


def _key_of(config: Config) -> tuple[Any, list[str]]:
    """Return the key and its algorithms. Raises ConfigError."""
    if config.tokenSecretKey:
        secret = read_secret("tokenSecretKey", config.tokenSecretKey)
        return secret, load_secret_key(secret_name("tokenSecretKey", config.tokenSecretKey), secret)
    if config.tokenPublicKey:
        data = read_secret("tokenPublicKey", config.tokenPublicKey)
        name = secret_name("tokenPublicKey", config.tokenPublicKey)
        key, algorithms = load_public_key(name, data)
        _check_kind(algorithms, config.tokenPublicAlg)
        return key, algorithms
    raise ConfigError("Tokens need tokenSecretKey or tokenPublicKey, and neither is set.")


def _check_kind(algorithms: list[str], expected: str) -> None:
    is_curve = expected.startswith("ES")
    if is_curve != algorithms[0].startswith("ES"):
        kind = "EC" if is_curve else "RSA"
        raise ConfigError(f"tokenPublicKey is no {kind} key, and tokenPublicAlg is {expected}.")
