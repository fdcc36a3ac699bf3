"""Settings of `pyxbroker broker`: its bookies, the choice among them, and its cache of entries."""

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
    bookkeeper_addEntryTimeoutSec: int = setting(
        5,
        "Time after which a bookie that keeps the oldest entry of a ledger waiting is replaced in"
        " that ledger. In Pulsar this is bookkeeperClientTimeoutInSeconds.",
        unit="s",
        minimum=1,
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
    bookkeeperTlsCertFilesRefreshDurationSeconds: int = limit(
        300, "Interval of checks for changed certificates. 0: at each connection.", unit="s"
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
    ledgerGarbageCollectionIntervalInSeconds: int = limit(
        3600,
        "Time between two scans for ledgers that a crash of a broker has left behind. A ledger is"
        " deleted if no topic, subscription or schema names it in two scans in a row. 0 disables"
        " them. They are also disabled if bookkeeperMetadataServiceUri is another place than the"
        " metadata store, since several clusters may share the ledgers there.",
        unit="s",
    )
    ledgerGarbageCollectionOfOtherBrokers: bool = setting(
        False,
        "Also delete such ledgers of topics and subscriptions if Apache Pulsar's brokers or older"
        " releases of pyxbroker have created them. Only for bookies that store no topics of another"
        " cluster.",
    )
    zookeeperSessionExpiredPolicy: str = setting(
        "reconnect",
        "What a broker does when its session with ZooKeeper is lost: reconnect, or stop the"
        " process.",
        choices=("reconnect", "shutdown"),
    )


class Placement(Section, title="Placement of ledgers"):
    bookkeeperClientRackawarePolicyEnabled: bool = setting(
        True,
        "Spread the bookies of each ledger over racks, which `pulsar-admin bookies` sets. This and"
        " the other settings of this section have no effect in a broker with one embedded bookie.",
    )
    bookkeeperClientRegionawarePolicyEnabled: bool = setting(
        False,
        "Spread the bookies of each ledger evenly over regions first. A rack is then of the form"
        " /region/rack.",
    )
    bookkeeperClientMinNumRacksPerWriteQuorum: int = setting(
        2, "Racks that the copies of an entry are in, where there are as many.", minimum=1
    )
    bookkeeperClientEnforceMinNumRacksPerWriteQuorum: bool = setting(
        False,
        "If true, refuse ledgers with fewer racks than bookkeeperClientMinNumRacksPerWriteQuorum,"
        " and leave out bookies whose rack is unknown. If false, take as many racks as there are.",
    )
    bookkeeperClientIsolationGroups: str = setting(
        "",
        "Groups of bookies for ledgers of namespaces without a bookie affinity group, separated by"
        " commas; empty is all bookies.",
    )
    bookkeeperClientSecondaryIsolationGroups: str = setting(
        "",
        "Groups that are added while those of bookkeeperClientIsolationGroups have too few writable"
        " bookies. If these are too few as well, bookies that are in no group are added.",
    )
    strictBookieAffinityEnabled: bool = setting(
        False,
        "If true, topics of namespaces without a bookie affinity group only use bookies that are in"
        " no group.",
    )
    bookkeeperClientHealthCheckEnabled: bool = setting(
        True, "Place no new ledgers for a while on bookies that keep failing."
    )
    bookkeeperClientHealthCheckIntervalSeconds: int = setting(
        60, "Interval in which the errors of a bookie are counted.", unit="s", minimum=1
    )
    bookkeeperClientHealthCheckErrorThresholdPerInterval: int = setting(
        5, "Errors in an interval after which a bookie is quarantined.", minimum=1
    )
    bookkeeperClientHealthCheckQuarantineTimeInSeconds: int = setting(
        1800, "Time that a bookie stays in quarantine.", unit="s", minimum=1
    )
    bookkeeperClientQuarantineRatio: float = limit(
        1.0, "Probability that a bookie with so many errors is quarantined.", maximum=1
    )
