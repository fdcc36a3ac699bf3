"""The metadata store, and the copies of the embedded one."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, limit, setting


class Metadata(Section, title="Metadata"):
    metadataStoreUrl: str = setting(
        "",
        "Where metadata lives: zk:host:port[,host:port][/chroot], embedded:PATH, memory:NAME. Empty"
        " is the embedded store in the data directory; host:port alone is ZooKeeper, which counts"
        " only as `--metadata` or `--set`: one that a file names is passed over.",
    )
    metadataStoreSessionTimeoutMillis: int = setting(
        30_000, "Session timeout asked of the metadata store.", unit="ms", minimum=1
    )
    metadataStoreOperationTimeoutSeconds: int = setting(
        30,
        "Longest wait for one metadata operation, for example while ZooKeeper is away.",
        unit="s",
        minimum=1,
    )

    metadataCopyIntervalSeconds: int = limit(
        3600,
        "Longest time between two copies of the embedded metadata store, if anything changed; 0"
        " makes them only by the length of the change log. Pulsar has no such setting.",
        unit="s",
    )
    metadataCopiesKept: int = setting(
        3,
        "Copies of the embedded metadata store that are kept, with all changes since the oldest.",
        minimum=2,
    )
    metadataCopiesKeptHours: int = setting(
        0, "Age below which copies are kept in addition, whatever their number.", unit="h"
    )
