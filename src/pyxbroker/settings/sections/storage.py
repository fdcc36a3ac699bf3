"""The embedded bookie: journal, entry logs, and the space of their disks."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, limit, setting


class Storage(Section, title="Storage"):
    journalDirectories: str = setting(
        "", "Directory of the journal; empty is `bookie/journal` in the data directory."
    )
    ledgerDirectories: str = setting(
        "", "Directory of the entry logs; empty is `bookie/ledgers` in the data directory."
    )
    journalMaxSizeMB: int = setting(
        64,
        "Size of one journal file. Files are written once in full and then used again, so that a"
        " sync has no file system metadata to write (BookKeeper's own default is 2048).",
        unit="MiB",
        minimum=1,
        maximum=65536,
    )
    journalSyncData: bool = setting(
        True,
        "Whether an entry is on disk before it is acknowledged. With false, a power cut or a crash"
        " of the operating system loses acknowledged messages.",
    )
    shutdownOnJournalFailure: bool = setting(
        False,
        "Whether the process ends, with exit status 1, when the journal failed, so that its"
        " supervisor starts it again. Otherwise it goes on serving what was acknowledged to readers"
        " and refuses every write, and health answers 503.",
    )
    dbStorage_writeCacheMaxSizeMb: int = setting(
        32,
        "Memory for entries that are in the journal and not yet in an entry log, for one"
        " generation; while one is flushed the next one fills (BookKeeper's own default is a"
        " quarter of the JVM's direct memory).",
        unit="MiB",
        minimum=1,
    )
    dbStorage_readAheadCacheMaxSizeMb: int = setting(
        32,
        "Memory for entries that were flushed and are still at hand for readers. Pulsar's brokers"
        " have a cache of their own beside the bookie's, here both are this one.",
        unit="MiB",
    )
    gcWaitTime: int = setting(
        900_000,
        "Time between two looks for ledgers that are in the storage and not in the metadata.",
        unit="ms",
        minimum=1,
    )
    diskCheckInterval: int = setting(
        1000,
        "Time between two looks at the free space of the disks (BookKeeper's own default is 10 s).",
        unit="ms",
        minimum=10,
    )
    diskUsageThreshold: float = setting(
        1.0,
        "Part of a disk in use above which nothing is published. With 1 only the bytes count that"
        " are needed for what is in memory: both generations of the write cache, a journal file and"
        " 8 MiB (Pulsar's own default is 0.99, which is a hundred megabytes of a small disk and a"
        " hundred gigabytes of a large one).",
        minimum=0.01,
        maximum=1,
    )
    diskReserveSizeMB: int = limit(
        48,
        "Space of each disk that is kept for deleting, acknowledging and starting when others have"
        " filled it; at most an eighth of the disk. 0 keeps none.",
        unit="MiB",
    )
    storageUnavailableTimeoutMs: int = setting(
        5000,
        "How long sends wait while nothing can be stored; then they fail, and producers are refused"
        " with ProducerBlockedQuotaExceededException until it works again.",
        unit="ms",
    )
