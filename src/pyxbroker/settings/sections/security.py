"""Who may connect and what they may do."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, limit, setting

PROVIDERS = "org.apache.pulsar.broker.authentication."
KEY_FORMS = "`file:///path`, a path, `data:;base64,...`, or base64; its bytes are used as they are"


class Security(Section, title="Authentication and authorization"):
    authenticationEnabled: bool = setting(
        False,
        "Whether clients of both ports have to say who they are (docs/security.md).",
    )
    authenticationProviders: str = setting(
        "",
        "How they may: a list of Pulsar's class names, with commas. There are"
        f" `{PROVIDERS}AuthenticationProviderToken`, `{PROVIDERS}AuthenticationProviderBasic`,"
        f" `{PROVIDERS}oidc.AuthenticationProviderOpenID` (tokens of issuers that publish their"
        f" keys) and `{PROVIDERS}AuthenticationProviderTls` (the common name of a client's"
        " certificate);"
        " a request by HTTP that does not name its method is tried with each in this order.",
    )
    authenticationRefreshCheckSeconds: int = setting(
        60,
        "How often connections are looked at for credentials that have expired.",
        unit="s",
        minimum=1,
    )
    strictAuthMethod: bool = setting(
        False,
        "Whether a request by HTTP has to name its method (`X-Pulsar-Auth-Method-Name`).",
    )
    anonymousUserRole: str = setting(
        "",
        "Role of clients whose method is not there, or that show nothing; empty refuses them"
        " (docs/security.md).",
    )
    maxFailedLoginsPerAddress: int = limit(
        100,
        "Failed logins of one client address (of IPv6: of one network of 64 bits), over both"
        " protocols, within failedLoginsPeriodSeconds; then its logins are refused for as long,"
        " but for credentials that were right lately. 0 is no limit. Apache Pulsar has no such"
        " limit.",
    )
    failedLoginsPeriodSeconds: int = setting(
        60,
        "Over which time failed logins are counted, and for how long an address is refused that"
        " has too many.",
        unit="s",
        minimum=1,
        maximum=86_400,
    )
    auditLog: str = setting(
        "withAuthentication",
        "Whether each change by REST, and of subscriptions by the protocol, each refusal and each"
        " failed login is a line of JSON in the log (docs/security.md): `true`, `false`, or while"
        " authenticationEnabled is true. Apache Pulsar has no such log.",
        choices=("true", "false", "withAuthentication"),
    )
    auditLogFile: str = setting(
        "",
        "File that the lines of the audit log are appended to; empty: stderr, with those of the"
        " log. It is opened again when it was renamed or removed.",
    )
    authorizationEnabled: bool = setting(
        False,
        "Whether clients may do only what their role has a right to; needs authenticationEnabled.",
    )
    authorizationProvider: str = setting(
        "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider",
        "Who decides that, as Pulsar calls it; there is one.",
    )
    authorizationAllowWildcardsMatching: bool = setting(
        False, "Whether roles in grants may begin or end with `*`."
    )
    superUserRoles: str = setting("", "Roles that may do everything, with commas.", dynamic=True)
    proxyRoles: str = setting(
        "", "Roles that may act for others, and have to say for whom; with commas."
    )
    authenticateOriginalAuthData: bool = setting(
        False,
        "Whether what a proxy hands on is authenticated, too; else a proxy's word is taken for who"
        " its client is.",
    )
    authenticateMetricsEndpoint: bool = setting(
        False, "Whether `/metrics` is for those alone who say who they are."
    )
    tokenSecretKey: str = setting(
        "",
        f"Secret that tokens are signed with (HS256, HS384, HS512): {KEY_FORMS}. At least 32 bytes;"
        " it wins over tokenPublicKey.",
    )
    tokenPublicKey: str = setting(
        "",
        "Public key of who signs tokens (RS, PS or ES with 256, 384 or 512), DER or PEM:"
        f" {KEY_FORMS}.",
    )
    tokenPublicAlg: str = setting(
        "RS256",
        "Which kind of key tokenPublicKey is: RSA (RS, PS) or elliptic curve (ES).",
        choices=("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"),
    )
    tokenAuthClaim: str = setting("", "Claim of a token that is its role; empty is `sub`.")
    tokenAudienceClaim: str = setting(
        "", "Claim of a token that has to have tokenAudience in it; empty does not look at it."
    )
    tokenAudience: str = setting("", "How tokens call this broker, in tokenAudienceClaim.")
    tokenAllowedClockSkewSeconds: int = setting(
        0, "By how much clocks may differ when the times of a token are looked at.", unit="s"
    )
    basicAuthConf: str = setting(
        "",
        "Users and the hashes of their passwords, as `htpasswd` writes them (apr1, bcrypt, crypt,"
        " SHA): a path, `file:///path`, `data:;base64,...` or base64. Read at the start.",
    )
