"""Tokens of issuers that publish their keys: OpenID Connect."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, setting


class OpenId(Section, title="OpenID Connect"):
    openIDAllowedTokenIssuers: str = setting(
        "",
        "Issuers whose tokens count, as the claim `iss` of a token names them (a comma between);"
        " their keys are found by `<issuer>/.well-known/openid-configuration`.",
    )
    openIDRequireIssuersUseHttps: bool = setting(
        True,
        "Whether issuers are asked over HTTPS alone. With `false` who is on the way to an issuer"
        " can make tokens.",
    )
    openIDTokenIssuerTrustCertsFilePath: str = setting(
        "", "Authorities that issuers' certificates are of, PEM; empty: those of the system."
    )
    openIDAllowedAudiences: str = setting(
        "", "How tokens call this broker, in their claim `aud`: one of these (a comma between)."
    )
    openIDRoleClaim: str = setting("sub", "Claim of a token that is its role.")
    openIDAcceptedTimeLeewaySeconds: int = setting(
        0, "By how much clocks may differ when the times of a token are looked at.", unit="s"
    )
    openIDCacheSize: int = setting(
        5,
        "How many issuers' keys are kept; with more issuers some are read again, no sooner than"
        " `openIDKeyIdCacheMissRefreshSeconds` after the last time.",
        minimum=1,
    )
    openIDCacheRefreshAfterWriteSeconds: int = setting(
        64_800, "Age of an issuer's keys from which they are read again while used.", unit="s"
    )
    openIDCacheExpirationSeconds: int = setting(
        86_400,
        "Age of an issuer's keys from which nobody is let in by them before they are read again.",
        unit="s",
        minimum=1,
    )
    openIDKeyIdCacheMissRefreshSeconds: int = setting(
        300,
        "How soon after an issuer was asked a token that names an unknown key has it asked again.",
        unit="s",
    )
    openIDHttpConnectionTimeoutMillis: int = setting(
        10_000, "How long a connection to an issuer may take, TLS included.", unit="ms", minimum=1
    )
    openIDHttpReadTimeoutMillis: int = setting(
        10_000, "How long a whole answer of an issuer may take.", unit="ms", minimum=1
    )
    openIDFallbackDiscoveryMode: str = setting(
        "DISABLED",
        "Where else issuers are looked for. There is no discovery by Kubernetes: a start with"
        " Pulsar's other values is refused.",
    )
