"""TLS on the ports: certificates, who has to show one, and what is spoken."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, limit, setting
from pyxbroker.settings.sections.general import PORT_MAX

STORE_TYPE = "as in Java a file of the other type is read, too"


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
        "", "The certificate of both ports and those that lead to its authority, PEM."
    )
    tlsKeyFilePath: str = setting("", "The private key of that certificate, PEM, not encrypted.")
    tlsTrustCertsFilePath: str = setting(
        "",
        "Authorities whose certificates of clients are trusted, PEM; empty: those of the system."
        " Not empty where certificates tell roles.",
    )
    tlsEnabledWithKeyStore: bool = setting(
        False,
        "Whether certificates and keys are in the key stores below, and not in PEM files.",
    )
    tlsKeyStoreType: str = setting(
        "JKS", f"What tlsKeyStore is; {STORE_TYPE}.", choices=("JKS", "PKCS12")
    )
    tlsKeyStore: str = setting("", "The private key of both ports, and its certificates.")
    tlsKeyStorePassword: str = setting("", "The password of tlsKeyStore, and of the key in it.")
    tlsTrustStoreType: str = setting(
        "JKS", f"What tlsTrustStore is; {STORE_TYPE}.", choices=("JKS", "PKCS12")
    )
    tlsTrustStore: str = setting(
        "",
        "Authorities whose certificates of clients are trusted; empty: those of the system. Not"
        " empty where certificates tell roles.",
    )
    tlsTrustStorePassword: str = setting(
        "", "The password of tlsTrustStore; empty leaves it unchecked where it encrypts nothing."
    )
    tlsRequireTrustedClientCertOnConnect: bool = setting(
        False,
        "Whether each client has to show a certificate that is trusted. Otherwise it may, and one"
        " that is not trusted is refused.",
    )
    tlsAllowInsecureConnection: bool = setting(
        False,
        "Whether a client with a certificate that is not trusted is served as one without. Not"
        " together with tlsRequireTrustedClientCertOnConnect.",
    )
    tlsProtocols: str = setting(
        "", "Versions that are spoken, of TLSv1.3 and TLSv1.2 (a comma between); empty: both."
    )
    tlsCiphers: str = setting(
        "",
        "Ciphers that are taken, by OpenSSL's names or the standard's (a comma between); empty:"
        " OpenSSL's choice. OpenSSL's words for groups count too, and `!` takes away; what it does"
        " not know is refused. Among those of TLSv1.3 nobody can choose: naming them alone leaves"
        " TLSv1.2 out.",
    )
    tlsCertRefreshCheckDurationSec: int = limit(
        300,
        "How often the files are looked at: new connections go by what has changed. 0: with each"
        " connection.",
        unit="s",
    )
