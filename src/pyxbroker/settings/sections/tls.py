"""Settings of TLS: certificates, client certificates, versions and ciphers."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, limit, setting
from pyxbroker.settings.sections.general import PORT_MAX

STORE_TYPE = "as in Java, a file of the other type is accepted, too"


class Tls(Section, title="TLS"):
    brokerServicePortTls: int | None = setting(
        None,
        "Port of the binary protocol over TLS; 0 takes any free port, empty opens no port.",
        maximum=PORT_MAX,
    )
    webServicePortTls: int | None = setting(
        None,
        "Port of HTTPS; 0 takes any free port, empty opens no port.",
        maximum=PORT_MAX,
    )
    tlsCertificateFilePath: str = setting(
        "", "Certificate of both ports, followed by its chain up to the authority, PEM."
    )
    tlsKeyFilePath: str = setting("", "Private key of the certificate, PEM, not encrypted.")
    tlsTrustCertsFilePath: str = setting(
        "",
        "Authorities trusted for client certificates, PEM. Empty: those of the system. Must not be"
        " empty if certificates determine roles.",
    )
    tlsEnabledWithKeyStore: bool = setting(
        False,
        "If true, certificates and keys are read from the key stores below instead of PEM files.",
    )
    tlsKeyStoreType: str = setting(
        "JKS", f"Type of tlsKeyStore; {STORE_TYPE}.", choices=("JKS", "PKCS12")
    )
    tlsKeyStore: str = setting("", "Key store with the private key and certificates of both ports.")
    tlsKeyStorePassword: str = setting("", "Password of tlsKeyStore and of the key in it.")
    tlsTrustStoreType: str = setting(
        "JKS", f"Type of tlsTrustStore; {STORE_TYPE}.", choices=("JKS", "PKCS12")
    )
    tlsTrustStore: str = setting(
        "",
        "Key store with the authorities trusted for client certificates. Empty: those of the"
        " system. Must not be empty if certificates determine roles.",
    )
    tlsTrustStorePassword: str = setting(
        "",
        "Password of tlsTrustStore. If empty, the store is not verified; this works if nothing in"
        " it is encrypted.",
    )
    tlsRequireTrustedClientCertOnConnect: bool = setting(
        False,
        "If true, each client must present a trusted certificate. If false, a certificate is"
        " optional, and a client with an untrusted one is refused.",
    )
    tlsAllowInsecureConnection: bool = setting(
        False,
        "If true, a client with an untrusted certificate is served like a client without one."
        " Incompatible with tlsRequireTrustedClientCertOnConnect.",
    )
    tlsProtocols: str = setting(
        "",
        "Accepted TLS versions, separated by commas: TLSv1.3 and TLSv1.2. Empty: both.",
    )
    tlsCiphers: str = setting(
        "",
        "Accepted ciphers, separated by commas, by OpenSSL's or the standard's names. Empty:"
        " OpenSSL's choice. OpenSSL's names of groups and `!` are also accepted; a name unknown to"
        " OpenSSL is refused. The ciphers of TLSv1.3 are fixed: a list with only those disables"
        " TLSv1.2.",
    )
    tlsCertRefreshCheckDurationSec: int = limit(
        300,
        "Time between two checks of the certificate files; new connections use what has changed. 0"
        " checks them for each connection.",
        unit="s",
    )
