"""Authentication by the providers that the settings name.

If a client names a method, the answer of its provider is final: wrong credentials are refused, even
if a client without credentials would be admitted as anonymous. Only the log has the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pyxbroker.auth.login_counts import LoginCounts
from pyxbroker.auth.provider import Identity, NoCredentials, NotChecked, Provider
from pyxbroker.auth.secrets import is_same
from pyxbroker.base.errors import AuthenticationError
from pyxbroker.base.extras import require
from pyxbroker.base.properties import ConfigError
from pyxbroker.settings.config import Config

PACKAGE = "org.apache.pulsar.broker.authentication."
NONE = "none"  # the method of a client without credentials
METHOD_HEADER = "x-pulsar-auth-method-name"
SASL_HEADER = "sasl-type"
ORIGINAL_HEADER = "x-original-principal"


class Verified(NamedTuple):
    """An identity and the provider that has verified it; None for an anonymous identity."""

    identity: Identity
    provider: Provider | None = None
    refused: AuthenticationError | None = None
    """Error of credentials that were wrong, although their sender was admitted: as anonymous, or by
    other credentials of the HTTP request.
    """


class Authentication:
    """All authentication providers of a broker. Raises ConfigError for unusable settings."""

    def __init__(self, config: Config) -> None:
        self._anonymous = config.anonymousUserRole or None
        self._strict = config.strictAuthMethod
        self._in_order: list[Provider] = []  # in the order of the settings
        self._names: dict[Provider, str] = {}  # class names in Pulsar
        self.counts = LoginCounts()
        self._providers: dict[str, list[Provider]] = {}  # by method, in the order of the settings
        for name in names_of(config.authenticationProviders):
            provider = _made(name, config)
            self._providers.setdefault(provider.method, []).append(provider)
            self._in_order.append(provider)
            self._names[provider] = name.rpartition(".")[2]
        if not self._providers and self._anonymous is None:
            raise ConfigError(
                "authenticationEnabled is true, and no client could log in: authenticationProviders"
                " and anonymousUserRole are both empty."
            )

    async def verify(self, method: str, shown: bytes, common_name: str = "") -> Verified:
        """Verify the credentials of a named method. common_name is that of the client's
        certificate. Raises AuthenticationError.
        """
        providers = self._providers.get(method or NONE)
        if providers is None:
            return self._admit_anonymous(
                NoCredentials(f"There is no authentication method {method or NONE!r}.")
            )
        return await self._first(
            providers,
            lambda provider: common_name.encode() if provider.of_certificate else shown,
        )

    async def verify_again(self, earlier: Verified, method: str, shown: bytes) -> Verified:
        """Verify renewed credentials by the provider that has verified the earlier ones. Raises
        AuthenticationError.
        """
        provider = earlier.provider
        if provider is None or provider.method != method or provider.of_certificate:
            return await self.verify(method, shown)
        return await self._first((provider,), lambda _: shown)

    async def verify_request(
        self,
        headers: Mapping[str, str],
        query: Callable[[], Mapping[str, str]],
        common_name: str = "",
    ) -> Verified:
        """Verify the credentials of an HTTP request. Raises AuthenticationError."""
        method = headers.get(METHOD_HEADER)
        if method is not None:
            providers = self._providers.get(method)
            if providers is None:
                raise NoCredentials(f"Unsupported authentication method: [{method:.100}].")
            asked = query()
            return await self._first(
                providers, lambda provider: _shown_by(provider, headers, asked, common_name)
            )
        if SASL_HEADER in headers:
            raise NoCredentials("Unsupported authentication method: [sasl].")
        if self._strict:
            raise NoCredentials("Authentication method missing")
        return await self._any_of(headers, query(), common_name)

    async def _any_of(
        self, headers: Mapping[str, str], query: Mapping[str, str], common_name: str
    ) -> Verified:
        """Verify credentials by any provider. If all refuse, the request counts as one without
        credentials, as in Pulsar: anonymous, if that is allowed.
        """
        try:
            return await self._first(
                self._in_order,
                lambda provider: _shown_by(provider, headers, query, common_name),
            )
        except AuthenticationError as error:
            return self._admit_anonymous(error)

    async def _first(
        self, providers: Sequence[Provider], shown_to: Callable[[Provider], bytes]
    ) -> Verified:
        """Return the result of the first provider that accepts. Raises the AuthenticationError of
        the last provider that found credentials, or NotChecked if one of them could not check now.
        """
        reason: AuthenticationError = NoCredentials("No credentials were shown.")
        refused = b""  # the credentials that `reason` is about
        try:
            for provider in providers:
                shown = b""
                try:
                    shown = shown_to(provider)
                    identity = await provider.authenticate(shown)
                except AuthenticationError as error:
                    self.counts.add_failure(self._names[provider], provider, error)
                    if isinstance(reason, NotChecked):
                        continue
                    if not isinstance(error, NoCredentials) or isinstance(reason, NoCredentials):
                        reason, refused = error, shown
                else:
                    self.counts.add_success(self._names[provider], provider, identity)
                    # A token that another provider has accepted was no guess.
                    is_guess = not (isinstance(reason, NoCredentials) or is_same(refused, shown))
                    return Verified(identity, provider, reason if is_guess else None)
            raise reason
        finally:
            del reason  # leave no cycle of the error and this frame

    def _admit_anonymous(self, reason: AuthenticationError) -> Verified:
        if self._anonymous is None:
            # A client that names no method learns no reason.
            raise reason if isinstance(reason, NotChecked) else AuthenticationError(str(reason))
        refused = None if isinstance(reason, NoCredentials) else reason
        return Verified(Identity(self._anonymous), refused=refused)


def _shown_by(
    provider: Provider, headers: Mapping[str, str], query: Mapping[str, str], common_name: str
) -> bytes:
    if provider.of_certificate:
        return common_name.encode()
    return provider.shown_by(headers, query)


def names_of(text: str) -> list[str]:
    """Return the names in a comma-separated list, without duplicates."""
    return list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


# --- the providers ----------------------------------------------------------------------------


def _token(config: Config) -> Provider:
    require("AuthenticationProviderToken", "jwt", "cryptography")
    from pyxbroker.auth.token import TokenProvider

    return TokenProvider(config)


def _basic(config: Config) -> Provider:
    from pyxbroker.auth.basic import BasicProvider

    return BasicProvider(config)


def _certificate(config: Config) -> Provider:
    from pyxbroker.auth.certificates import CertificateProvider

    if config.brokerServicePortTls is None and config.webServicePortTls is None:
        raise ConfigError(
            f"authenticationProviders has {PACKAGE}AuthenticationProviderTls, and there is no port"
            " with TLS: set brokerServicePortTls or webServicePortTls."
        )
    name = "tlsTrustStore" if config.tlsEnabledWithKeyStore else "tlsTrustCertsFilePath"
    if not getattr(config, name):
        raise ConfigError(
            f"authenticationProviders has {PACKAGE}AuthenticationProviderTls, and {name} is empty:"
            " each authority that the system trusts could give certificates for any role. Set"
            f" {name} to the authorities of your clients."
        )
    return CertificateProvider()


def _openid(config: Config) -> Provider:
    require("AuthenticationProviderOpenID", "jwt", "cryptography")
    from pyxbroker.auth.openid import OpenIdProvider

    return OpenIdProvider(config)


_PROVIDERS: dict[str, Callable[[Config], Provider]] = {
    PACKAGE + "AuthenticationProviderToken": _token,
    PACKAGE + "AuthenticationProviderBasic": _basic,
    PACKAGE + "AuthenticationProviderTls": _certificate,
    PACKAGE + "oidc.AuthenticationProviderOpenID": _openid,
}

# Pulsar's other providers, and why they are not supported.
_NOT_BUILT = {
    PACKAGE + "AuthenticationProviderSasl": "Kerberos is not supported",
    PACKAGE + "AuthenticationProviderAthenz": "Athenz is not supported",
    PACKAGE + "AuthenticationProviderList": "name its members instead",
}


def _made(name: str, config: Config) -> Provider:
    make = _PROVIDERS.get(name)
    if make is not None:
        return make(config)
    reason = _NOT_BUILT.get(name, "it is unknown")
    known = ", ".join(_PROVIDERS)
    raise ConfigError(
        f"authenticationProviders has {name!r}, which cannot be used: {reason}. Use one of {known}."
    )
