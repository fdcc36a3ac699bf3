"""The managed ledgers of topics and their cursors."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, limit, setting


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
        "How each entry of new ledgers is checked when it is read. Older ones keep what they were"
        " made with. MAC is worth something with a password that others do not know. MAC and CRC32"
        " hash each message once more when it is written and once when it is read, CRC32 at a"
        " gigabyte in a second and MAC at a fifth of that; CRC32C costs nothing. DUMMY leaves it to"
        " the storage's own checksums.",
        choices=("CRC32C", "CRC32", "MAC", "DUMMY"),
    )
    managedLedgerPassword: str = setting(
        "",
        "Password of the ledgers that this broker creates. Choose it before the first start:"
        " ledgers of another password are refused.",
    )
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
    managedLedgerDefaultMarkDeleteRateLimit: float = limit(
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
    managedLedgerCursorPositionFlushSeconds: int = setting(
        60,
        "Longest time that the rate limit above keeps a position from being stored.",
        unit="s",
        minimum=1,
    )
    autoSkipNonRecoverableData: bool = setting(
        False,
        "Whether a subscription acknowledges what is lost, entries and whole ledgers, and goes on,"
        " however much it is. Otherwise it passes over at most 64 entries in a row, and stops at a"
        " longer run until it is moved or the entries can be read again. A compaction leaves out"
        " what is lost; otherwise it fails.",
        dynamic=True,
    )
