"""The managed ledgers of topics and their cursors."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, setting


class ManagedLedger(Section, title="Managed ledger"):
    managedLedgerDefaultEnsembleSize: int = setting(
        1, "Bookies that the entries of a ledger are spread over.", minimum=1
    )
    managedLedgerDefaultWriteQuorum: int = setting(1, "Copies of each entry.", minimum=1)
    managedLedgerDefaultAckQuorum: int = setting(
        1, "Copies that must be on disk before an entry is acknowledged.", minimum=1
    )
    managedLedgerMaxEnsembleSize: int = setting(
        5, "The most bookies that a policy may spread the entries of a ledger over.", minimum=1
    )
    managedLedgerMaxWriteQuorum: int = setting(
        5, "The most copies of each entry that a policy may ask for.", minimum=1
    )
    managedLedgerMaxAckQuorum: int = setting(
        5, "The most copies that a policy may wait for.", minimum=1
    )
    managedLedgerDigestType: str = setting(
        "CRC32C",
        "Checksum of an entry between broker and bookie.",
        choices=("CRC32C", "CRC32", "MAC", "DUMMY"),
    )
    managedLedgerPassword: str = setting("", "Password of the ledgers that this broker creates.")
    managedLedgerMaxEntriesPerLedger: int = setting(
        50_000, "Entries after which a topic goes on in a new ledger.", minimum=1
    )
    managedLedgerMinLedgerRolloverTimeMinutes: int = setting(
        10, "Age below which a ledger is not left for its number of entries.", unit="min"
    )
    managedLedgerMaxLedgerRolloverTimeMinutes: int = setting(
        240, "Age after which a topic goes on in a new ledger.", unit="min", minimum=1
    )
    managedLedgerMaxSizePerLedgerMbytes: int = setting(
        2048, "Size after which a topic goes on in a new ledger.", unit="MiB", minimum=1
    )
    managedLedgerCursorMaxEntriesPerLedger: int = setting(
        50_000, "Positions after which a cursor goes on in a new ledger.", minimum=1
    )
    managedLedgerCursorRolloverTimeInSeconds: int = setting(
        14_400, "Age after which a cursor goes on in a new ledger.", unit="s", minimum=1
    )
    managedLedgerDefaultMarkDeleteRateLimit: float = setting(
        1.0, "Times per second that a cursor stores its position; 0 is no limit.", unit="1/s"
    )
    managedLedgerMaxUnackedRangesToPersist: int = setting(
        10_000,
        "Acknowledged ranges up to which a cursor's state is stored in Pulsar's format. With more,"
        " it is stored in a format of our own; none is ever dropped.",
    )
    managedLedgerMaxUnackedRangesToPersistInMetadataStore: int = setting(
        1000, "Acknowledged ranges up to which a closed cursor is kept in the metadata store."
    )
    managedLedgerCacheSizeMB: int = setting(
        64,
        "Memory for entries that consumers are about to read. Pulsar's own default is a fifth of"
        " the JVM's direct memory.",
        unit="MiB",
    )
    managedLedgerCacheEvictionTimeThresholdMillis: int = setting(
        1000, "Age after which an entry leaves the cache.", unit="ms"
    )
    managedLedgerCursorBackloggedThreshold: int = setting(
        1000, "Entries behind the end at which a cursor no longer holds entries in the cache."
    )
    managedLedgerCursorPositionFlushSeconds: int = setting(
        60, "Time between two stores of positions that the rate limit held back.", unit="s"
    )
    autoSkipNonRecoverableData: bool = setting(
        False,
        "Whether a subscription acknowledges what is lost, entries and whole ledgers, and goes on,"
        " however much it is. Otherwise it passes over at most 64 entries in a row, and stops at a"
        " longer run until it is moved or the entries can be read again.",
    )
