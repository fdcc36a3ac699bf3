"""Settings of authentication and authorization."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, limit, setting

PROVIDERS = "org.apache.pulsar.broker.authentication."
KEY_FORMS = "`file:///path`, a path, `data:;base64,...` or base64, whose bytes are used unchanged"


class Security(Section, title="Authentication and authorization"):
    authenticationEnabled: bool = setting(
        False,
        "If true, clients of both ports must authenticate (docs/security.md).",
    )
    authenticationProviders: str = setting(
        "",
        "Authentication methods: Pulsar's class names, separated by commas. The available ones are"
        f" `{PROVIDERS}AuthenticationProviderToken`, `{PROVIDERS}AuthenticationProviderBasic`,"
        f" `{PROVIDERS}oidc.AuthenticationProviderOpenID` (tokens of issuers that publish their"
        f" keys) and `{PROVIDERS}AuthenticationProviderTls` (the common name of a client's"
        " certificate). The broker tries them in this order for an HTTP request that does not name"
        " its method.",
    )
    authenticationRefreshCheckSeconds: int = setting(
        60,
        "Time between two checks of connections for expired credentials.",
        unit="s",
        minimum=1,
    )
    strictAuthMethod: bool = setting(
        False,
        "If true, an HTTP request must name its method (`X-Pulsar-Auth-Method-Name`).",
    )
    anonymousUserRole: str = setting(
        "",
        "Role of clients that send no credentials or name a method that is not configured. Empty"
        " refuses them (docs/security.md).",
    )
    maxFailedLoginsPerAddress: int = limit(
        100,
        "Failed logins per client address (an IPv6 network of 64 bits counts as one address) over"
        " both protocols within failedLoginsPeriodSeconds. An address above the limit is refused"
        " for as long, except with credentials that have recently been accepted. 0 is no"
        " limit. Apache Pulsar has no such limit.",
    )
    failedLoginsPeriodSeconds: int = setting(
        60,
        "Period over which failed logins are counted, and for which an address with too many of"
        " them is refused.",
        unit="s",
        minimum=1,
        maximum=86_400,
    )
    auditLog: str = setting(
        "withAuthentication",
        "If true, the broker logs a line of JSON for each change through REST, each change of a"
        " subscription through the binary protocol, each refusal and each failed login"
        " (docs/security.md). `withAuthentication` means true while authenticationEnabled is true."
        " Apache Pulsar has no such log.",
        choices=("true", "false", "withAuthentication"),
    )
    auditLogFile: str = setting(
        "",
        "File to which audit lines are appended. Empty writes them to stderr with the other log"
        " lines. The broker reopens the file after it was renamed or removed.",
    )
    authorizationEnabled: bool = setting(
        False,
        "If true, clients may do only what their role is permitted to do. Requires"
        " authenticationEnabled.",
    )
    authorizationProvider: str = setting(
        "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider",
        "Class that decides on permissions, by its name in Pulsar. No other class is available.",
    )
    authorizationAllowWildcardsMatching: bool = setting(
        False, "If true, role names in grants may begin or end with `*`."
    )
    superUserRoles: str = setting(
        "", "Roles that may do everything, separated by commas.", dynamic=True
    )
    proxyRoles: str = setting(
        "",
        "Roles of proxies, separated by commas. They act for other clients and must name the"
        " client's role.",
    )
    authenticateOriginalAuthData: bool = setting(
        False,
        "If true, the broker also authenticates the credentials that a proxy forwards. If false, it"
        " trusts the role that the proxy names.",
    )
    authenticateMetricsEndpoint: bool = setting(
        False, "If true, `/metrics` requires authentication."
    )
    tokenSecretKey: str = setting(
        "",
        f"Secret key for signed tokens (HS256, HS384, HS512): {KEY_FORMS}. At least 32 bytes."
        " Overrides tokenPublicKey.",
    )
    tokenPublicKey: str = setting(
        "",
        "Public key that verifies tokens (RS, PS or ES with 256, 384 or 512), DER or PEM:"
        f" {KEY_FORMS}.",
    )
    tokenPublicAlg: str = setting(
        "RS256",
        "Type of tokenPublicKey: RSA (RS, PS) or elliptic curve (ES).",
        choices=("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"),
    )
    tokenAuthClaim: str = setting("", "Claim of a token that holds the role. Empty is `sub`.")
    tokenAudienceClaim: str = setting(
        "", "Claim of a token that must contain tokenAudience. Empty disables the check."
    )
    tokenAudience: str = setting("", "Audience of this broker, expected in tokenAudienceClaim.")
    tokenAllowedClockSkewSeconds: int = setting(
        0, "Tolerated difference between clocks when the times of a token are checked.", unit="s"
    )
    basicAuthConf: str = setting(
        "",
        "Users and password hashes in the format of `htpasswd` (apr1, bcrypt, crypt, SHA): a path,"
        " `file:///path`, `data:;base64,...` or base64. Read once, at the start.",
    )
