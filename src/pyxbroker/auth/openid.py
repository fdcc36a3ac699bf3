"""Tokens of issuers that publish their keys: OpenID Connect, and OAuth2 servers that follow it
(Pulsar's AuthenticationProviderOpenID).

The unverified content of a token only selects one of the allowed issuers, and one of its keys.
"""

from __future__ import annotations

import ssl
from collections import OrderedDict
from collections.abc import Callable, Mapping

from pyxbroker.auth.claims import (
    Claims,
    bearer_of,
    check_audience,
    check_size,
    check_times,
    role_of,
    shown_of,
    time_of,
    unverified,
    verified_claims,
)
from pyxbroker.auth.fetching import FetchLimits, split_url
from pyxbroker.auth.issuer import ANSWER_BYTES_MAX, Issuer, IssuerLimits
from pyxbroker.auth.provider import Identity
from pyxbroker.base.clock import wall_s
from pyxbroker.base.errors import AuthenticationError
from pyxbroker.base.log import get_logger
from pyxbroker.base.properties import ConfigError
from pyxbroker.settings.config import Config

log = get_logger(__name__)

DISABLED = "DISABLED"
REQUIRED_CLAIMS = ("iat", "exp", "sub")


class OpenIdProvider:
    """Verifies tokens of several issuers. Raises ConfigError for unusable settings."""

    method = "token"
    of_certificate = False

    def __init__(self, config: Config, clock: Callable[[], float] = wall_s) -> None:
        if config.openIDFallbackDiscoveryMode != DISABLED:
            raise ConfigError(
                f"openIDFallbackDiscoveryMode is {config.openIDFallbackDiscoveryMode!r}, and there"
                f" is no discovery by Kubernetes: leave it at {DISABLED}."
            )
        needs_https = config.openIDRequireIssuersUseHttps
        self._schemes: tuple[str, ...] = ("https",) if needs_https else ("https", "http")
        self._allowed = _issuers_of(config.openIDAllowedTokenIssuers, self._schemes)
        self._audiences = _listed(config.openIDAllowedAudiences)
        if not self._audiences:
            raise ConfigError("openIDAllowedAudiences is empty: set the audience of your tokens.")
        self._role_claim = config.openIDRoleClaim or "sub"
        self._leeway_s = config.openIDAcceptedTimeLeewaySeconds
        self._tls = _tls_of(config.openIDTokenIssuerTrustCertsFilePath)
        self._limits = _limits_of(config)
        self._clock = clock
        self._issuers_max = config.openIDCacheSize
        self._issuers: OrderedDict[str, Issuer] = OrderedDict()  # the most recently used comes last

    async def authenticate(self, shown: bytes) -> Identity:
        check_size(shown)
        header, claims = unverified(shown)
        issuer, kid = claims.get("iss"), header.get("kid")
        if not isinstance(issuer, str) or issuer not in self._allowed:
            raise AuthenticationError("The token is of an issuer that is not allowed.")
        if not isinstance(kid, str):
            raise AuthenticationError("The token names no key.")
        key = await self._issuer(issuer).key(kid)
        if header.get("alg") not in key.algorithms:
            raise AuthenticationError("The token's algorithm is not one of its key.")
        claims = verified_claims(shown, key.public, key.algorithms)
        return self._identity(claims)

    def shown_by(self, headers: Mapping[str, str], query: Mapping[str, str]) -> bytes:
        return shown_of(bearer_of(headers))

    def _identity(self, claims: Claims) -> Identity:
        for name in (*REQUIRED_CLAIMS, self._role_claim):
            if claims.get(name) is None:
                raise AuthenticationError(f"The token has no claim {name}.")
        now = self._clock()
        expires_at = check_times(claims, now, self._leeway_s)
        issued_at = time_of(claims, "iat")
        if issued_at is not None and now < issued_at - self._leeway_s:
            raise AuthenticationError("The token is not valid yet.")
        check_audience(claims, "aud", self._audiences)
        return Identity(role_of(claims, self._role_claim), expires_at)

    def _issuer(self, url: str) -> Issuer:
        found = self._issuers.get(url)
        if found is None:
            self._make_room()
            found = self._issuers[url] = Issuer(url, self._tls, self._limits, self._schemes)
        self._issuers.move_to_end(url)
        return found

    def _make_room(self) -> None:
        """Evict the least recently used issuers, except those read recently. A forged token could
        name an evicted issuer, and cause a read each time. So there may be more issuers than the
        limit for a while, but only those that the settings allow.
        """
        surplus = len(self._issuers) + 1 - self._issuers_max
        if surplus > 0:
            old = [url for url, each in self._issuers.items() if not each.was_asked_lately]
            for url in old[:surplus]:
                del self._issuers[url]


def _listed(text: str) -> frozenset[str]:
    return frozenset(filter(None, map(str.strip, text.split(","))))


def _issuers_of(text: str, schemes: tuple[str, ...]) -> frozenset[str]:
    issuers = _listed(text)
    if not issuers:
        raise ConfigError("openIDAllowedTokenIssuers is empty: set the issuers of your tokens.")
    for issuer in sorted(issuers):
        try:
            parts = split_url(issuer, schemes)
        except ValueError as error:
            hint = "; openIDRequireIssuersUseHttps=false allows http" if len(schemes) == 1 else ""
            raise ConfigError(
                f"openIDAllowedTokenIssuers has {issuer!r}, which cannot be used: {error}{hint}."
            ) from None
        if parts.scheme != "https":
            log.warning("the keys of a token issuer are read without TLS", issuer=issuer)
    return issuers


def _tls_of(trusted: str) -> ssl.SSLContext:
    """Return the TLS context that verifies issuers. Raises ConfigError."""
    try:
        return ssl.create_default_context(cafile=trusted or None)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it has no certificates in PEM"
        if isinstance(error, ssl.SSLError):
            reason = "it has no certificates in PEM"
        raise ConfigError(
            f"openIDTokenIssuerTrustCertsFilePath: {trusted} cannot be used: {reason}."
        ) from None


def _limits_of(config: Config) -> IssuerLimits:
    return IssuerLimits(
        config.openIDCacheRefreshAfterWriteSeconds,
        config.openIDCacheExpirationSeconds,
        config.openIDKeyIdCacheMissRefreshSeconds,
        FetchLimits(
            config.openIDHttpConnectionTimeoutMillis / 1000,
            config.openIDHttpReadTimeoutMillis / 1000,
            ANSWER_BYTES_MAX,
        ),
    )
