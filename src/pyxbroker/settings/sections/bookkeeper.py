"""Settings of `pyxbroker broker`: its bookies, and the cache of entries in its memory."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, limit, setting


class BookKeeper(Section, title="BookKeeper"):
    bookkeeperMetadataServiceUri: str = setting(
        "",
        "Metadata of the bookies, as zk+hierarchical://host:port[;host:port]/path or"
        " metadata-store:URL. Empty: /ledgers in the metadata store. This and the other settings"
        " of this section have no effect in standalone.",
    )
    bookkeeperClientTimeoutInSeconds: int = setting(
        30, "Time after which a bookie that has not answered has failed.", unit="s", minimum=1
    )
    bookkeeperTLSClientAuthentication: bool = setting(
        False, "Use TLS to bookies, with a certificate of the broker."
    )
    bookkeeperTLSCertificateFilePath: str = setting(
        "", "Certificate that the broker presents to bookies, as PEM."
    )
    bookkeeperTLSKeyFilePath: str = setting(
        "", "Key of that certificate as PEM, or a key store with both."
    )
    bookkeeperTLSKeyFileType: str = setting(
        "PEM", "Format of the key.", choices=("PEM", "JKS", "PKCS12")
    )
    bookkeeperTLSKeyStorePasswordPath: str = setting("", "File with the password of the key store.")
    bookkeeperTLSTrustCertsFilePath: str = setting(
        "", "Certificates of authorities that bookies are verified with; empty: the system's."
    )
    bookkeeperTLSTrustCertTypes: str = setting(
        "PEM", "Format of these certificates.", choices=("PEM", "JKS", "PKCS12")
    )
    bookkeeperTLSTrustStorePasswordPath: str = setting(
        "", "File with the password of the trust store."
    )
    bookkeeperTlsCertFilesRefreshDurationSeconds: int = setting(
        300, "Interval at which changed certificates are noticed.", unit="s", minimum=1
    )
    bookkeeper_tlsHostnameVerificationEnabled: bool = setting(
        False, "Verify that the certificate of a bookie is for its host name."
    )
    managedLedgerCacheSizeMB: int = setting(
        256,
        "Memory for entries that consumers are likely to read soon. In standalone this name sets"
        " dbStorage_readAheadCacheMaxSizeMb.",
        unit="MiB",
        minimum=1,
        dynamic=True,
    )
    managedLedgerCacheEvictionWatermark: float = setting(
        0.9,
        "Part of the cache that stays when it is full and the oldest entries are evicted.",
        maximum=1,
        dynamic=True,
    )
    managedLedgerCacheEvictionTimeThresholdMillis: int = limit(
        1000, "Age after which an entry is evicted from the cache.", unit="ms", dynamic=True
    )
    zookeeperSessionExpiredPolicy: str = setting(
        "reconnect",
        "What a broker does when its session with ZooKeeper is lost: reconnect, or stop the"
        " process.",
        choices=("reconnect", "shutdown"),
    )
