"""Settings of the embedded bookie: journal, entry logs and disk space."""

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
        "Size of one journal file. The bookie writes each file once in full and then reuses it, so"
        " that a sync does not write file system metadata. BookKeeper's own default is 2048.",
        unit="MiB",
        minimum=1,
        maximum=65536,
    )
    journalSyncData: bool = setting(
        True,
        "If true, an entry is on disk before the broker acknowledges it. If false, a power cut or a"
        " crash of the operating system loses acknowledged messages.",
    )
    shutdownOnJournalFailure: bool = setting(
        False,
        "If true, the process ends with exit status 1 after a journal failure, so that its"
        " supervisor can restart it. If false, the broker continues to serve acknowledged messages"
        " to readers, refuses every write, and its health check returns 503.",
    )
    dbStorage_writeCacheMaxSizeMb: int = setting(
        32,
        "Memory of one generation of the write cache, which holds entries that are in the journal"
        " and not yet in an entry log. The next generation fills while one is flushed. BookKeeper's"
        " own default is a quarter of the JVM's direct memory.",
        unit="MiB",
        minimum=1,
    )
    dbStorage_readAheadCacheMaxSizeMb: int = setting(
        32,
        "Memory for flushed entries that readers may still need. This one cache replaces the"
        " separate caches of Pulsar's broker and of the bookie.",
        unit="MiB",
    )
    gcWaitTime: int = setting(
        900_000,
        "Time between two scans for stored ledgers that are no longer in the metadata.",
        unit="ms",
        minimum=1,
    )
    diskCheckInterval: int = setting(
        1000,
        "Time between two checks of the free disk space. BookKeeper's own default is 10 s.",
        unit="ms",
        minimum=10,
    )
    diskUsageThreshold: float = setting(
        1.0,
        "Used fraction of a disk above which the broker refuses publishes. With 1, only the space"
        " counts that the data in memory needs: both generations of the write cache, a journal file"
        " and 8 MiB. Pulsar's own default is 0.99, which is a hundred megabytes of a small disk and"
        " a hundred gigabytes of a large one.",
        minimum=0.01,
        maximum=1,
    )
    diskReserveSizeMB: int = limit(
        48,
        "Space on each disk that the bookie reserves for deleting, acknowledging and starting when"
        " the disk is full otherwise; at most an eighth of the disk. 0 reserves none.",
        unit="MiB",
    )
    storageUnavailableTimeoutMs: int = setting(
        5000,
        "How long sends wait while storage refuses writes. After that they fail, and producers are"
        " refused with ProducerBlockedQuotaExceededException until storage accepts writes again.",
        unit="ms",
    )
