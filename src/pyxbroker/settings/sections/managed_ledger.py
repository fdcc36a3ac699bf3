"""Settings of the managed ledgers of topics and of their cursors."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, limit, setting


class ManagedLedger(Section, title="Managed ledger"):
    managedLedgerDefaultEnsembleSize: int = setting(
        1,
        "Bookies that store the entries of a ledger. In a broker of a cluster the default is 2, as"
        " it is for the next two settings.",
        minimum=1,
    )
    managedLedgerDefaultWriteQuorum: int = setting(1, "Copies of each entry.", minimum=1)
    managedLedgerDefaultAckQuorum: int = setting(
        1, "Copies that must be on disk before the broker acknowledges an entry.", minimum=1
    )
    managedLedgerMaxEnsembleSize: int = setting(
        5, "Largest ensemble size that a policy may set.", minimum=1
    )
    managedLedgerMaxWriteQuorum: int = setting(
        5, "Largest number of copies that a policy may set.", minimum=1
    )
    managedLedgerMaxAckQuorum: int = setting(
        5, "Largest number of acknowledged copies that a policy may require.", minimum=1
    )
    managedLedgerDigestType: str = setting(
        "CRC32C",
        "Checksum of each entry of new ledgers, verified when the entry is read. Existing ledgers"
        " keep the type they were created with. MAC is only useful with a secret"
        " managedLedgerPassword. MAC and CRC32 hash each message one more time when it is written"
        " and when it is read: CRC32 at about 1 GB/s, MAC at about a fifth of that. CRC32C costs"
        " nothing. DUMMY relies on the checksums of the storage.",
        choices=("CRC32C", "CRC32", "MAC", "DUMMY"),
    )
    managedLedgerPassword: str = setting(
        "",
        "Password of the ledgers that this broker creates. Choose it before the first start: the"
        " broker refuses ledgers with another password.",
    )
    managedLedgerMaxEntriesPerLedger: int = setting(
        50_000, "Entries after which a topic continues in a new ledger.", minimum=1
    )
    managedLedgerMinLedgerRolloverTimeMinutes: int = setting(
        10, "Minimum age of a ledger before its number of entries can close it.", unit="min"
    )
    managedLedgerMaxLedgerRolloverTimeMinutes: int = setting(
        240, "Age after which a topic continues in a new ledger.", unit="min", minimum=1
    )
    managedLedgerMaxSizePerLedgerMbytes: int = setting(
        2048, "Size after which a topic continues in a new ledger.", unit="MiB", minimum=1
    )
    managedLedgerCursorMaxEntriesPerLedger: int = setting(
        50_000, "Positions after which a cursor continues in a new ledger.", minimum=1
    )
    managedLedgerCursorRolloverTimeInSeconds: int = setting(
        14_400, "Age after which a cursor continues in a new ledger.", unit="s", minimum=1
    )
    managedLedgerDefaultMarkDeleteRateLimit: float = limit(
        1.0, "How often per second a cursor may store its position; 0 is no limit.", unit="1/s"
    )
    managedLedgerMaxUnackedRangesToPersist: int = setting(
        10_000,
        "Largest number of acknowledged ranges for which `standalone` stores a cursor's state in"
        " Pulsar's format. A state with more ranges is in a format of our own; ranges are never"
        " dropped. On Apache's bookies every state that fits into an entry is in Pulsar's format.",
    )
    managedLedgerMaxUnackedRangesToPersistInMetadataStore: int = setting(
        1000,
        "Largest number of acknowledged ranges for which a closed cursor is stored in the metadata"
        " store.",
    )
    managedLedgerCursorPositionFlushSeconds: int = setting(
        60,
        "Longest time that managedLedgerDefaultMarkDeleteRateLimit may delay storing a position.",
        unit="s",
        minimum=1,
    )
    autoSkipNonRecoverableData: bool = setting(
        False,
        "If true, a subscription acknowledges all lost entries and ledgers and continues, however"
        " many they are. If false, it skips at most 64 lost entries in a row and stops at a longer"
        " run until it is moved or the entries can be read again. If true, a compaction leaves out"
        " lost entries; if false, it fails. If true, the recovery of transactions leaves out lost"
        " entries; if false, what they belong to waits until they can be read.",
        dynamic=True,
    )
    bookkeeperEnableStickyReads: bool = setting(
        True,
        "If true, all reads of a ledger whose bookies each have all of its entries go to one of"
        " them while it is healthy. If false, they take turns.",
    )
    bookkeeperClientSpeculativeReadTimeoutInMillis: int = limit(
        0,
        "Time after which another bookie is asked for entries as well; twice this time for the"
        " third one. 0: only after a failure.",
        unit="ms",
    )
