"""Settings for tokens of OpenID Connect issuers, which publish their keys."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, setting


class OpenId(Section, title="OpenID Connect"):
    openIDAllowedTokenIssuers: str = setting(
        "",
        "Accepted issuers, separated by commas, spelled as in the claim `iss` of their tokens. The"
        " broker finds their keys through `<issuer>/.well-known/openid-configuration`.",
    )
    openIDRequireIssuersUseHttps: bool = setting(
        True,
        "If true, the broker reads keys over HTTPS only. If false, an attacker on the network path"
        " to an issuer can forge tokens.",
    )
    openIDTokenIssuerTrustCertsFilePath: str = setting(
        "",
        "Authorities trusted for the certificates of issuers, PEM. Empty: those of the system.",
    )
    openIDAllowedAudiences: str = setting(
        "",
        "Accepted audiences, separated by commas: the claim `aud` must contain one of them.",
    )
    openIDRoleClaim: str = setting("sub", "Claim of a token that holds the role.")
    openIDAcceptedTimeLeewaySeconds: int = setting(
        0, "Tolerated difference between clocks when the times of a token are checked.", unit="s"
    )
    openIDCacheSize: int = setting(
        5,
        "Number of issuers whose keys stay in memory. With more issuers, keys are read again,"
        " after `openIDKeyIdCacheMissRefreshSeconds` at the earliest.",
        minimum=1,
    )
    openIDCacheRefreshAfterWriteSeconds: int = setting(
        64_800,
        "Age after which an issuer's keys are read again while they remain in use.",
        unit="s",
    )
    openIDCacheExpirationSeconds: int = setting(
        86_400,
        "Age after which an issuer's keys are no longer accepted until they have been read again.",
        unit="s",
        minimum=1,
    )
    openIDKeyIdCacheMissRefreshSeconds: int = setting(
        300,
        "Shortest time between two requests to an issuer because a token names an unknown key.",
        unit="s",
    )
    openIDHttpConnectionTimeoutMillis: int = setting(
        10_000,
        "Longest time to connect to an issuer, including TLS.",
        unit="ms",
        minimum=1,
    )
    openIDHttpReadTimeoutMillis: int = setting(
        10_000, "Longest time to read a complete response of an issuer.", unit="ms", minimum=1
    )
    openIDFallbackDiscoveryMode: str = setting(
        "DISABLED",
        "Other way to find the keys of issuers. There is no discovery through Kubernetes: the"
        " broker refuses to start with Pulsar's other values.",
    )
