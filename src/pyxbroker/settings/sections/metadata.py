"""Settings of the metadata store, and of the copies of the embedded one."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, limit, setting


class Metadata(Section, title="Metadata"):
    metadataStoreUrl: str = setting(
        "",
        "Metadata store: zk:host:port[,host:port][/chroot], embedded:PATH or memory:NAME. Empty is"
        " the embedded store in the data directory. A plain host:port is ZooKeeper. In standalone,"
        " ZooKeeper counts only when given with `--metadata` or `--set`; in a file it is ignored.",
    )
    configurationMetadataStoreUrl: str = setting(
        "",
        "Metadata store of what several clusters share. Empty: metadataStoreUrl. In standalone it"
        " has no effect.",
    )
    metadataStoreSessionTimeoutMillis: int = setting(
        30_000, "Session timeout that the broker requests.", unit="ms", minimum=1
    )
    metadataStoreOperationTimeoutSeconds: int = setting(
        30,
        "Longest wait for one metadata operation, for example while ZooKeeper is unavailable.",
        unit="s",
        minimum=1,
    )

    metadataCopyIntervalSeconds: int = limit(
        3600,
        "Longest time between two copies of the embedded metadata store while it changes. 0 makes"
        " copies only when the change log has grown enough. Pulsar has no such setting.",
        unit="s",
    )
    metadataCopiesKept: int = setting(
        3,
        "Copies of the embedded metadata store to retain, with all changes since the oldest one.",
        minimum=2,
    )
    metadataCopiesKeptHours: int = setting(
        0, "Copies younger than this are retained, whatever their number.", unit="h"
    )
